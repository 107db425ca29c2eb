"""The metrics of the sidecar's own event loop."""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from envoy_ext.domain.loop_lag import LoopLag
from envoy_ext.observability.quick_histogram import QuickHistogram

_LAG_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""A timer is late by the kernel's 50 us at rest. A fast model's token takes 10 ms: above, streams stutter."""


class LoopMetrics:
    """Part of `Metrics`, and used as that is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = QuickHistogram(
            "envoy_ext_event_loop_lag_seconds",
            "How much later than asked for a timer of the event loop ran, looked at 20 times a second.",
            registry=registry,
            buckets=_LAG_S,
        )
        self._shedding = Gauge(
            "envoy_ext_event_loop_shedding",
            "1 while new requests are refused because the event loop is late.",
            registry=registry,
        )
        self.shed = Counter(
            "envoy_ext_event_loop_shed_total",
            "Requests refused because the event loop was late; envoy_ext_shed_total has them too.",
            registry=registry,
        )
        self.note_look: Final = self._lag.observe

    def watch(self, read: Callable[[], LoopLag]) -> None:
        """From where it is read whether work is shed."""
        self._shedding.set_function(lambda: float(read().shedding))
