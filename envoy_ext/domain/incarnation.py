"""Is this still the same process? Decided from what a page says of itself.

A start time that moved, or a counter of finished requests that fell, is another process. Engines
without either (llama.cpp has no start time and counts no requests) are known by their progress
counter. When nothing listened there in between, the burden is the other way round: it counts as
another process unless its page shows that it is the same.
"""

from dataclasses import dataclass
from typing import Final, Self

from envoy_ext.domain.sample import Sample
from envoy_ext.domain.signals import read_known

START_JITTER_S: Final = 1.0
"""Some exporters compute the start time anew on each page, from uptime and a clock that NTP moves."""


@dataclass(frozen=True, slots=True)
class ProcessMarks:
    """By what a process is known; None is "its page does not tell"."""

    started_at: float | None = None
    requests_total: float | None = None
    progress: float | None = None

    @classmethod
    def read(cls, sample: Sample) -> Self:
        return cls(
            read_known(sample.process_started_at),
            read_known(sample.requests_total),
            read_known(sample.progress),
        )

    def follow(self, later: "ProcessMarks") -> "ProcessMarks":
        """The marks after a later page of the same process; what it does not tell stays as it was."""
        return ProcessMarks(
            self.started_at if later.started_at is None else later.started_at,
            self.requests_total if later.requests_total is None else later.requests_total,
            self.progress if later.progress is None else later.progress,
        )


def is_other_process(before: ProcessMarks, after: ProcessMarks) -> bool:
    """Whether a later page shows another process than the one the marks were read from."""
    if _start_moved(before, after) is True:
        return True
    counted = _fell(before.requests_total, after.requests_total)
    if counted is not None:
        return counted
    # Shares of gauges may be part of it, and they fall in a running engine; never by a whole one.
    return _fell(before.progress, after.progress, by=1.0) is True


def proves_end(before: ProcessMarks, after: ProcessMarks) -> bool:
    """Whether a later page proves that the process is gone which the marks were read from.

    More is asked than for readiness, where a mistake costs one control call: by this an attempt counts as
    dead. Only a start that is later does, and not while a counter went on: where the clock of a host is
    set, its exporter may move the start of a process that runs on.
    """
    if before.started_at is None or after.started_at is None:
        return False
    went_on = (
        bool(then) and _fell(then, now, by) is False
        for then, now, by in (
            (before.requests_total, after.requests_total, 0.0),
            (before.progress, after.progress, 1.0),
        )
    )
    return after.started_at - before.started_at > START_JITTER_S and not any(went_on)


def is_surely_same(before: ProcessMarks, after: ProcessMarks) -> bool:
    """Whether a later page shows that the process is the one from before, though nothing listened between."""
    moved = _start_moved(before, after)
    if moved is not None:
        return not moved
    # Counters of a process that has worked, and that went on from where they were.
    return bool(before.requests_total) and _fell(before.requests_total, after.requests_total) is False


def _start_moved(before: ProcessMarks, after: ProcessMarks) -> bool | None:
    if before.started_at is None or after.started_at is None:
        return None
    return abs(after.started_at - before.started_at) > START_JITTER_S


def _fell(before: float | None, after: float | None, by: float = 0.0) -> bool | None:
    return None if before is None or after is None else after < before and before - after >= by
