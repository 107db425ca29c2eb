"""Composition root: builds everything from a `Config`, starts it in order, and stops it in order.

Importing this module builds nothing. `App.start` and `App.stop` are lists; what each line needs
from the line before it is the reason for their order.
"""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry

from envoy_ext.adapters.ads import AdsHub
from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.connect_probe import ConnectProbe
from envoy_ext.adapters.ids import mint_attempt_id, mint_exchange_id, mint_operation_id
from envoy_ext.adapters.ops_http import OpsServer
from envoy_ext.adapters.socket_diag import SocketDiag
from envoy_ext.adapters.webhook import Webhook
from envoy_ext.config import Config
from envoy_ext.domain.fleet_events import Change
from envoy_ext.domain.fleet_view import FleetView
from envoy_ext.domain.slots import CancelBegan, CancelOver
from envoy_ext.observability.headroom import HeadroomMetric
from envoy_ext.observability.logs import LoggingObserver
from envoy_ext.observability.metrics import Metrics, MetricsObserver
from envoy_ext.observability.observers import Observers
from envoy_ext.ports import Store, Trace
from envoy_ext.services.arrivals import Arrivals
from envoy_ext.services.authz import Authz
from envoy_ext.services.background import Background
from envoy_ext.services.cancels import Cancels
from envoy_ext.services.capacity import Capacity
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fences import Fences
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.guarded_store import GuardedStore
from envoy_ext.services.health import HealthState
from envoy_ext.services.hop_reports import HopReports
from envoy_ext.services.leases import Leases
from envoy_ext.services.loop_watch import LoopWatch
from envoy_ext.services.opening import Minting
from envoy_ext.services.queues import Queues
from envoy_ext.services.retention import Retention
from envoy_ext.services.rooms import Rooms
from envoy_ext.services.unrecorded import Unrecorded
from envoy_ext.wiring.callers import build_callers
from envoy_ext.wiring.capacity import build_capacity_policies
from envoy_ext.wiring.doors import EnvoyDoor, build_grpc
from envoy_ext.wiring.exchanges import (
    build_boundaries,
    build_joining,
    build_keeping,
    build_policy,
    build_queue_policy,
    build_rules,
)
from envoy_ext.wiring.fleet import (
    Endpoints,
    build_fleet_pools,
    leave_unasked,
)
from envoy_ext.wiring.jobs import JobParts, build_jobs, build_results
from envoy_ext.wiring.journal import open_journal
from envoy_ext.wiring.lease import LeaseDoors
from envoy_ext.wiring.notes import count_xds, note_change
from envoy_ext.wiring.operations import build_operations, start_operations
from envoy_ext.wiring.ownership import Ownership
from envoy_ext.wiring.replica_keys import build_replica_keys
from envoy_ext.wiring.resource import build_fixed_resources
from envoy_ext.wiring.retention import RetentionNotes, build_retention_policy
from envoy_ext.wiring.tools import build_tools, list_tools
from envoy_ext.wiring.watching import WatchParts, build_cancels, build_watch
from envoy_ext.xds.kinds import Kind

log = logging.getLogger("envoy_ext")

FIRST_LIST_S = 1.0
"""How long a start waits to be told its replicas, before it says to an Envoy that there are none."""
LAST_WORDS_S = 2.0
"""After the terminal events of a stop: how long they may take to pass through Envoy."""


