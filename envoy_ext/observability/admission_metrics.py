"""The metrics of who is let in: who waits, who is refused, and who gets less than was asked for."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.outcomes import RungName

_QUEUE_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 1800.0)
"""Most find a slot free (0). Waits end with `admission.max_wait`: 30 s by default, 30 minutes at most."""


class AdmissionMetrics:
    """Part of `Metrics`, and used as that is."""

    def __init__(self, registry: CollectorRegistry, pools: Iterable[PoolName]) -> None:
        self._pools: Final = tuple(pools)
        self.shed = Counter(
            "envoy_ext_shed_total",
            "Requests answered with an error of ours before they were let in; no pool if none was found.",
            ["pool", "code"],
            registry=registry,
        )
        self.hand_offs_failed = Counter(
            "envoy_ext_hand_offs_failed_total",
            "Requests that were to be handed to a person, and that nobody took.",
            ["pool"],
            registry=registry,
        )
        self.degraded = Counter(
            "envoy_ext_degraded_total",
            "Requests that went on or were answered with less than they asked for, by what was given up.",
            ["pool", "rung"],
            registry=registry,
        )
        self.queue_depth = Gauge(
            "envoy_ext_queue_depth", "Requests that wait for a slot.", ["pool"], registry=registry
        )
        self.queue_wait = Histogram(
            "envoy_ext_queue_wait_seconds",
            "Time a request waited until it was given a slot, in pools with a limit; 0 where one was free.",
            registry=registry,
            buckets=_QUEUE_S,
        )
        for pool in self._pools:
            self.queue_depth.labels(pool)
            for code in (
                "queue_full",
                "queue_deadline_exceeded",
                "no_ready_replica",
                "upstream_unavailable",
                FORBIDDEN,
            ):
                self.shed.labels(pool, code)
            self.hand_offs_failed.labels(pool)
            for rung in RungName:
                if rung is not RungName.REFUSE:
                    self.degraded.labels(pool, rung)

    def watch_queues(self, count_waiting: Callable[[PoolName], int]) -> None:
        """From where the depth of each pool's queue is read, whenever somebody looks."""
        for pool in self._pools:
            self.queue_depth.labels(pool).set_function(partial(count_waiting, pool))

    def note_refusal(self, pool: str, code: str) -> None:
        """A request was answered with an error of ours, and was not let in.

        `pool` is "" when none was found for it; `code` is one of `client_errors.CODES`.
        """
        self.shed.labels(pool, code).inc()
