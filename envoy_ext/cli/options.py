"""Options that several commands share, and how a command ends that cannot do what it should."""

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

ConfigOption = Annotated[Path, typer.Option("-c", "--config", metavar="FILE", help="The configuration file.")]
EnvoyOption = Annotated[str | None, typer.Option("--envoy", metavar="PATH", help="The Envoy binary to run.")]
UrlOption = Annotated[str, typer.Option("--url", help="A sidecar's operations port.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", help="Holds the bearer token, when one is configured.")
]
DEFAULT_URL = "http://127.0.0.1:9902"


def fail(lines: list[str], status: int) -> NoReturn:
    """Print the lines as errors, and end with this exit status."""
    for line in lines:
        print(line, file=sys.stderr)
    sys.exit(status)
