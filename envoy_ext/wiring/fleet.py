"""The fleet's part of the composition: from configuration to gates, and from the picture to what is shown.

Belongs to the composition layer, beside `app`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from envoy_ext.adapters.ops_answers import DiscoveryView
from envoy_ext.adapters.ops_answers import PoolView as ShownPool
from envoy_ext.adapters.ops_answers import ReplicaView as ShownReplica
from envoy_ext.config import Circuit, Config, Hysteresis, Pool, Readiness
from envoy_ext.domain.boundaries import Boundaries
from envoy_ext.domain.circuit_evidence import FailureClass
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.fingerprint import Fingerprint, compute_digest, list_known
from envoy_ext.domain.fleet_view import FleetView, Offer, ReplicaView, ViewPolicy, list_changes
from envoy_ext.domain.fleet_view import PoolView as FleetPoolView
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.outcomes import Phase
from envoy_ext.domain.readiness_policy import OWN_FAILURES, SLOW_START_S, ReadinessPolicy
from envoy_ext.domain.readiness_reasons import ReadinessReason
from envoy_ext.domain.signals import Band
from envoy_ext.domain.weights import WeightPolicy
from envoy_ext.services.fleet import FleetPool
from envoy_ext.services.queues import QueueView
from envoy_ext.services.watching import WatchPlan
from envoy_ext.wiring.resource import FixedResources
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import Assignment, EndpointView, Health, Resource
from envoy_ext.xds.snapshot import Snapshot, build_snapshot

_HEALTH = {
    Offer.SERVING: Health.READY,
    Offer.WITHHELD: Health.UNREADY,
    Offer.DRAINING: Health.DRAINING,
}


def build_readiness(readiness: Readiness, circuit: Circuit | None = None) -> ReadinessPolicy:
    """A pool's `readiness`, as its gates take it."""
    breaks = circuit is not None and circuit.enabled
    return ReadinessPolicy(
        scrape_s=readiness.scrape,
        stale_s=readiness.stale,
        hold_s=readiness.hold,
        waiting=_band(readiness.waiting),
        kv_cache=_band(readiness.kv_cache),
        gpu_temperature=_band(readiness.gpu_temperature),
        hang_s=readiness.hang,
        warmup=readiness.warmup,
        # One judge for our own failures: where there is a circuit, readiness leaves them to it. Without one
        # nobody looks whether an unwatched replica is back, so its failures only put it last; and what was
        # never away needs no slow start.
        own_failures=OWN_FAILURES if readiness.watch and not breaks else _NO_BAND,
        slow_start_s=SLOW_START_S if readiness.watch else 0.0,
    )


_NO_BAND: Final = Band(leave_at=math.inf, return_at=1.0)


def build_circuit(pool: Pool) -> CircuitPolicy | None:
    """A pool's `circuit`, as its circuits take it; None where it is switched off."""
    circuit = pool.circuit
    if not circuit.enabled:
        return None
    told = {kind: getattr(circuit.in_a_row, kind.value) for kind in FailureClass}
    return CircuitPolicy(
        window_s=circuit.window,
        min_attempts=circuit.min_attempts,
        failure_rate=circuit.failure_rate,
        in_a_row={kind: count for kind, count in told.items() if isinstance(count, int)},
        open_s=circuit.open.first,
        open_max_s=circuit.open.longest,
        trial_requests=circuit.trial.requests,
        trial_successes=circuit.trial.successes,
        max_open=circuit.max_open,
        probes=pool.readiness.watch and pool.readiness.warmup,
    )


def _band(thresholds: Hysteresis) -> Band:
    return Band(leave_at=thresholds.leave, return_at=thresholds.return_)


def build_fleet_pools(pools: Sequence[Pool], over_xds: bool) -> list[FleetPool]:
    """The configured pools, still without replicas."""
    return [
        FleetPool(
            name=pool.name,
            fingerprint=build_fingerprint(pool),
            readiness=build_readiness(pool.readiness, pool.circuit),
            watched=pool.readiness.watch,
            over_xds=over_xds,
            view=ViewPolicy(
                weights=WeightPolicy(
                    concurrency=pool.capacity.assumed_concurrency,
                    waiting=pool.readiness.waiting.leave,
                    kv_cache=pool.readiness.kv_cache.leave,
                ),
                weigh_every_s=pool.readiness.scrape,
            ),
            circuit=build_circuit(pool),
        )
        for pool in pools
    ]


def build_fingerprint(pool: Pool) -> Fingerprint:
    """What the configuration says that a pool's replicas have in common."""
    told = pool.fingerprint
    return Fingerprint(
        pool=pool.name,
        weights=told.weights,
        quantization=told.quantization,
        tokenizer=told.tokenizer,
        chat_template=told.chat_template,
        kv_dtype=told.kv_dtype,
        parallel=told.parallel,
        adapters=None if told.adapters is None else tuple(sorted(set(told.adapters))),
    )


def leave_unasked(config: Config, boundaries: Boundaries) -> Config:
    """The configuration without a look at pools that no class of data may reach: they are sent no call of
    the gateway's own either, whatever their `readiness.watch` says."""

    def settle(pool: Pool) -> Pool:
        if boundaries.is_reachable(pool.name):
            return pool
        return pool.model_copy(update={"readiness": pool.readiness.model_copy(update={"watch": False})})

    return config.model_copy(update={"pools": type(config.pools)(settle(pool) for pool in config.pools)})


