"""The product and other gateways in front of the same replicas, side by side in one run."""
