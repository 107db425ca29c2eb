"""Every journal store there is, behind one fixture."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envoy_ext import ports
from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.journal_sqlite import SqliteJournal


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


@pytest.fixture(params=["memory", "sqlite-normal", "sqlite-full", "sqlite-shared"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    path = tmp_path / "journal.db"
    in_memory = MemoryJournal(exclusive=False)

    async def open_memory() -> ports.Store:
        return in_memory

    stores = {
        "memory": Store("memory", False, True, open_memory),
        "sqlite-normal": Store("sqlite-normal", True, False, lambda: SqliteJournal.open(path)),
        "sqlite-full": Store("sqlite-full", True, False, lambda: SqliteJournal.open(path, "full")),
        "sqlite-shared": Store("sqlite-shared", True, True, lambda: SqliteJournal.open(path, shared=True)),
    }
    chosen = stores[request.param]
    yield chosen
    await chosen.close()


@pytest.fixture
async def journal(store: Store) -> ports.Store:
    return await store.open()
