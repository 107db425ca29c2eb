"""Evidence without what differs by chance: ids and replicas become numbers, times go, the order stays.

Two runs of one scenario with one seed are equal in this form, on whatever store, as far as the product
promises it. The trace is left out: logs and streams of one exchange come in no promised order.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from envoy_ext.drills.scenarios.evidence import EngineLine, Evidence

BY_CHANCE: Final = frozenset(
    {"time", "created", "created_at", "begun_at", "ended_at", "first_byte_at", "lease_expires_at", "owner"}
)
"""Keys whose values are moments, or name the gateway's process: only whether there is one stays."""
_ID: Final = re.compile(
    r"\b(op|att|exg|call)_[0-9A-Za-z]{8,}|\b(chatcmpl)-[A-Za-z0-9_]+-\d+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
)
"""Ours, those of simulated answers, and the request ids that Envoy makes."""


class Normaliser:
    """One for all that is to be compared within itself: equal ids get equal numbers, and no others do.

    Numbers are given in the order of first sight. `replicas` are the names that are ids here.
    """

    def __init__(self, replicas: Iterable[str]) -> None:
        self._replicas = frozenset(replicas)
        self._names: dict[tuple[str, str], str] = {}

    def replace(self, value: Any) -> Any:
        """The same with numbers for ids; JSON within a text is looked into."""
        if isinstance(value, dict):
            return {key: self._replace_field(key, one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.replace(one) for one in value]
        return self._replace_text(value) if isinstance(value, str) else value

    def _replace_field(self, key: str, value: Any) -> Any:
        if key in BY_CHANCE:
            return None if value is None else "by chance"
        return self.replace(value)

    def _replace_text(self, text: str) -> str:
        if text in self._replicas:
            return self._number("replica", text)
        if text.startswith("{"):
            try:
                return json.dumps(self.replace(json.loads(text)))
            except ValueError:
                pass  # half an event, or no JSON at all: a text like any other
        return _ID.sub(lambda found: self._number(found[1] or found[2] or "request", found[0]), text)

    def _number(self, kind: str, name: str) -> str:
        count = sum(known == kind for known, _ in self._names)
        return self._names.setdefault((kind, name), f"{kind} {count + 1}")


def normalise(evidence: Evidence) -> dict[str, Any]:
    """What two runs must have in common."""
    operation, client = evidence.operation, evidence.client
    # An attempt that was not let go has a place in the journal, and none in an engine's log.
    normaliser = Normaliser(one["replica"] for one in operation.get("attempts", ()))
    attempts = operation.get("attempts", [])
    # The journal's list first: its order of attempts and replicas is the one that numbers follow.
    form: dict[str, Any] = {
        "attempts": [(one["attempt_id"], one["replica"], one["outcome"]) for one in attempts],
        "operation": dict(operation),
        "client": {
            "status": client.status,
            "headers": {name: value for name, value in client.headers.items() if name != "retry-after"},
            "events": [event.data for event in client.events],
            "refusal": client.refusal,
            "cut": client.cut,
        },
        "engines": [_show_attempt(evidence, one) for one in evidence.asked],
        "tools": [line.tool for line in evidence.tools],
    }
    form["operation"].pop("attempts", None)
    replaced: dict[str, Any] = normaliser.replace(form)
    return replaced


def _show_attempt(evidence: Evidence, attempt_id: str) -> list[list[str]]:
    lines = [line for line in evidence.engines if line.attempt_id == attempt_id]
    return [[attempt_id, *_show_line(line)] for line in lines]


def _show_line(line: EngineLine) -> list[str]:
    if line.tool:
        return [line.replica, line.tool, str(line.status), f"replayed: {line.replayed}", line.data]
    *events, rest = line.data.split("\n\n")
    # How much half an event holds depends on the length of what stands in it by chance.
    parts = ["part of an event"] if rest else []
    shown = [event.removeprefix("data: ") for event in events]
    return [line.replica, line.what, line.ended, *shown, *parts]
