"""The replicas' own keys, by pool: read from files at the start, and again when a file has changed.

A key is held here and nowhere else: whoever sends it asks for it at that moment, and keeps none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from envoy_ext.domain.errors import ConfigError
from envoy_ext.domain.ids import PoolName

LOOK_EVERY_S: Final = 1.0

ReadKey = Callable[[PoolName | None], str | None]
"""The key of a pool's replicas at this moment; None where they ask for none."""


class KeySource(Protocol):
    """One file. Both calls may block on a disk."""

    def read_mark(self) -> object:
        """What changes with the file's content."""

    def load(self) -> str:
        """The key, or a `ConfigError`."""


@dataclass(slots=True)
class _Held:
    source: KeySource
    key: str
    seen: object
    tried: object


class ReplicaKeys:
    """Used from one event loop; the files are read beside it."""

    def __init__(
        self,
        sources: Mapping[PoolName, KeySource],
        on_refused: Callable[[PoolName, str], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_refused` is told of a file that cannot be used, and why; the key before it stays.

        Raises:
            ConfigError: a file cannot be used at the start.
        """
        self._held: dict[PoolName, _Held] = {}
        for pool, source in sources.items():
            mark = source.read_mark()
            self._held[pool] = _Held(source, source.load(), mark, mark)
        self._on_refused = on_refused
        self._sleep = sleep

    def read(self, pool: PoolName | None) -> str | None:
        """The key of a pool's replicas."""
        held = None if pool is None else self._held.get(pool)
        return None if held is None else held.key

    async def run(self) -> None:
        """Look after the files until cancelled."""
        while self._held:
            await self._sleep(LOOK_EVERY_S)
            for pool in self._held:
                await self.look(pool)

    async def look(self, pool: PoolName) -> None:
        """Read a pool's file if it is another one, and was the same at the last look."""
        held = self._held[pool]
        mark = await asyncio.to_thread(held.source.read_mark)
        settled, held.seen = mark == held.seen, mark
        if not settled or mark == held.tried:
            return
        held.tried = mark
        try:
            held.key = await asyncio.to_thread(held.source.load)
        except ConfigError as bad:
            self._on_refused(pool, bad.mistakes[0])