def build_watch_plans(config: Config) -> dict[PoolName, WatchPlan]:
    """How to look at the replicas of each pool that is watched."""
    return {
        pool.name: WatchPlan(pool.engine, tuple(pool.models), pool.readiness.scrape)
        for pool in config.pools
        if pool.readiness.watch
    }


# --- what Envoy gets --------------------------------------------------------------------------------


class Endpoints:
    """The picture as endpoints (health, weight, zone, and whose they are), beside what does not move.

    Follows each pool from picture to picture: what has not changed is not looked at, and most changes are of
    figures that Envoy does not see.
    """

    def __init__(self, fixed: FixedResources) -> None:
        self._fixed = fixed
        self._pools: dict[PoolName, _PoolEndpoints] = {}

    def build(self, view: FleetView) -> Snapshot:
        """What is offered of a picture."""
        return build_snapshot({**self._fixed, Kind.EDS: [self._build_pool(pool) for pool in view.pools]})

    def _build_pool(self, pool: FleetPoolView) -> Resource:
        known = self._pools.get(pool.pool)
        if known is None:
            known = self._pools[pool.pool] = _PoolEndpoints(pool.pool)
        return known.follow(pool.replicas)


class _PoolEndpoints:
    """One pool's assignment as of the last picture."""

    def __init__(self, pool: PoolName) -> None:
        self._assignment = Assignment(pool)
        self._resource = self._assignment.build()
        self._shown: tuple[ReplicaView, ...] = ()

    def follow(self, replicas: tuple[ReplicaView, ...]) -> Resource:
        """The assignment of these."""
        changed = False
        for old, new in list_changes(self._shown, replicas):
            if old is not None and new is not None and _show(old) == _show(new):
                continue
            changed = True
            if old is not None and (
                new is None or new.profile is not old.profile or new.offer is Offer.ABSENT
            ):
                for endpoint in _build_endpoints(old):
                    self._assignment.drop(endpoint)
            for endpoint in () if new is None else _build_endpoints(new):
                self._assignment.put(endpoint)
        if changed:
            self._resource = self._assignment.build()
        self._shown = replicas
        return self._resource


def _show(replica: ReplicaView) -> tuple[object, ...]:
    """What Envoy sees of it."""
    return replica.offer, replica.weight, replica.profile


def _build_endpoints(replica: ReplicaView) -> list[EndpointView]:
    return [] if replica.offer is Offer.ABSENT else _build_endpoint(replica)


def _build_endpoint(replica: ReplicaView) -> list[EndpointView]:
    endpoints = []
    for address in replica.profile.addresses:
        host, _, port = address.rpartition(":")
        endpoints.append(
            EndpointView(
                replica_id=replica.id,
                address=host.strip("[]"),
                port=int(port),
                health=_HEALTH[replica.offer],
                weight=replica.weight,
                zone=replica.profile.zone or "",
                fingerprint=compute_digest(replica.profile.fingerprint),
            )
        )
    return endpoints


# --- what people get --------------------------------------------------------------------------------


def show_replicas(view: FleetView, config: Config, now: float) -> list[ShownReplica]:
    """`/v1/replicas` at this moment: a picture holds on to what has not changed, and pages grow old."""
    watched = {pool.name for pool in config.pools if pool.readiness.watch}
    shown = []
    for pool in view.pools:
        for replica in pool.replicas:
            status = replica.status
            shown.append(
                ShownReplica(
                    id=replica.id,
                    pool=pool.pool,
                    url=replica.profile.url,
                    state=status.state,
                    ready=status.ready,
                    reasons=tuple(
                        reason
                        for reason in status.reasons
                        if pool.pool in watched or reason is not ReadinessReason.METRICS_STALE
                    ),
                    weight=replica.weight if replica.offer is Offer.SERVING else None,
                    running=_whole(status.load.running),
                    waiting=_whole(status.load.waiting),
                    kv_cache_usage=status.load.kv_cache_usage,
                    sample_age_s=None if status.sample is None else max(0.0, now - status.sample.at),
                    incarnation=str(status.incarnation),
                    inflight=status.inflight,
                    cancelling=status.cancelling,
                    fingerprint=list_known(replica.profile.fingerprint),
                    contradictions=tuple(
                        one.describe_contradiction() for one in replica.profile.contradictions
                    ),
                    node=replica.profile.node,
                    zone=replica.profile.zone,
                )
            )
    return shown


def show_pools(
    view: FleetView,
    config: Config,
    count_inflight: Callable[[PoolName], Mapping[Phase, int]],
    show_queue: Callable[[PoolName], QueueView],
    read_discovery: Callable[[Pool], DiscoveryView],
) -> list[ShownPool]:
    """`/v1/pools`."""
    shown = []
    for pool in config.pools:
        seen = view.find(pool.name)
        listed = () if seen is None else seen.replicas
        shown.append(
            ShownPool(
                name=pool.name,
                models=tuple(pool.models),
                engine=pool.engine,
                boundary=pool.boundary,
                replicas=tuple(replica.id for replica in listed if replica.offer is not Offer.ABSENT),
                availability=None if seen is None else seen.availability,
                reason=None if seen is None else seen.reason,
                mix=() if seen is None else seen.mix,
                inflight=count_inflight(pool.name),
                queue=show_queue(pool.name),
                discovery=read_discovery(pool),
            )
        )
    return shown


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
