"""Faults played against a running stack, and what came of them."""
