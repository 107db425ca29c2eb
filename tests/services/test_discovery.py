"""What sources tell becomes changes of members, and a source that fails changes nothing."""

import asyncio
from collections.abc import AsyncGenerator

from envoy_ext.domain.discovery import Listing, ListingFailed, MemberChanges, Told
from envoy_ext.domain.ids import PoolName
from envoy_ext.services.discovery import Discovery
from tests.support.clock import ManualClock
from tests.support.members import member

CHAT, EMBED = PoolName("chat"), PoolName("embed")
AWAY = ListingFailed("unreachable", "the API cannot be reached")


class Source:
    """Tells what a test puts in."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Told] = asyncio.Queue()
        self.closed = False

    async def follow(self) -> AsyncGenerator[Told, None]:
        try:
            while True:
                yield await self.told.get()
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
        self.discovery = Discovery(
            self.sources,
            self.clock,
            listeners=[lambda pool, changes: self.changes.append((pool, changes))],
            on_told=self.up.__setitem__,
        )

    async def __aenter__(self) -> "Played":
        self._task = asyncio.create_task(self.discovery.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert all(source.closed for source in self.sources.values())

    async def tell(self, told: Told, pool: PoolName = CHAT) -> None:
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