class App:
    """The sidecar. `start` once, `stop` once, on one event loop."""

    def __init__(self, config: Config, trace: Trace | None = None) -> None:
        self.config = leave_unasked(config, build_boundaries(config))
        self._trace = trace
        self.health = HealthState()
        self.registry = CollectorRegistry()
        self.clock = SystemClock()
        self.operations_port = 0
        self.grpc_port = 0
        self._journal: Store | None = None
        self._ownership: Ownership | None = None
        self._exchanges: Exchanges | None = None
        self._grpc: EnvoyDoor | None = None
        self._ops: OpsServer | None = None
        self._lease_doors: LeaseDoors | None = None
        self._fleet: Fleet | None = None
        self._queues: Queues | None = None
        self._jobs: JobParts | None = None
        self._cancels: Cancels | None = None
        self._hub: AdsHub | None = None
        self._watch: WatchParts | None = None
        self._socket_diag: SocketDiag | None = None
        self._webhook = Webhook()
        self._background: list[asyncio.Task[None]] = []

    @property
    def exchanges(self) -> Exchanges:
        """The service, once started."""
        if self._exchanges is None:
            raise RuntimeError("the app is not started")
        return self._exchanges

    @property
    def queues(self) -> Queues:
        """The service, once started."""
        if self._queues is None:
            raise RuntimeError("the app is not started")
        return self._queues

    @property
    def fleet(self) -> Fleet:
        """The service, once started."""
        if self._fleet is None:
            raise RuntimeError("the app is not started")
        return self._fleet

    @property
    def lease_ports(self) -> dict[str, int]:
        """Where workers reach the lease service, by `http` and `grpc`."""
        return {} if self._lease_doors is None else self._lease_doors.ports

    @property
    def ads(self) -> AdsHub:
        """What Envoys are offered over xDS, and how far they are, once started."""
        if self._hub is None:
            raise RuntimeError("the app is not started")
        return self._hub

    async def start(self) -> None:
        """Journal first (it must know what an earlier life left open), listening last."""
        config = self.config
        endpoints = Endpoints(build_fixed_resources(config))
        metrics = Metrics(self.registry, [pool.name for pool in config.pools], list_tools(config))
        capacity = Capacity(build_capacity_policies(config.pools), self.clock)
        observer = Observers([MetricsObserver(metrics), LoggingObserver(), self.health, capacity])
        policy = build_policy(config)
        journal = self._journal = GuardedStore(
            await open_journal(config),
            self.clock,
            observer,
            timeout_s=config.journal.timeout,
        )
        self._run(journal.run(), observer)
        ownership = self._ownership = Ownership(journal, self.clock, policy.lease)
        for work in await ownership.start():
            self._run(work, observer)
        retention = build_retention_policy(config.journal, config.jobs)
        self._run(Retention(journal, self.clock, retention, RetentionNotes(metrics)).run(), observer)
        self.health.holds_seat = lambda: ownership.keeper.may_act
        goes_on = config.journal.on_unavailable == "continue_unrecorded"
        self.health.serves_without_store = lambda: goes_on and journal.down
        HeadroomMetric(self.registry, capacity.list_headrooms)
        hub = self._hub = AdsHub(lambda note: count_xds(note, metrics), observer.note_bug)
        fleet = Fleet(
            build_fleet_pools(config.pools, config.envoy.endpoints == "xds"),
            self.clock,
            on_view=lambda view: self._publish(view, endpoints, hub, metrics, capacity),
            on_change=lambda change: self._take_change(change, metrics),
        )
        self._fleet = fleet
        metrics.fleet.watch_circuits(fleet.circuits.read_state)
        replica_keys = build_replica_keys(config)
        self._run(replica_keys.run(), observer)
        watch = self._watch = build_watch(config, fleet, replica_keys.read, self.clock, observer, metrics)
        self._run(watch.discovery.run(), observer)
        await watch.discovery.wait_told(FIRST_LIST_S)
        fleet.tick()
        background = Background(observer)
        metrics.watch_background(lambda: len(background))
        queue_policy = build_queue_policy(config)
        queues = self._queues = Queues(
            queue_policy,
            [pool.name for pool in config.pools],
            rooms=Rooms(fleet, {pool.name: pool.capacity.concurrency for pool in config.pools}),
            fleet=fleet,
            clock=self.clock,
            observer=observer,
        )
        self._cancels = build_cancels(config, watch.scraper, fleet, background, metrics)
        metrics.admission.watch_queues(queues.count_waiting)
        self._socket_diag = SocketDiag()
        loop_watch = LoopWatch(
            config.limits.max_event_loop_lag,
            queue_policy.classes,
            self.clock,
            on_look=metrics.loop.note_look,
            on_shed=metrics.loop.shed.inc,
        )
        metrics.loop.watch(lambda: loop_watch.lag)
        fences = Fences(fleet.places, ConnectProbe(), self.clock, fleet.note_refusal)
        self._exchanges = Exchanges(
            journal=journal,
            clock=self.clock,
            observer=observer,
            fleet=fleet,
            policy=policy,
            mint=Minting(mint_exchange_id, mint_attempt_id),
            background=background,
            keeper=ownership.keeper,
            queues=queues,
            unrecorded=Unrecorded(queue_policy.classes, lambda: journal.down),
            fences=fences,
            trace=self._trace,
            keeping=build_keeping(config.idempotency),
            results=build_results(config),
            ledger=None if config.tools is None else journal,
            loop_watch=loop_watch,
            max_requests=config.limits.max_requests,
        )
        reports = HopReports(self._exchanges, self.clock, background, fences, self._socket_diag)
        journal.on_back(self._exchanges.note_store_back)
        callers = build_callers(config, metrics)
        if callers is not None:
            self._run(callers.run(), observer)
        rules = build_rules(config, None if callers is None else lambda: callers.rules)
        job_parts = self._jobs = build_jobs(
            config,
            store=journal,
            keeper=ownership.keeper,
            exchanges=self._exchanges,
            fleet=fleet,
            queues=queues,
            failover=policy.failover,
            admit=lambda arrival: arrivals.admit_again(arrival),
            clock=self.clock,
            observer=observer,
            metrics=metrics,
        )
        arrivals = Arrivals(
            self._exchanges,
            journal=journal,
            observer=observer,
            fleet=fleet,
            rules=rules,
            failover=policy.failover,
            mint_operation_id=mint_operation_id,
            background=background,
            queues=queues,
            clock=self.clock,
            joining=build_joining(config.idempotency),
            hand_offs=self._webhook,
            jobs=None if job_parts is None else job_parts.jobs,
        )
        metrics.watch_repeats(lambda: len(arrivals.joiners))
        authz = Authz(
            self._exchanges, journal, rules=rules, queues=queues, clock=self.clock, observer=observer
        )
        tools = build_tools(config, journal, self.clock, observer, background)
        runs = None if job_parts is None else job_parts.runs
        self._grpc = build_grpc(
            config,
            arrivals,
            self._exchanges,
            reports,
            authz,
            observer,
            metrics,
            hub,
            tools,
            runs,
            replica_keys.read,
        )
        self.grpc_port = await self._grpc.start()
        self._ops = build_operations(
            config,
            journal=journal,
            health=self.health,
            exchanges=self._exchanges,
            fleet=fleet,
            queues=queues,
            discovery=watch.discovery,
            capacity=capacity,
            callers=callers,
            clock=self.clock,
            observer=observer,
            metrics=metrics,
        )
        self.operations_port = await start_operations(self._ops, config.operations)
        self._lease_doors = LeaseDoors(config, Leases(self._exchanges, fleet.streams, self.clock))
        await self._lease_doors.start()
        self._run(fleet.run(), observer)
        self._run(loop_watch.run(), observer)
        self._run(watch.watcher.run(), observer)
        if job_parts is not None:
            self._run(job_parts.runner.run(), observer)
        self.health.started = True

    async def stop(self) -> None:
        """Take no more, let streams end, end the rest with the truth, flush the journal, close."""
        self.health.draining = True
        if self._exchanges is not None and self._grpc is not None:
            await self._grpc.set_serving(False)
            self._exchanges.start_draining()
            if not await self._wait_idle(self.config.shutdown.grace):
                self._exchanges.end_all()
                await self._wait_idle(LAST_WORDS_S)
            if self._jobs is not None:
                await self._jobs.stop()
            await self._grpc.stop(LAST_WORDS_S)
            await self._exchanges.aclose()
        await self._webhook.close()
        if self._socket_diag is not None:
            self._socket_diag.close()
        if self._lease_doors is not None:
            await self._lease_doors.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._watch is not None:
            await self._watch.close()
        if self._ops is not None:
            await self._ops.stop()
        if self._ownership is not None:
            await self._ownership.stop()
        if self._journal is not None:
            await self._journal.close()

    async def _wait_idle(self, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.exchanges.wait_idle()
                return True
        return False

    def _run(self, work: Coroutine[Any, Any, None], observer: Observers) -> None:
        self._background.append(asyncio.get_running_loop().create_task(self._keep(work, observer)))

    async def _keep(self, work: Coroutine[Any, Any, None], observer: Observers) -> None:
        """Background work that ends by an exception leaves a sidecar that only a restart can help."""
        try:
            await work
        except Exception as error:
            # Whatever it was, nobody waits for this task: unsaid, it would end without a trace.
            observer.note_bug("background work", error)
            self.health.fatal = "background work has ended"

    def _take_change(self, change: Change, metrics: Metrics) -> None:
        note_change(change, metrics)
        if isinstance(change, CancelBegan) and self._cancels is not None:
            self._cancels.note_began(change)
        if isinstance(change, CancelOver) and self._queues is not None:
            self._queues.note_free(change.pool)

    def _publish(
        self, view: FleetView, endpoints: Endpoints, hub: AdsHub, metrics: Metrics, capacity: Capacity
    ) -> None:
        hub.publish(endpoints.build(view))
        metrics.fleet.note_view(view)
        capacity.note_fleet(view)
        if self._queues is not None:
            self._queues.look_at_all()  # behind the endpoints: whoever is let in may be sent to a new one

    async def wait_ready(self, limit_s: float) -> bool:
        """Until every pool has a replica that serves, and an Envoy knows; False when the limit came first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.fleet.wait_serving()
                if self.config.envoy.endpoints == "xds":
                    await self.ads.wait_taken(Kind.EDS)
                return True
        return False


def exempt_from_collection() -> None:
    """Have the garbage collector leave alone what is there, which stays: once, after a start.

    Imports alone leave a few hundred thousand objects, and each full collection looks at all of them,
    for 50 to 90 ms in which no stream moves. What comes later is collected as ever. For a process that is a
    sidecar and nothing else.
    """
    gc.collect()
    gc.freeze()
