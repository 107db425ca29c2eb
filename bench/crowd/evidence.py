"""What is known of a run, and put in order: clients beside engines, the gateway's journal and its figures."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.crowd.calls import Call
from bench.crowd.client import BEFORE, Told
from bench.crowd.plan import KINDS, Setting
from bench.crowd.watch import Entry, Sample

SHARING: Final = {kind.name: kind.weight for kind in KINDS.values() if not kind.priority}
"""The classes that share a pool, with their weights."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known of a run."""

    setting: Setting
    told: Sequence[Told]
    calls: Sequence[Call]
    """What engines say, the one without a gateway included."""
    samples: Sequence[Sample]
    deepest: int
    left_over: Mapping[str, float]
    """What is still counted when all is over."""
    entries: Sequence[Entry]
    cpu: Mapping[str, float] = field(default_factory=dict)
    """Parts of one core."""


class Run:
    """The evidence, put in order once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.setting = evidence, evidence.setting
        self.calls: dict[str, list[Call]] = defaultdict(list)
        for call in evidence.calls:
            self.calls[call.name].append(call)
        self.entries = {entry.name: entry for entry in evidence.entries}
        self.calm = [one for one in evidence.told if one.name.startswith(BEFORE)]
        self.direct = [one for one in evidence.told if one.direct and not one.name.startswith(BEFORE)]
        self.crowd = [one for one in evidence.told if not one.direct and not one.name.startswith(BEFORE)]
        self.by_name = {one.name: one for one in self.crowd}
        self.refused = [one for one in self.crowd if one.end == "refused"]
        self.accepted = [one for one in self.crowd if one.name in self.calls]
        """Those that an engine was asked for."""
        self.first_at = min((one.sent_at for one in self.crowd), default=0.0)
        self.last_at = max((one.sent_at for one in self.crowd), default=0.0)

    def read_added_without_wait_s(self, told: Iterable[Told]) -> list[float]:
        """The same without the time between a request's arrival at the sidecar and the start of its attempt,
        which is its wait (and what the sidecar has to do meanwhile is not told from it)."""
        found = []
        for one in told:
            calls, entry = self.calls[one.name], self.entries.get(one.name)
            if one.end == "whole" and len(calls) == 1 and entry is not None and entry.started_at is not None:
                way_in_s = entry.created_at - one.sent_at
                to_engine_s = calls[0].started_at - entry.started_at
                way_out_s = one.ended_at - (calls[0].ended_at or one.ended_at)
                found.append(way_in_s + to_engine_s + way_out_s)
        return found

    def read_added_s(self, told: Iterable[Told]) -> list[float]:
        """What stood between each client and its engine, in seconds: all that was not the engine's time."""
        found = []
        for one in told:
            calls = self.calls[one.name]
            if one.end == "whole" and len(calls) == 1 and calls[0].ended_at is not None:
                found.append(one.total_s - (calls[0].ended_at - calls[0].started_at))
        return found

    def find_backlogged(self) -> tuple[float, float]:
        """From when on every class that shares had somebody waiting, until the crowd stopped coming."""
        all_wait = [one.at for one in self.evidence.samples if all(one.classes.get(name) for name in SHARING)]
        return min(all_wait, default=self.last_at), self.last_at

    def count_given(self, by: str) -> Counter[str]:
        """Slots that were given while all waited, by `kind` or by `caller`."""
        since, until = self.find_backlogged()
        given: Counter[str] = Counter()
        for one in self.accepted:
            if since <= self.calls[one.name][0].started_at <= until:
                given[getattr(one, by)] += 1
        return given


def find_median(values: Sequence[float]) -> float:
    """0 of nothing."""
    return statistics.median(values) if values else 0.0


def find_quantile(values: Sequence[float], part: float) -> float:
    """What this part of them is below; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
