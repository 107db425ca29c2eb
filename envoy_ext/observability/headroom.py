"""The metric of capacity, computed when a page is asked for.

Pools and scenarios come and go with the replicas, and a series of what can no longer be told would
stay at its last value for good. A page that is built anew holds what can be told at this moment only.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from envoy_ext.domain.capacity import Headroom


class HeadroomMetric(Collector):
    """`envoy_ext_capacity_headroom_ratio`, in the registry given."""

    def __init__(self, registry: CollectorRegistry, list_headrooms: Callable[[], Iterable[Headroom]]) -> None:
        self._list_headrooms = list_headrooms
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """The family without samples; a registry asks for it to see names that are taken."""
        yield self._build()

    def collect(self) -> Iterator[Metric]:
        """The family as it is at this moment."""
        family = self._build()
        for headroom in self._list_headrooms():
            family.add_metric([headroom.pool, headroom.scenario], headroom.ratio)
        yield family

    def _build(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "envoy_ext_capacity_headroom_ratio",
            "What a loss leaves: the free share of the rest; below 0, the share of the work without a place.",
            labels=["pool", "scenario"],
        )
