"""What a run leaves behind: every try as its client saw it, and every generation as its engine wrote it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.loss.shape import Shape


@dataclass(slots=True)
class Try:
    """One HTTP request of a client. Times are CLOCK_MONOTONIC, as those of the engines' logs."""

    request_id: str
    call: int
    """What its client wants; all tries of one call have its number."""
    kind: str
    """`sdk`, `sdk-stream` or `raw`."""
    sent_at: float
    ended_at: float = 0.0
    status: int = 0
    """0: its client was told nothing."""
    code: str = ""
    """Of an error of the gateway's, in a refusal or in mid-stream."""
    retry_after: str | None = None
    should_retry: str | None = None
    attempts: int = 0
    """How many replicas were tried for it, as it was told with its status."""
    whole: bool = False
    tokens: int = 0
    left: bool = False
    """Its client's patience was over first."""


@dataclass(slots=True)
class Generation:
    """One attempt at a replica, by the replica's own log."""

    replica: str
    request_id: str
    started_at: float
    ended_at: float | None = None
    ended: str = ""
    tokens: int = 0


@dataclass(slots=True)
class Marks:
    """When the phases began."""

    measured_from: float = 0.0
    both_at: float = 0.0
    lost_at: float = 0.0
    back_at: float = 0.0
    end_at: float = 0.0


@dataclass(slots=True)
class Evidence:
    """Of one run."""

    shape: Shape
    marks: Marks
    survivor: str
    capacity: float
    """Whole answers a second of one replica alone, through the same gateway in the same run."""
    tries: list[Try] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    inflight: float = 0.0
    """Behind the end, by the gateway's own metrics."""
    bugs: float = 0.0


def read_log(path: Path) -> list[Generation]:
    """All generations of one engine's log but the sidecar's control calls, which bear no request id."""
    found: dict[int, Generation] = {}
    for line in path.read_text().splitlines():
        told: dict[str, Any] = json.loads(line)
        number = told["generation"]
        if told["request_id"] is None or number is None:
            continue
        if told["what"] == "start":
            found[number] = Generation(told["replica"], told["request_id"], told["time"])
        elif told["what"] == "token":
            found[number].tokens += 1
        elif told["what"] == "end":
            found[number].ended_at, found[number].ended = told["time"], told["ended"]
    return list(found.values())


def end_with_their_engine(generations: Iterable[Generation], replica: str, at: float) -> None:
    """A replica that was killed wrote no end of what it computed."""
    for one in generations:
        if one.replica == replica and one.ended_at is None and one.started_at < at:
            one.ended_at, one.ended = at, "killed"
