"""Single exchanges, event by event: what came, what was recorded, what was answered; one JSON object a line.

For drills and for whoever looks into a strange run, and off unless somebody gives the sidecar a
`ports.Trace`: a line for each chunk costs more than the chunk. `time` is CLOCK_MONOTONIC, which all
processes of a machine share. Ids, words of the product's own, counts and times are in it; bytes become
their number, and every other text is left out.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

from envoy_ext.domain.events import Event
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.notes import Note
from envoy_ext.domain.records import Record
from envoy_ext.domain.step import Reply
from envoy_ext.ports import TraceKind

SHOWN: Final = frozenset(
    {
        *("operation_id", "exchange_id", "attempt_id", "ledger_id", "holder", "owner", "request_id"),
        *("job_id", "run_ids", "request_class"),
        *("tool", "call_id", "tool_call_id"),
        *("replica", "pool", "data_class", "address", "model_revision", "preference"),
        *("code", "error_code", "refusal", "detail", "why"),
        *("content_type", "content_encoding", "path", "body_sha256"),
    }
)
"""Names of texts that are ids, addresses, Envoy's words or our own. `path` is one of the API's paths."""
WITHHELD: Final = frozenset({"caller", "key_hash", "model", "message", "headers", "facts", "calls"})
"""Names of what a client has sent, of what it is known by, and of what it may be told. A test has each text
of every event, record, reply and note stand in one of the two lists."""


class TraceLog:
    """`ports.Trace` that writes lines."""

    def __init__(self, write: Callable[[str], object], now: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._now = now

    def add(
        self, operation_id: OperationId, kind: TraceKind, things: Iterable[Event | Record | Reply | Note]
    ) -> None:
        """One line for each thing."""
        for thing in things:
            line = {"time": self._now(), "operation_id": operation_id, "kind": kind.value}
            self._write(json.dumps({**show_thing(thing), **line}) + "\n")


def show_thing(thing: Any) -> dict[str, Any]:
    """A dataclass of the core, as far as a trace shows it; `is` names its type."""
    shown: dict[str, Any] = {"is": type(thing).__name__}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if field.name not in WITHHELD:
            shown |= _show(field.name, value)
    return shown


def _show(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Enum):
        return {name: value.value}
    if isinstance(value, bytes):
        return {f"{name}_bytes": len(value)}
    if value is None or isinstance(value, bool | int | float):
        return {name: value}
    if isinstance(value, str):
        return {name: value} if name in SHOWN else {}
    if dataclasses.is_dataclass(value):
        return {name: show_thing(value)}
    return {}
