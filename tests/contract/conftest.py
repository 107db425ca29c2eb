"""Every journal store there is, behind one fixture."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envoy_ext import ports
from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_way import RedisPlace
from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.services.guarded_store import GuardedStore
from tests.support.clock import ManualClock
from tests.support.losing_relay import LosingRelay
from tests.support.redis_scripts import EVERY_SCRIPT
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sidecar import Watcher


@dataclass
class Store:
    """One place where a journal lives; `open` opens that same place, again after a close."""

    name: str
    survives_process_death: bool
    shared: bool
    """Whether several may have it open, as gateways that share it do."""
    _open: Callable[[], Awaitable[ports.Store]]
    _opened: list[ports.Store] = field(default_factory=list)

    async def open(self) -> ports.Store:
        journal = await self._open()
        self._opened.append(journal)
        return journal

    async def close(self) -> None:
        for journal in self._opened:
            await journal.close()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that only need one; each has a prefix of its own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


_PREFIXES = itertools.count(1)


@pytest.fixture
def prefix() -> str:
    """Of a journal that nobody else has."""
    return f"test-{next(_PREFIXES)}"


@pytest.fixture(params=["memory", "guarded", "sqlite-normal", "sqlite-full", "sqlite-shared", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> AsyncIterator[Store]:
    path = tmp_path / "journal.db"
    in_memory = MemoryJournal(exclusive=False)

    async def open_memory() -> ports.Store:
        return in_memory

    async def open_redis() -> ports.Store:
        server: RedisServer = request.getfixturevalue("redis")
        return await RedisJournal.open(RedisPlace(nodes=(("127.0.0.1", server.port),)), prefix)

    async def open_guarded() -> ports.Store:
        return GuardedStore(in_memory, ManualClock(), Watcher(), timeout_s=3.0)

    stores = {
        "memory": Store("memory", False, True, open_memory),
        "guarded": Store("guarded", False, True, open_guarded),
        "sqlite-normal": Store("sqlite-normal", True, False, lambda: SqliteJournal.open(path)),
        "sqlite-full": Store("sqlite-full", True, False, lambda: SqliteJournal.open(path, "full")),
        "sqlite-shared": Store("sqlite-shared", True, True, lambda: SqliteJournal.open(path, shared=True)),
        "redis": Store("redis", True, True, open_redis),
    }
    chosen = stores[request.param]
    yield chosen
    await chosen.close()


@pytest.fixture
async def journal(store: Store) -> ports.Store:
    return await store.open()


@pytest.fixture
def archive(journal: ports.Store) -> ports.Archive:
    """The same store, as what it has kept."""
    return journal


@pytest.fixture
async def relay(redis: RedisServer) -> AsyncIterator[LosingRelay]:
    async with LosingRelay(redis.port) as relay:
        yield relay


@pytest.fixture
async def behind(redis: RedisServer, relay: LosingRelay, prefix: str) -> AsyncIterator[RedisJournal]:
    """A journal whose answers can be lost."""
    opened = await RedisJournal.open(RedisPlace(nodes=(("127.0.0.1", relay.port),)), prefix)
    with redis.ask() as asked:
        for script in EVERY_SCRIPT:  # else the first answer is that it does not know them
            asked.script_load(script.text)
    yield opened
    await opened.close()
