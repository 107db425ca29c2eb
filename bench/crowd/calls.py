"""What the engines say of themselves: their event logs, request by request."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Call:
    """One request at an engine, from when it had come whole until nothing of it was computed any more."""

    name: str
    replica: str
    started_at: float
    ended_at: float | None = None
    ended: str = ""
    tokens: int = 0
    prefilled_at: float | None = None
    """When the first token was there."""


def read_calls(paths: Iterable[Path]) -> list[Call]:
    """The requests of all logs that have a request id: those without are the sidecar's own control calls."""
    return [call for path in paths for call in _read_log(path)]


def _read_log(path: Path) -> list[Call]:
    calls: dict[int, Call] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        if line["request_id"] is None or line["generation"] is None:
            continue
        match line["what"]:
            case "start":
                calls[line["generation"]] = Call(line["request_id"], line["replica"], line["time"])
            case "token":
                call = calls[line["generation"]]
                call.prefilled_at = call.prefilled_at or line["time"]
                call.tokens += 1
            case "end":
                call = calls[line["generation"]]
                call.ended_at, call.ended = line["time"], line["ended"]
    return list(calls.values())


def find_peaks(calls: Iterable[Call]) -> Counter[str]:
    """The most requests that each engine had at once, computed or waiting inside; "" is all of them."""
    edges = [(call.started_at, 1, call.replica) for call in calls]
    edges += [(call.ended_at, -1, call.replica) for call in calls if call.ended_at is not None]
    now: Counter[str] = Counter()
    peaks: Counter[str] = Counter()
    for _, change, replica in sorted(edges):
        for place in (replica, ""):
            now[place] += change
            peaks[place] = max(peaks[place], now[place])
    return peaks
