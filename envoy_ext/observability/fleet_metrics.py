"""The metrics of the fleet: what looks at replicas give, their circuits, and what is cancelled there.

Replicas come and go for good, so whatever has a replica for a label goes with it.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.circuit_evidence import FailureClass
from envoy_ext.domain.fleet_events import CircuitTurned
from envoy_ext.domain.fleet_view import FleetView
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.slots import CancelOver, CancelProof
from envoy_ext.observability.replica_metrics import ReplicaMetrics


class FleetMetrics:
    """Part of `Metrics`, and used as that is."""

    def __init__(self, registry: CollectorRegistry, pools: Iterable[PoolName]) -> None:
        self._failed: dict[tuple[PoolName, ReplicaId], set[str]] = {}
        """The reasons each replica has a series of scrape failures for."""
        self.cancels = Counter(
            "envoy_ext_cancels_total",
            "Attempts that were cancelled and are known to be computed no more, by what is known of it.",
            ["pool", "proof"],
            registry=registry,
        )
        self.circuit_opened = Counter(
            "envoy_ext_circuit_opened_total",
            "Circuits that have opened, or opened again after a trial, by the class of failure.",
            ["pool", "class"],
            registry=registry,
        )
        self.engine_aborts = Counter(
            "envoy_ext_engine_aborts_total",
            "Calls to an engine to end a cancelled attempt: asked, or why it could not be.",
            ["pool", "result"],
            registry=registry,
        )
        self._replicas = ReplicaMetrics(registry)
        self.discovery_up = Gauge(
            "envoy_ext_discovery_up",
            "Whether the source of a pool's replicas tells who is there; while not, its last list stands.",
            ["pool"],
            registry=registry,
        )
        self.scrape_failures = Counter(
            "envoy_ext_scrape_failures_total",
            "Looks at a replica that gave nothing.",
            ["pool", "replica", "reason"],
            registry=registry,
        )
        for pool in pools:
            for kind in FailureClass:
                self.circuit_opened.labels(pool, kind)
            for proof in CancelProof:
                self.cancels.labels(pool, proof)

    def note_view(self, view: FleetView) -> None:
        """The picture has changed. Who is not in it any more has no series: pods come and go for good."""
        self._replicas.view = view
        if self._failed:
            shown = {(pool.pool, replica.id) for pool in view.pools for replica in pool.replicas}
            for gone in self._failed.keys() - shown:
                for reason in self._failed.pop(gone):
                    self.scrape_failures.remove(*gone, reason)

    def note_scrape_failure(self, pool: PoolName, replica: ReplicaId, reason: str) -> None:
        """A look gave nothing; `reason` is one of `domain.sample`'s."""
        self.scrape_failures.labels(pool, replica, reason).inc()
        self._failed.setdefault((pool, replica), set()).add(reason)

    def note_cancel(self, over: CancelOver) -> None:
        """A cancelled attempt is computed no more."""
        self.cancels.labels(over.pool, over.proof).inc()

    def watch_circuits(self, read: Callable[[ReplicaId], CircuitState | None]) -> None:
        """Where the state of a replica's circuit comes from."""
        self._replicas.read_circuit = read

    def note_circuit(self, turned: CircuitTurned) -> None:
        """A circuit is in another state. A control call that failed is no opening of its own."""
        opened = turned.after is CircuitState.OPEN and turned.before is not CircuitState.PROBING
        if opened and turned.kind is not None:
            self.circuit_opened.labels(turned.pool, turned.kind).inc()

    def note_abort(self, pool: PoolName, result: str) -> None:
        """An engine was asked to end a cancelled attempt; `result` is "asked" or one of `domain.sample`'s."""
        self.engine_aborts.labels(pool, result).inc()

    def note_discovery(self, pool: PoolName, listed: bool) -> None:
        """A pool's source of replicas told a list, or that it cannot."""
        self.discovery_up.labels(pool).set(listed)
