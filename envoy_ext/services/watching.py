"""Looks at every replica once an interval, and asks those for a token whose model has not answered yet.

One that has answered is asked what it serves, before it gets work and again once a minute.

Each replica has tasks of its own, from the moment it is listed until it is not: a page that hangs
delays nobody else's, and a bug of ours that a page runs into costs that look and no other. What a look gave
goes to the fleet, which judges it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from envoy_ext.domain.discovery import Member, MemberChanges
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import ControlCallFailed, ControlCallPassed, Scraped, ScrapeFailed
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.sample import ScrapeFailure, ScrapeTarget
from envoy_ext.ports import Clock, IdentitySource, ScrapeSource
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.proving import Declined, Failed, Passed, Proof, Question, ask_for_proof

SPREAD_FROM: Final = 16
"""From so many that come at once on, first looks are spread over the interval."""


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """How to look at the replicas of one pool."""

    engine: str
    models: tuple[str, ...]
    """The names its pool serves; a control call asks by the first that the engine knows."""
    interval_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """One replica and how to look at it."""

    replica: ReplicaId
    pool: PoolName
    target: ScrapeTarget
    models: tuple[str, ...]
    interval_s: float


class Watcher:
    """Owns the looking; `run` until cancelled. Pools without a plan are not looked at."""

    def __init__(
        self,
        source: ScrapeSource,
        identities: IdentitySource,
        fleet: Fleet,
        clock: Clock,
        plans: Mapping[PoolName, WatchPlan],
        on_failure: Callable[[PoolName, ReplicaId, str], None],
        note_bug: Callable[[str, BaseException], None],
    ) -> None:
        self._source = source
        self._identities = identities
        self._fleet = fleet
        self._clock = clock
        self._plans = plans
        self._on_failure = on_failure
        self._note_bug = note_bug
        self._answered: dict[ReplicaId, Question] = {}
        self._group = asyncio.TaskGroup()
        self._running = False
        self._waiting: dict[ReplicaId, tuple[Watched, float]] = {}
        """Listed before `run`; with how long the first look waits."""
        self._tasks: dict[ReplicaId, tuple[Watched, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Watch whoever is listed."""
        try:
            async with self._group:
                self._running = True
                for watched, wait_s in self._waiting.values():
                    self._start(watched, wait_s)
                self._waiting.clear()
                await asyncio.Event().wait()
        finally:
            self._running = False

    def change_members(self, pool: PoolName, changes: MemberChanges) -> None:
        """Look at those that came, and no more at those that went. The fleet has heard of both."""
        plan = self._plans.get(pool)
        if plan is None:
            return
        for replica in changes.removed:
            self._stop(replica)
        come = (*changes.replaced, *changes.added)
        for number, member in enumerate(come):
            self._stop(member.replica)
            wait_s = plan.interval_s * number / len(come) if len(come) > SPREAD_FROM else 0.0
            self._start(build_watched(pool, member, plan), wait_s)
        for member in changes.changed:
            watched = build_watched(pool, member, plan)
            if self._find_watched(member.replica) != watched:
                self._stop(member.replica)
                self._start(watched, 0.0)

    def _find_watched(self, replica: ReplicaId) -> Watched | None:
        known = self._tasks.get(replica) or self._waiting.get(replica)
        return None if known is None else known[0]

    def _start(self, watched: Watched, wait_s: float) -> None:
        if not self._running:
            self._waiting[watched.replica] = watched, wait_s
            return
        self._tasks[watched.replica] = watched, self._group.create_task(self._watch(watched, wait_s))

    def _stop(self, replica: ReplicaId) -> None:
        self._waiting.pop(replica, None)
        self._answered.pop(replica, None)
        running = self._tasks.pop(replica, None)
        if running is not None:
            running[1].cancel()

    async def _watch(self, watched: Watched, wait_s: float) -> None:
        asking: asyncio.Task[None] | None = None
        try:
            await asyncio.sleep(wait_s)
            while True:
                due = self._clock.now() + watched.interval_s
                await self._look(watched)
                # A task of its own: a model that loads for minutes holds no look up.
                if asking is None or asking.done():
                    asking = self._ask_if_due(watched)
                await asyncio.sleep(max(0.0, due - self._clock.now()))
        finally:
            if asking is not None:
                asking.cancel()

    def _ask_if_due(self, watched: Watched) -> asyncio.Task[None] | None:
        if self._fleet.is_control_call_due(watched.replica):
            return self._group.create_task(self._ask(watched))
        if self._fleet.is_fingerprint_due(watched.replica):
            return self._group.create_task(self._identify(watched, self._fleet.incarnation(watched.replica)))
        return None

    async def _identify(self, watched: Watched, incarnation: int) -> None:
        told = Fingerprint(watched.pool)
        with self._containing_bugs("reading what an engine serves"):
            told = await self._identities.read_identity(watched.target, watched.pool)
        self._fleet.note_fingerprint(watched.replica, incarnation, told)

    async def _look(self, watched: Watched) -> None:
        with self._containing_bugs("a look at a replica"):
            asked_at = self._clock.now()
            looked = await self._source.scrape(watched.target)
            if isinstance(looked, ScrapeFailure):
                self._on_failure(watched.pool, watched.replica, looked.reason)
                self._fleet.receive(watched.replica, ScrapeFailed(looked))
            else:
                self._fleet.receive(watched.replica, Scraped(looked, asked_at))

    @contextlib.contextmanager
    def _containing_bugs(self, where: str) -> Iterator[None]:
        """Tell a bug of ours, and go on."""
        try:
            yield
        except Exception as error:
            # Whatever one replica's answer did to its reader, all the others are still looked at.
            self._note_bug(where, error)

    async def _ask(self, watched: Watched) -> None:
        """One control call, first in the form that was answered last time."""
        incarnation = self._fleet.incarnation(watched.replica)
        answered = self._answered.get(watched.replica)
        proof: Proof | None = Failed("the sidecar could not read its answer")
        with self._containing_bugs("a control call"):
            proof = await ask_for_proof(self._source, watched.target, watched.models, answered)
        if isinstance(proof, Passed | Declined):
            # Before it gets work: a replay may depend on what it is.
            await self._identify(watched, incarnation)
        match proof:
            case Passed(question):
                self._answered[watched.replica] = question
                self._fleet.receive(watched.replica, ControlCallPassed(incarnation))
            case Declined(detail):
                self._fleet.receive(watched.replica, ControlCallPassed(incarnation, declined=detail))
            case Failed(detail, unanswered):
                self._fleet.receive(watched.replica, ControlCallFailed(incarnation, detail, unanswered))
            case None:
                pass  # it was this process that did not run: the model is asked again
            case _:
                assert_never(proof)


def build_watched(pool: PoolName, member: Member, plan: WatchPlan) -> Watched:
    """How to look at a member of a pool."""
    return Watched(
        replica=member.replica,
        pool=pool,
        target=ScrapeTarget(
            url=member.url,
            engine=plan.engine,
            metrics_url=member.metrics_url,
            dcgm_url=member.dcgm_url,
            gpus=member.gpus,
            pool=pool,
        ),
        models=plan.models,
        interval_s=plan.interval_s,
    )
