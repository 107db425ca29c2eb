"""Records that could not be written when they happened, most of them ends, kept until the journal takes them.

Without them the journal would call an operation running that nobody runs, and refuse every repeat
under its idempotency key until the next start of the sidecar.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from envoy_ext.domain.errors import NotOwner
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import Record
from envoy_ext.ports import Journal

MAX_OWED: Final = 10_000
"""Steps that are kept: minutes of traffic on a full disk. Those beyond are found open by the next start."""
MAX_IN_DOUBT: Final = 1_000
"""Above so many none is kept of what has most likely never begun: it must not push out what has."""


class OwedEnds:
    """Owned by `Exchanges`; used from its event loop alone."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._owed: deque[tuple[Record, ...]] = deque()
        self._recording = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, records: tuple[Record, ...]) -> None:
        """Keep the records of one step. Those of one operation are written in the order of their coming."""
        if len(self._owed) < MAX_OWED:
            self._owed.append(records)

    def add_in_doubt(self, records: tuple[Record, ...]) -> None:
        """Keep the end of an operation of which nobody knows whether it has begun."""
        if len(self._owed) < MAX_IN_DOUBT:
            self._owed.append(records)

    async def record(self) -> None:
        """Write what is owed, oldest first; `JournalUnavailable` when the journal still takes nothing."""
        if not self._owed:
            return
        async with self._recording:
            while self._owed:
                with suppress(NotOwner):  # who has taken it over has ended it, or it has never begun
                    await self._journal.append(self._owed[0], FIRST_TOKEN)
                self._owed.popleft()
