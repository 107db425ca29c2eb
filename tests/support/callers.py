"""Keys and files of callers for tests."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import yaml

from envoy_ext.domain.callers import CallerBook, CallerEntry, CallerRules, Credentials, Rights
from envoy_ext.services.heads import RequestHead

BLIND = b"b" * 32


def make_key(name: str) -> str:
    """A key that only tests would use."""
    return f"sk-test-key-of-{name}-0123456789"


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def build_entry(name: str, *keys: str, rights: Rights | None = None, **more: Any) -> CallerEntry:
    """A caller with one key, unless others are given."""
    digests = tuple(digest(key) for key in keys or (make_key(name),))
    return CallerEntry(name, digests, Rights() if rights is None else rights, **more)


def build_caller_rules(*entries: CallerEntry, trusted_header: str | None = None) -> CallerRules:
    """Keys are checked; the header counts from 127.0.0.1."""
    return CallerRules(
        CallerBook(entries, BLIND), True, trusted_header, (ip_network("127.0.0.1"), ip_network("::1"))
    )


def build_head(**more: Any) -> RequestHead:
    """What the headers of a chat request say."""
    head = RequestHead("POST", "/v1/chat/completions", "req-1", Credentials(), "")
    return replace(head, **more)


def write_callers(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A file of callers, each with the key of `make_key`; by their names, what else stands of them."""
    callers = [{"name": name, "sha256": digest(make_key(name)).hex(), **row} for name, row in rows.items()]
    path.write_text(yaml.safe_dump({"callers": callers}))
    path.chmod(0o600)
    return str(path)


def bearer(name: str) -> dict[str, str]:
    """What the caller of this name sends."""
    return {"authorization": f"Bearer {make_key(name)}"}
