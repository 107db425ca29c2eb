"""What was seen of one played scenario: by the client, the engines, the tools, the journal and the trace.

All times are CLOCK_MONOTONIC of one machine, in seconds, so whatever came first anywhere is known.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """One server-sent event, as it reached the client."""

    time: float
    data: str

    @property
    def delta(self) -> str:
        """What a person could read of it."""
        return read_delta(self.data)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error object, where it is the event that ends a broken stream."""
        error = read_json(self.data).get("error")
        return error if isinstance(error, dict) else None


@dataclass(frozen=True, slots=True)
class Client:
    """The client's side of one request."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    events: tuple[ClientEvent, ...] = ()
    cut: bool = False
    """The body did not end as HTTP wants it."""
    refusal: dict[str, Any] | None = None
    """The error object of an answer that is no stream."""

    @property
    def answer(self) -> tuple[ClientEvent, ...]:
        """The events, without the one that tells of a broken stream."""
        return tuple(event for event in self.events if event.error is None)

    @property
    def deltas(self) -> tuple[ClientEvent, ...]:
        """The events that a person could read."""
        return tuple(event for event in self.events if event.delta)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The error objects of its events."""
        return [event.error for event in self.events if event.error is not None]

    @property
    def error(self) -> dict[str, Any]:
        """What it was told of a failure, in whichever form; empty where it was told of none."""
        return self.errors[-1] if self.errors else self.refusal or {}

    @property
    def whole(self) -> bool:
        """A finish, and no more than one end. Engines that leave out the end are whole all the same."""
        finished = [
            choice.get("finish_reason")
            for event in self.events
            for choice in read_json(event.data).get("choices", ())
        ]
        clean = self.status == 200 and not self.cut and not self.errors
        return clean and any(finished) and [event.data for event in self.events].count(DONE) <= 1

    @property
    def text(self) -> str:
        """All that a person could read."""
        return "".join(event.delta for event in self.events)


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One line of an engine's log (`sim.event_log`)."""

    time: float
    replica: str
    attempt_id: str
    what: str
    data: str = ""
    """Of a chunk: the bytes."""
    ended: str = ""
    """Of an end: how."""
    tool: str = ""
    status: int = 0
    replayed: bool = False
    """Of a tool's answer; its body is in `data`."""


@dataclass(frozen=True, slots=True)
class ToolLine:
    """One line of a tool's own log: it has done something."""

    time: float
    tool: str
    key: str
    """The Idempotency-Key it was called with; "" without one."""
    number: int
    """Of the execution, over all tools; its answer names it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it."""

    client: Client
    engines: tuple[EngineLine, ...]
    """In order of time, over all engines."""
    operation: Mapping[str, Any]
    """The journal's word, as the operations API tells it."""
    trace: tuple[Mapping[str, Any], ...]
    """The sidecar's, as `observability.trace` writes it, in order."""
    tools: tuple[ToolLine, ...] = field(default=())

    @property
    def asked(self) -> list[str]:
        """The attempts that have reached an engine, in order."""
        return list(dict.fromkeys(line.attempt_id for line in self.engines))

    def read_engine(self, attempt_id: str, what: str) -> list[EngineLine]:
        """What an engine has logged of an attempt."""
        return [line for line in self.engines if (line.attempt_id, line.what) == (attempt_id, what)]

    def read_published(self, attempt_id: str) -> list[str]:
        """The data of the events that an attempt's engine has written, whole."""
        return read_events("".join(line.data for line in self.read_engine(attempt_id, "chunk")))

    def read_trace(self, kind: str, name: str) -> list[Mapping[str, Any]]:
        """The lines of the trace of this kind, about things of this name."""
        return [line for line in self.trace if (line["kind"], line["is"]) == (kind, name)]


def read_events(text: str) -> list[str]:
    """The data of each event that a blank line ends."""
    blocks = text.split("\n\n")[:-1]
    lines = (line for block in blocks for line in block.split("\n"))
    return [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]


def read_json(data: str) -> dict[str, Any]:
    """The object that an event holds; an empty one where it holds something else."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_delta(data: str) -> str:
    """What a person could read of one chat event."""
    choices = read_json(data).get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


def read_engine_lines(texts: Iterable[str], request_id: str) -> tuple[EngineLine, ...]:
    """The lines of one request out of the logs of several engines, in order of time."""
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    found = [
        EngineLine(
            time=line["time"],
            replica=line["replica"],
            attempt_id=line["attempt_id"] or "",
            what=line["what"],
            data=line.get("data", line.get("body", "")),
            ended=line.get("ended", ""),
            tool=line.get("tool", "").strip("/"),
            status=line.get("status", 0),
            replayed=line.get("replayed", False),
        )
        for line in lines
        if line["request_id"] == request_id
    ]
    return tuple(sorted(found, key=lambda line: line.time))
