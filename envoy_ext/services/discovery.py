"""Follows where each pool's replicas are listed, and tells the fleet who came and who went.

A source that fails changes nothing: the last list stands, and the state says so. One that ends by a bug
of ours is followed anew, and takes no other pool's with it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.discovery import (
    Listing,
    ListingFailed,
    Member,
    MemberChanges,
    Told,
    compute_changes,
    tell_apart,
)
from envoy_ext.domain.ids import PoolName
from envoy_ext.ports import Clock, DiscoverySource

log = logging.getLogger("envoy_ext")

FOLLOW_AGAIN_S: Final = 5.0
"""After a bug ended the following of one source."""
BROKEN: Final = ListingFailed("bug", "following the source ended by a bug; it is followed anew")


@dataclass(frozen=True, slots=True)
class DiscoveryState:
    """How a pool's source does. Times are monotonic."""

    listed_at: float | None = None
    """When the list that stands was told; None before the first."""
    failure: ListingFailed | None = None
    """Why no newer one can be had; None while the source tells."""
    failed_at: float | None = None
    """Since when."""


class Discovery:
    """Owns the following; `run` until cancelled. On one event loop."""

    def __init__(
        self,
        sources: Mapping[PoolName, DiscoverySource],
        clock: Clock,
        listeners: Sequence[Callable[[PoolName, MemberChanges], None]],
        on_told: Callable[[PoolName, bool], None] = lambda pool, listed: None,
        on_bug: Callable[[str, BaseException], None] = lambda where, error: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_told` hears whenever a source told something, and whether that was a list."""
        self._on_bug = on_bug
        self._sleep = sleep
        self._sources = sources
        self._clock = clock
        self._listeners = listeners
        self._on_told = on_told
        self._members: dict[PoolName, tuple[Member, ...]] = dict.fromkeys(sources, ())
        self._states = dict.fromkeys(sources, DiscoveryState())
        self._told = {pool: asyncio.Event() for pool in sources}

    def read_state(self, pool: PoolName) -> DiscoveryState:
        """How a pool's source does at this moment."""
        return self._states[pool]

    async def run(self) -> None:
        """Follow all sources."""
        async with asyncio.TaskGroup() as group:
            for pool, source in self._sources.items():
                group.create_task(self._follow(pool, source))

    async def wait_told(self, limit_s: float) -> None:
        """Until every source has told something, a failure for one; no longer than the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for told in self._told.values():
                    await told.wait()

    async def _follow(self, pool: PoolName, source: DiscoverySource) -> None:
        while True:
            try:
                async with contextlib.aclosing(source.follow()) as following:
                    async for told in following:
                        self._take(pool, told)
                        self._told[pool].set()
            except Exception as bug:
                # Whatever it was: the last list stands, and the other pools' sources go on.
                self._on_bug(f"following the replicas of {pool}", bug)
                self._take(pool, BROKEN)
                self._told[pool].set()
            await self._sleep(FOLLOW_AGAIN_S)

    def _take(self, pool: PoolName, told: Told) -> None:
        before = self._states[pool]
        self._on_told(pool, isinstance(told, Listing))
        if isinstance(told, ListingFailed):
            if before.failure != told:
                extra = {"pool": pool, "reason": told.reason, "detail": told.detail}
                log.warning("discovery_failed", extra=extra)
            failed_at = self._clock.now() if before.failed_at is None else before.failed_at
            self._states[pool] = DiscoveryState(before.listed_at, told, failed_at)
            return
        if before.failure is not None:
            log.info("discovery_recovered", extra={"pool": pool})
        self._states[pool] = DiscoveryState(self._clock.now())
        self._apply(pool, told)

    def _apply(self, pool: PoolName, listing: Listing) -> None:
        others = {one.replica for other in self._members if other != pool for one in self._members[other]}
        before = self._members[pool]
        after = tell_apart(listing.members, pool, others, {one.replica for one in before})
        changes = compute_changes(before, after)
        self._members[pool] = after
        if changes:
            for listener in self._listeners:
                listener(pool, changes)
