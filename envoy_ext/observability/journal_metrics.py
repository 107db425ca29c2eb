"""The metrics of the journal: whether its store takes writes, how long they take, and what it holds."""

import math
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from envoy_ext.domain.retention import Why
from envoy_ext.ports import StoreSize

_JOURNAL_S: Final = (
    100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0, 2.5, 5.0
)  # fmt: skip
"""Memory and a group commit without fsync stay under a millisecond, an fsync takes one to tens of
them, a shared disk hundreds; the store gives up on a lock after 2 s."""


class JournalMetrics:
    """Part of `Metrics`, and used as that is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.append = Histogram(
            "envoy_ext_journal_append_seconds",
            "Time of journal appends that succeeded.",
            registry=registry,
            buckets=_JOURNAL_S,
        )
        self.up = Gauge(
            "envoy_ext_journal_up",
            "Whether the store of the journal takes writes.",
            registry=registry,
        )
        self.up.set(1)
        self.failures = Counter(
            "envoy_ext_journal_failures_total",
            "Journal appends that could not be done.",
            registry=registry,
        )
        self.operations = Gauge(
            "envoy_ext_journal_operations", "Operations in the journal.", registry=registry
        )
        self.operations.set(math.nan)  # not known before the first look
        self.bytes = Gauge(
            "envoy_ext_journal_bytes",
            "What they take in the store, without room that is free again; NaN where it cannot tell.",
            registry=registry,
        )
        self.bytes.set(math.nan)
        self.over_limit = Gauge(
            "envoy_ext_journal_over_limit",
            "1 while the journal holds more than its limits allow, and nothing of it may go.",
            registry=registry,
        )
        self.forgotten = Counter(
            "envoy_ext_journal_forgotten_total",
            "Ended operations that were removed from the journal by this gateway, by what for.",
            ["why"],
            registry=registry,
        )
        for why in Why:
            self.forgotten.labels(why)

    def note_forgotten(self, why: Why, operations: int) -> None:
        """Ended operations were removed from the journal."""
        self.forgotten.labels(why).inc(operations)

    def note_size(self, size: StoreSize, over_limit: bool) -> None:
        """How much the journal holds."""
        self.operations.set(size.operations)
        self.bytes.set(math.nan if size.bytes is None else size.bytes)
        self.over_limit.set(over_limit)

    def note_append(self, seconds: float, failed: bool) -> None:
        """Time a good append, count a failed one: its time says how long a store was waited for."""
        if failed:
            self.failures.inc()
        else:
            self.append.observe(seconds)
