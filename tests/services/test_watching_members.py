"""Who is looked at: whoever is listed, from then on, and nobody after that."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.domain.discovery import Member, MemberChanges, Standing
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_view import ViewPolicy
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.sample import Sample, ScrapeFailure, ScrapeTarget
from envoy_ext.services.fleet import Fleet, FleetPool
from envoy_ext.services.watching import SPREAD_FROM, Watcher, WatchPlan
from tests.support.members import member

POOL, UNWATCHED = PoolName("chat"), PoolName("unwatched")


class Source:
    """Counts who is looked at, and who is being asked for a token that never comes."""

    def __init__(self) -> None:
        self.looks: dict[str, int] = {}
        self.asking: set[str] = set()
        self.changed = asyncio.Event()

    async def scrape(self, target: ScrapeTarget) -> Sample | ScrapeFailure:
        self.looks[target.url] = self.looks.get(target.url, 0) + 1
        self.changed.set()
        return Sample(at=asyncio.get_running_loop().time())

    async def probe_health(self, target: ScrapeTarget) -> bool | ScrapeFailure:
        return True

    async def probe_model(self, target: ScrapeTarget, model: str, api_path: str) -> bool | ScrapeFailure:
        self.asking.add(target.url)
        self.changed.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.asking.discard(target.url)
            self.changed.set()
        return True

    async def read_identity(self, target: ScrapeTarget, pool: PoolName) -> Fingerprint:
        return Fingerprint(pool)

    async def wait(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def wait_looks(self, url: str, more: int = 3) -> None:
        """Until it was looked at so many times more."""
        count = self.looks.get(url, 0) + more
        await self.wait(lambda: self.looks.get(url, 0) >= count)


class Watched:
    """A fleet and its watcher, told of the same changes."""

    def __init__(self) -> None:
        self.source, clock = Source(), SystemClock()
        policy = ReadinessPolicy(scrape_s=0.01)
        pools = [
            FleetPool(name, Fingerprint(name), policy, name == POOL, True, ViewPolicy())
            for name in (POOL, UNWATCHED)
        ]
        self.fleet = Fleet(pools, clock, on_view=lambda view: None, on_change=lambda change: None)
        self.watcher = Watcher(
            self.source,
            self.source,
            self.fleet,
            clock,
            {POOL: WatchPlan("generic", ("m",), interval_s=0.01)},
            lambda pool, replica, reason: None,
            self._note_bug,
        )

    def _note_bug(self, where: str, error: BaseException) -> None:
        raise error

    def change(self, pool: PoolName = POOL, **changes: tuple[object, ...]) -> None:
        told = MemberChanges(**changes)  # type: ignore[arg-type]
        self.fleet.change_members(pool, told)
        self.watcher.change_members(pool, told)
        self.fleet.tick()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Source]:
        task = asyncio.create_task(self.watcher.run())
        try:
            yield self.source
            assert not task.done()
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def at(name: str, **facts: object) -> Member:
    return member(name, url=f"http://{name}", **facts)


async def test_whoever_comes_is_looked_at_and_whoever_goes_is_not_any_more() -> None:
    watched = Watched()
    watched.change(added=(at("a"), at("b")))
    async with watched.run() as source:
        await source.wait_looks("http://a")
        watched.change(added=(at("c"),), removed=(ReplicaId("a"),))
        await source.wait_looks("http://c")
        looks = source.looks["http://a"]
        await source.wait_looks("http://b", 10)
        assert source.looks["http://a"] == looks


async def test_whoever_went_before_the_watcher_ran_is_never_looked_at() -> None:
    watched = Watched()
    watched.change(added=(at("a"), at("b")))
    watched.change(removed=(ReplicaId("a"),))
    async with watched.run() as source:
        await source.wait_looks("http://b")
    assert "http://a" not in source.looks


async def test_a_question_to_whoever_goes_is_given_up() -> None:
    watched = Watched()
    watched.change(added=(at("a"), at("b")))
    async with watched.run() as source:
        await source.wait(lambda: source.asking == {"http://a", "http://b"})
        watched.change(removed=(ReplicaId("a"),))
        await source.wait(lambda: source.asking == {"http://b"})


async def test_another_one_under_the_same_id_is_asked_anew() -> None:
    watched = Watched()
    watched.change(added=(at("a"),))
    async with watched.run() as source:
        await source.wait(lambda: source.asking == {"http://a"})
        watched.change(replaced=(at("a", identity="uid-2"),))
        await source.wait(lambda: not source.asking)
        await source.wait(lambda: source.asking == {"http://a"})


async def test_whoever_moved_is_looked_at_where_it_is() -> None:
    watched = Watched()
    watched.change(added=(at("a"),))
    async with watched.run() as source:
        await source.wait_looks("http://a")
        watched.change(changed=(member("a", url="http://elsewhere"),))
        await source.wait_looks("http://elsewhere")
        looks = source.looks["http://a"]
        await source.wait_looks("http://elsewhere", 10)
        assert source.looks["http://a"] == looks


async def test_whoever_only_stands_otherwise_is_looked_at_as_before() -> None:
    watched = Watched()
    watched.change(added=(at("a"),))
    async with watched.run() as source:
        await source.wait(lambda: source.asking == {"http://a"})
        asked = asyncio.all_tasks()
        watched.change(changed=(at("a", standing=Standing.HELD),))
        await source.wait_looks("http://a")
        assert {one for one in asked if one.done()} == set(), "no question was broken off"


async def test_pools_without_a_plan_are_not_looked_at() -> None:
    watched = Watched()
    watched.change(added=(at("a"),))
    watched.change(UNWATCHED, added=(at("b"),))
    async with watched.run() as source:
        await source.wait_looks("http://a", 10)
    assert set(source.looks) == {"http://a"}


async def test_many_that_come_at_once_are_not_looked_at_in_one_moment() -> None:
    watched = Watched()
    many = tuple(at(f"r{number}") for number in range(SPREAD_FROM + 4))
    async with watched.run() as source:
        watched.change(added=many)
        await source.wait_looks("http://r0", 1)
        assert len(source.looks) < len(many)
        await source.wait(lambda: len(source.looks) == len(many))


async def test_members_that_come_and_go_in_one_turn_of_the_loop_leave_nothing_running() -> None:
    watched = Watched()
    async with watched.run() as source:
        await asyncio.sleep(0)
        for _ in range(50):
            watched.change(added=(at("a"),))
            watched.change(removed=(ReplicaId("a"),))
        watched.change(added=(at("b"),))
        await source.wait_looks("http://b")
    assert "http://a" not in source.looks
