"""What a sidecar holds while it runs: from outside and, where `bench.inside` has started it, from within."""
