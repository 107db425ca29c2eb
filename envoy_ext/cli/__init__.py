"""The `envoy-ext` command line: commands, and the tables they print."""

from envoy_ext.cli.commands import cli, main

__all__ = ["cli", "main"]
