"""Repeats that wait for the end of the operation they repeat.

One that waits holds no slot and has begun nothing: Envoy keeps its body, and here is a task and an event. It
is woken when the key comes free at this gateway, when its client leaves, and when the gateway stops. What
another gateway runs tells nobody here of its end: that is looked up in the store, with jitter, by one
repeat for each key, since the others of this gateway wait for that one.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.ids import OperationId
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.repeats import Repeats

FIRST_LOOK_S: Final = 0.1
"""About how soon the store is asked again for what another gateway runs; each look doubles it."""
LONGEST_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class JoinPolicy:
    """`idempotency`, as far as it is about waiting."""

    waits: bool = False
    """Also those repeats wait that do not ask for it."""
    max_wait_s: float = 60.0
    max_waiting: int = 256

    def compute_wait_s(self, preferred_s: float | None) -> float:
        """How long a repeat may wait; 0: not at all."""
        if preferred_s is not None:
            return min(preferred_s, self.max_wait_s)
        return self.max_wait_s if self.waits else 0.0


class Joiner:
    """One repeat that waits. Used by its own task; woken from others."""

    def __init__(self, delivery: Delivery, repeats: Repeats, on_leave: Callable[["Joiner"], None]) -> None:
        self._delivery = delivery
        self._repeats = repeats
        self._on_leave = on_leave
        self._stir = asyncio.Event()
        self._look_s = FIRST_LOOK_S
        self.waits_for: OperationId | None = None
        """Which operation of this gateway has the key."""
        delivery.on_left = self._stir.set

    async def wait(self, holder: OperationId | None, limit_s: float) -> None:
        """Until it is worth asking again, or so many seconds are over.

        `holder`: the operation of this gateway that has the key; None when it is another gateway's.
        """
        self._stir.clear()
        if self._delivery.left or (holder is not None and not self._repeats.holds_key(holder)):
            return
        if holder is None:
            limit_s = min(limit_s, self._look_s * random.uniform(0.5, 1.0))
            self._look_s = min(2 * self._look_s, LONGEST_LOOK_S)
        self.waits_for = holder
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._stir.wait()
        self.waits_for = None

    def wake(self) -> None:
        """Something has changed."""
        self._stir.set()

    def leave(self) -> None:
        """It waits no more."""
        self._delivery.on_left = None
        self._on_leave(self)


class Joiners:
    """All that wait at this gateway. Used from one event loop."""

    def __init__(self, policy: JoinPolicy, repeats: Repeats) -> None:
        self.policy: Final = policy
        self._repeats = repeats
        self._waiting: set[Joiner] = set()
        repeats.on_free(self._wake_of)

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, delivery: Delivery) -> Joiner | None:
        """A place for one more; None when as many wait as may."""
        if len(self._waiting) >= self.policy.max_waiting:
            return None
        joiner = Joiner(delivery, self._repeats, self._waiting.discard)
        self._waiting.add(joiner)
        return joiner

    def wake_all(self) -> None:
        """The gateway stops."""
        for joiner in self._waiting:
            joiner.wake()

    def _wake_of(self, operation_id: OperationId) -> None:
        for joiner in self._waiting:
            if joiner.waits_for == operation_id:
                joiner.wake()
