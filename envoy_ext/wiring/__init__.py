"""From configuration to services, and from the fleet's picture to what is shown: parts of the composition."""
