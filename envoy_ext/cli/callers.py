"""`envoy-ext callers`: makes keys, and looks at the file of callers."""

import secrets
import sys
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Final

import typer

from envoy_ext.cli.options import ConfigOption, fail
from envoy_ext.domain.callers import is_name
from envoy_ext.domain.errors import ConfigError

KEY_PREFIX: Final = "sk-ee-"
"""Tells people and secret scanners what it is."""
KEY_BYTES: Final = 32

callers = typer.Typer(no_args_is_help=True, help="Callers and their API keys (docs/callers.md).")


@callers.command()
def new(name: Annotated[str, typer.Argument(metavar="NAME", help="What the caller is called.")]) -> None:
    """Make a key: it is printed this once, with the lines for callers.keys_file, which hold its hash."""
    if not is_name(name):
        raise typer.BadParameter("must be 1 to 128 printable ASCII characters without blanks and commas")
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    digest = sha256(key.encode()).hexdigest()
    # The key alone on stdout, so that it can go straight to where secrets are kept.
    print(key)
    print("# That was the key, which is shown nowhere again. For callers.keys_file:", file=sys.stderr)
    print(f"  - name: {_quote(name)}\n    sha256: {digest}", file=sys.stderr)


@callers.command()
def check(config: ConfigOption) -> None:
    """Say who is let in by a configuration's file of callers, or what is wrong with it."""
    from envoy_ext.config import find_loose_mode, load_config
    from envoy_ext.wiring.callers import read_callers

    loaded = load_config(config)
    if loaded.callers is None or loaded.callers.keys_file is None:
        raise ConfigError([f"{config}: callers.keys_file: not set: there is no file to look at"])
    path = loaded.callers.keys_file
    entries = read_callers(path, loaded)
    now = datetime.now(UTC).timestamp()
    for one in entries:
        ended = one.expires_at is not None and one.expires_at <= now
        state = "disabled" if one.disabled else "expired" if ended else "let in"
        print(f"{one.name}: {state}, {len(one.digests)} key{'' if len(one.digests) == 1 else 's'}")
    loose = find_loose_mode(path)
    if loose is not None:
        fail([loose], 1)


def _quote(name: str) -> str:
    """As YAML reads it back: names such as 1e3, no or @a are text too."""
    return "'" + name.replace("'", "''") + "'"
