"""Generated from protos/ by `make protos`; a test keeps them equal."""
