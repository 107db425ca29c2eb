"""Cuts the journal back: what ended long ago goes, and where there is too much, what ended first.

One task of each gateway. Several at one store look at different moments, and each step is one atomic call of
a few operations: whoever comes second finds what is left. Where two find the same excess at once, each may
take it out, which is `STEPS_BETWEEN_MEASURES` steps too many at the most.
"""

import asyncio
import contextlib
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.retention import KEEP_AT_LEAST_S, Excess, RetentionPolicy, Why, find_excess
from envoy_ext.ports import Clock, Store, StoreSize

LOOK_EVERY_S: Final = 60.0
"""What may go can wait: a minute of work is a small part of what a journal holds."""
STEP: Final = 100
"""Operations in one call: a few milliseconds in which the store takes no other write."""
PAUSE_S: Final = 0.05
"""Between two calls, for everybody else's. 2,000 operations in a second go, which is more than can come."""
STEPS_BETWEEN_MEASURES: Final = 10
"""Counting costs a store some milliseconds."""


class Listener(Protocol):
    """What is told of it: metrics and log."""

    def note_forgotten(self, why: Why, operations: int) -> None:
        """So many have gone."""

    def note_size(self, size: StoreSize, excess: Excess | None) -> None:
        """How much there is after a look, and what is too much of it and may not go."""


class Retention:
    """Looks at the store every now and then. Used from one event loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        policy: RetentionPolicy,
        listener: Listener,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._clock = clock
        self._policy = policy
        self._listener = listener
        self._sleep = sleep

    async def run(self) -> None:
        """Look around until cancelled. A store that cannot be asked is asked again the next time."""
        while True:
            with contextlib.suppress(JournalUnavailable):
                await self.look()
            await self._sleep(LOOK_EVERY_S * random.uniform(0.75, 1.25))

    async def look(self) -> None:
        """Remove what may go: a part of it where the store fails on the way."""
        wall = self._clock.wall()
        if self._policy.keep_results_s is not None:
            await self._forget_results(wall - max(self._policy.keep_results_s, KEEP_AT_LEAST_S))
        await self._forget(Why.AGE, sys.maxsize, wall - max(self._policy.keep_s, KEEP_AT_LEAST_S))
        while True:
            size = await self._store.measure()
            excess = find_excess(self._policy, size.operations, size.bytes)
            if excess is not None:
                most = min(excess.operations, STEP * STEPS_BETWEEN_MEASURES)
                if await self._forget(excess.why, most, wall - KEEP_AT_LEAST_S):
                    continue
            self._listener.note_size(size, excess)
            return

    async def _forget(self, why: Why, most: int, before: float) -> int:
        """Step by step; how many have gone."""
        gone = 0
        while gone < most and (step := await self._store.forget(before, min(STEP, most - gone))):
            gone += step
            self._listener.note_forgotten(why, step)
            await self._sleep(PAUSE_S)
        return gone

    async def _forget_results(self, before: float) -> None:
        while await self._store.forget_results(before, STEP):
            await self._sleep(PAUSE_S)
