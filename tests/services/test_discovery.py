"""What sources tell becomes changes of members, and a source that fails changes nothing."""

import asyncio
from collections.abc import AsyncGenerator

from envoy_ext.domain.discovery import Listing, ListingFailed, MemberChanges, Told
from envoy_ext.domain.ids import PoolName
from envoy_ext.services.discovery import BROKEN, FOLLOW_AGAIN_S, Discovery
from tests.support.clock import ManualClock
from tests.support.members import member

CHAT, EMBED = PoolName("chat"), PoolName("embed")
AWAY = ListingFailed("unreachable", "the API cannot be reached")


class Source:
    """Tells what a test puts in."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Told | Exception] = asyncio.Queue()
        self.closed = False

    async def follow(self) -> AsyncGenerator[Told, None]:
        try:
            while True:
                told = await self.told.get()
                if isinstance(told, Exception):
                    self.told.task_done()
                    raise told
                yield told
                self.told.task_done()
        finally:
            self.closed = True


class Played:
    """A service that runs over two pools, and what it told."""

    def __init__(self) -> None:
        self.sources = {CHAT: Source(), EMBED: Source()}
        self.clock = ManualClock()
        self.changes: list[tuple[PoolName, MemberChanges]] = []
        self.up: dict[PoolName, bool] = {}
        self.bugs: list[tuple[str, BaseException]] = []
        self.pauses: list[float] = []
        self.resumed = asyncio.Event()
        self.discovery = Discovery(
            self.sources,
            self.clock,
            listeners=[lambda pool, changes: self.changes.append((pool, changes))],
            on_told=self.up.__setitem__,
            on_bug=lambda where, bug: self.bugs.append((where, bug)),
            sleep=self._pause,
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.resumed.wait()

    async def __aenter__(self) -> "Played":
        self._task = asyncio.create_task(self.discovery.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert all(source.closed for source in self.sources.values())

    async def tell(self, told: Told | Exception, pool: PoolName = CHAT) -> None:
        self.sources[pool].told.put_nowait(told)
        await self.sources[pool].told.join()

    def names(self) -> list[tuple[list[str], list[str]]]:
        """Who came and who went, change by change."""
        return [([one.replica for one in made.added], list(made.removed)) for _, made in self.changes]


async def test_lists_become_changes() -> None:
    async with Played() as played:
        await played.tell(Listing((member("a"), member("b"))))
        await played.tell(Listing((member("b"), member("a"))))
        await played.tell(Listing((member("b"), member("c"))))
        await played.tell(Listing(()))
    assert played.names() == [(["a", "b"], []), (["c"], ["a"]), ([], ["b", "c"])]
    assert {pool for pool, _ in played.changes} == {CHAT}


async def test_a_source_that_fails_changes_nothing_and_its_state_says_so() -> None:
    async with Played() as played:
        assert played.discovery.read_state(CHAT).listed_at is None
        await played.tell(Listing((member("a"),)))
        listed_at = played.discovery.read_state(CHAT).listed_at
        played.clock.advance(60)
        await played.tell(AWAY)
        played.clock.advance(60)
        await played.tell(AWAY)
        state = played.discovery.read_state(CHAT)
        assert (state.failure, state.failed_at, state.listed_at) == (AWAY, 1_060.0, listed_at)
        assert played.up == {CHAT: False}
        assert played.names() == [(["a"], [])]
        await played.tell(Listing((member("a"),)))
        assert played.discovery.read_state(CHAT).failure is None
        assert played.up == {CHAT: True}
        assert played.discovery.read_state(EMBED).failure is None
    assert played.names() == [(["a"], [])]


async def test_a_start_waits_until_every_source_has_told_something_or_for_a_while() -> None:
    async with Played() as played:
        await played.discovery.wait_told(0.01)
        waiting = asyncio.create_task(played.discovery.wait_told(60))
        await played.tell(Listing(()))
        assert not waiting.done()
        await played.tell(AWAY, EMBED)
        await waiting


async def test_one_id_in_two_pools_is_two_replicas_that_can_be_told_apart() -> None:
    """Pods of one name in two namespaces, and every order names a replica by its id alone."""
    async with Played() as played:
        await played.tell(Listing((member("vllm-0", 1),)))
        await played.tell(Listing((member("vllm-0", 2), member("vllm-1", 3))), EMBED)
        await played.tell(Listing(()))
        await played.tell(Listing((member("vllm-0", 2), member("vllm-1", 3))), EMBED)
        await played.tell(Listing((member("vllm-0", 4),)))
        await played.tell(Listing(()), EMBED)
    assert played.names() == [
        (["vllm-0"], []),
        (["embed:vllm-0", "vllm-1"], []),
        ([], ["vllm-0"]),
        (["vllm-0"], []),
        ([], ["embed:vllm-0", "vllm-1"]),
    ]


async def test_a_bug_in_one_source_is_told_and_the_source_is_followed_anew() -> None:
    bug = ZeroDivisionError("ours")
    async with Played() as played:
        await played.tell(Listing((member("a"),)))
        await played.tell(bug)
        await played.tell(Listing((member("e"),)), EMBED)
        assert played.bugs == [("following the replicas of chat", bug)]
        assert played.pauses == [FOLLOW_AGAIN_S], "not at once: it may end so each time"
        assert played.discovery.read_state(CHAT).failure == BROKEN
        assert played.up == {CHAT: False, EMBED: True}
        played.resumed.set()
        await played.tell(Listing((member("a"), member("b"))))
        assert played.discovery.read_state(CHAT).failure is None
    assert played.names() == [(["a"], []), (["e"], []), (["b"], [])], "the last list stood meanwhile"
