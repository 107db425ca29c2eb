"""Records that could not be written when they happened, most of them ends, kept until the journal takes them.

Without them the journal would call an operation running that nobody runs, and refuse every repeat
under its idempotency key until the next start of the sidecar.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.domain.errors import NotOwner
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import Record
from envoy_ext.ports import Clock, Journal

MAX_OWED: Final = 10_000
"""Steps that are kept: minutes of traffic on a full disk. Those beyond are found open by the next start."""
MAX_IN_DOUBT: Final = 1_000
"""Above so many none is kept of what has most likely never begun: it must not push out what has."""
LATE_S: Final = 60.0
"""For so long a begin that was given up may still come to the store: longer than any connection resends."""
LOOK_AGAIN_S: Final = 5.0
"""Until an end is tried again whose operation has not begun."""


@dataclass(frozen=True, slots=True)
class _Doubted:
    """The end of an operation that may begin yet."""

    records: tuple[Record, ...]
    at: float
    """When it is tried next."""
    until: float


class OwedEnds:
    """Owned by `Exchanges`; used from its event loop alone."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._owed: deque[tuple[tuple[Record, ...], KeptAnswer | None]] = deque()
        self._doubted: deque[_Doubted] = deque()
        """In the order in which they are tried."""
        self._recording = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._owed) + len(self._doubted)

    @property
    def due(self) -> bool:
        """Whether there is something to be written now."""
        return bool(self._owed) or self._is_one_due()

    def add(self, records: tuple[Record, ...], answer: KeptAnswer | None = None) -> None:
        """Keep the records of one step. Those of one operation are written in the order of their coming.

        `answer`: of those alone who run no more at once than fit in the memory.
        """
        if len(self) < MAX_OWED:
            self._owed.append((records, answer))

    def add_in_doubt(self, records: tuple[Record, ...]) -> None:
        """Keep the end of an operation of which nobody knows whether it has begun, or will."""
        if len(self) < MAX_IN_DOUBT:
            now = self._clock.now()
            self._doubted.appendleft(_Doubted(records, now, now + LATE_S))

    async def record(self) -> None:
        """Write what is owed, oldest first; `JournalUnavailable` when the journal still takes nothing."""
        if not self.due:
            return
        async with self._recording:
            while self._owed:
                records, answer = self._owed[0]
                with suppress(NotOwner):  # who has taken it over has ended it, or it has never begun
                    await self._journal.append(records, FIRST_TOKEN, answer)
                self._owed.popleft()
            while self._is_one_due():
                await self._record_doubted()

    async def _record_doubted(self) -> None:
        first = self._doubted[0]
        try:
            await self._journal.append(first.records, FIRST_TOKEN)
        except NotOwner:
            now = self._clock.now()
            if now < first.until:
                self._doubted.append(replace(first, at=now + LOOK_AGAIN_S))
        self._doubted.remove(first)

    def _is_one_due(self) -> bool:
        return bool(self._doubted) and self._doubted[0].at <= self._clock.now()
