"""Looking at replicas: each at its own pace, and control calls until a model has answered."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.domain.discovery import MemberChanges
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import ControlCallFailed, ControlCallPassed, FleetEvent
from envoy_ext.domain.fleet_view import FleetView, Offer, ViewPolicy
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.sample import Sample, ScrapeFailure, ScrapeTarget
from envoy_ext.services.fleet import Fleet, FleetPool
from envoy_ext.services.proving import CONTROL_PATHS
from envoy_ext.services.watching import Watcher, WatchPlan
from tests.support.members import member

POOL = PoolName("chat")


@dataclass
class Source:
    """Replicas by URL: what they answer, and what they were asked."""

    clock: SystemClock = field(default_factory=SystemClock)
    hanging: set[str] = field(default_factory=set)
    broken: dict[str, str] = field(default_factory=dict)
    """What of ours raises when it reads an answer of the replica at an URL: the name of the method."""
    bugs: list[str] = field(default_factory=list)
    slow: set[str] = field(default_factory=set)
    """Their models answer from the second look on."""
    speaks: str = CONTROL_PATHS[0]
    busy: bool = False
    """It computes for others, and has no time for a control call."""
    starved: int = 0
    """So many control calls run out of time because this process does not run."""
    scraped: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    progress: float = 0
    identity: Fingerprint = field(default_factory=lambda: Fingerprint(POOL, model="m"))
    identified: list[str] = field(default_factory=list)

    async def scrape(self, target: ScrapeTarget) -> Sample | ScrapeFailure:
        self.scraped.append(target.url)
        self.run_into_a_bug(target, "scrape")
        if target.url in self.hanging:
            await asyncio.Event().wait()
        self.progress += self.busy
        return Sample(
            at=self.clock.now(), running=2 * self.busy, waiting=0, kv_cache_usage=0, progress=self.progress
        )

    async def probe_health(self, target: ScrapeTarget) -> bool | ScrapeFailure:
        return True

    async def probe_model(self, target: ScrapeTarget, model: str, api_path: str) -> bool | ScrapeFailure:
        self.asked.append((target.url, api_path))
        self.run_into_a_bug(target, "probe_model")
        if self.starved:
            self.starved -= 1
            return ScrapeFailure(self.clock.now(), "starved", "this process was 3.0 s late")
        if self.busy or (target.url in self.slow and self.scraped.count(target.url) < 2):
            return ScrapeFailure(self.clock.now(), "timeout", "")
        if api_path == self.speaks:
            return True
        return ScrapeFailure(self.clock.now(), "unsupported", "answered 404")

    async def read_identity(self, target: ScrapeTarget, pool: PoolName) -> Fingerprint:
        self.identified.append(target.url)
        self.run_into_a_bug(target, "read_identity")
        return self.identity

    def run_into_a_bug(self, target: ScrapeTarget, method: str) -> None:
        if self.broken.get(target.url) == method:
            raise OverflowError(method)

    def note_bug(self, where: str, error: BaseException) -> None:
        self.bugs.append(str(error))


class Listening(Fleet):
    """A fleet that remembers what it heard."""

    def __init__(self, *parts: Any) -> None:
        self.heard: list[FleetEvent | Fingerprint] = []
        self.told = asyncio.Event()
        """An engine has told what it serves."""
        super().__init__(*parts)

    def receive(self, replica: ReplicaId, event: FleetEvent) -> None:
        self.heard.append(event)
        super().receive(replica, event)

    def note_fingerprint(self, replica: ReplicaId, incarnation: int, told: Fingerprint) -> None:
        self.heard.append(told)
        self.told.set()
        super().note_fingerprint(replica, incarnation, told)


async def watch(
    source: Source, names: str, serving: int, *, identified: bool = False
) -> list[FleetEvent | Fingerprint]:
    """Run a watcher over replicas of these names until so many of them serve; what the fleet heard.

    `identified`: and until one of them has told what it serves.
    """
    until = asyncio.Event()
    pool = FleetPool(POOL, Fingerprint(POOL), ReadinessPolicy(scrape_s=0.02), True, True, ViewPolicy())
    fleet = Listening([pool], source.clock, lambda view: read(view, until, serving), lambda change: None)
    plans = {POOL: WatchPlan("generic", ("m",), interval_s=0.02)}
    watcher = Watcher(
        source, source, fleet, source.clock, plans, lambda pool, replica, reason: None, source.note_bug
    )
    listed = MemberChanges(added=tuple(member(name, url=f"http://{name}") for name in names))
    fleet.change_members(POOL, listed)
    watcher.change_members(POOL, listed)
    running = [asyncio.create_task(watcher.run()), asyncio.create_task(fleet.run())]
    try:
        async with asyncio.timeout(10):
            await until.wait()
            if identified:
                await fleet.told.wait()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return fleet.heard


def read(view: FleetView, until: asyncio.Event, serving: int) -> None:
    """Set the event when enough replicas serve."""
    (pool,) = view.pools
    if sum(one.offer is Offer.SERVING for one in pool.replicas) == serving:
        until.set()


async def test_every_replica_is_looked_at_and_asked_until_its_model_has_answered() -> None:
    source = Source()
    await watch(source, "ab", serving=2)
    assert {"http://a", "http://b"} <= set(source.scraped)
    assert sorted(source.asked) == [("http://a", CONTROL_PATHS[0]), ("http://b", CONTROL_PATHS[0])]


async def test_a_server_without_completions_is_asked_for_a_chat() -> None:
    source = Source(speaks=CONTROL_PATHS[1])
    await watch(source, "a", serving=1)
    assert source.asked == [("http://a", path) for path in CONTROL_PATHS[:2]]


async def test_a_page_that_hangs_delays_nobody_else() -> None:
    source = Source(hanging={"http://a"})
    await watch(source, "ab", serving=1)
    assert source.scraped.count("http://a") == 1
    assert source.scraped.count("http://b") >= 1


@pytest.mark.parametrize(
    ("method", "serving"),
    [("scrape", 1), ("probe_model", 1), ("read_identity", 2)],
)
async def test_an_answer_that_breaks_our_reader_is_a_bug_told_and_ends_no_looking(
    method: str, serving: int
) -> None:
    """What an engine serves is a matter of where replays go: without it, its replica serves all the same."""
    source = Source(broken={"http://a": method}, slow={"http://b"})
    heard = await watch(source, "ab", serving=serving)
    assert source.scraped.count("http://b") > 1
    assert set(source.bugs) == {method}
    failed = {event.detail for event in heard if isinstance(event, ControlCallFailed)} - {"timeout"}
    assert failed == ({"the sidecar could not read its answer"} if method == "probe_model" else set())


async def test_an_engine_that_is_too_busy_for_a_control_call_has_a_model() -> None:
    source = Source(busy=True)
    await watch(source, "a", serving=1)
    assert source.asked, "it was asked, and the silence held against nobody"


async def test_a_control_call_that_ran_out_of_our_own_time_says_nothing_of_the_model() -> None:
    source = Source(starved=3)
    heard = await watch(source, "a", serving=1)
    calls = [event for event in heard if isinstance(event, ControlCallPassed | ControlCallFailed)]
    assert calls == [ControlCallPassed(1)]
    assert len(source.asked) == 4


async def test_a_replica_is_asked_what_it_serves_before_it_gets_work() -> None:
    source = Source()
    heard = await watch(source, "a", serving=1)
    kinds = [type(event) for event in heard]
    assert kinds.index(Fingerprint) < kinds.index(ControlCallPassed)
    assert source.identified == ["http://a"]


async def test_an_engine_that_was_too_busy_to_be_asked_first_is_asked_behind_that() -> None:
    source = Source(busy=True)
    heard = await watch(source, "a", serving=1, identified=True)
    assert source.identity in heard
    assert not any(isinstance(event, ControlCallPassed) for event in heard)
