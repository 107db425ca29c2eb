"""The metrics of single replicas, computed when a page is asked for.

A picture of the fleet is taken several times a second and a page is read a few times a minute: what
nobody reads costs nothing. And replicas come and go; a page that is built anew holds those that are there.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.fleet_view import FleetView, Offer
from envoy_ext.domain.ids import ReplicaId

_LABELS: Final = ("pool", "replica")
_CIRCUITS: Final = {
    CircuitState.CLOSED: 0,
    CircuitState.SUSPECTED: 0,
    CircuitState.HALF_OPEN: 1,
    CircuitState.OPEN: 2,
    CircuitState.PROBING: 2,
}


class ReplicaMetrics(Collector):
    """Whether each replica is ready, its weight, its circuit and what is being cancelled there, in the
    registry given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.view = FleetView(())
        """The picture that is shown."""
        self.read_circuit: Callable[[ReplicaId], CircuitState | None] = lambda replica: None
        """The state of a replica's circuit; None where there is none."""
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """The families without samples; a registry asks for them to see names that are taken."""
        yield from self._build()

    def collect(self) -> Iterator[Metric]:
        """The families as they are at this moment."""
        ready, weight, cancelling, circuits = self._build()
        for pool in self.view.pools:
            for replica in pool.replicas:
                labels = (pool.pool, replica.id)
                ready.add_metric(labels, replica.status.ready)
                weight.add_metric(labels, replica.weight if replica.offer is Offer.SERVING else 0)
                cancelling.add_metric(labels, replica.status.cancelling)
                circuit = self.read_circuit(replica.id)
                if circuit is not None:
                    circuits.add_metric(labels, _CIRCUITS[circuit])
        yield from (ready, weight, cancelling, circuits)

    def _build(self) -> tuple[GaugeMetricFamily, ...]:
        return (
            GaugeMetricFamily(
                "envoy_ext_replica_ready", "Whether a replica gets new work by its own merit.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "envoy_ext_replica_weight",
                "A replica's part of the new work; 0 while it is offered none.",
                labels=_LABELS,
            ),
            GaugeMetricFamily(
                "envoy_ext_replica_cancelling",
                "Cancelled attempts of which nobody has said that they are computed no more.",
                labels=_LABELS,
            ),
            GaugeMetricFamily(
                "envoy_ext_circuit_state",
                "A replica's circuit: 0 closed, 1 half open, 2 open.",
                labels=_LABELS,
            ),
        )
