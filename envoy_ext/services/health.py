"""What the sidecar says of its own health: three questions, each with what stands against a yes."""

import time
from collections.abc import Callable
from typing import Final

from envoy_ext.domain.notes import Note, StoreBack, StoreLost

JOURNAL_FAILED_FOR_S: Final = 10.0
"""How long a failed append keeps the sidecar unready. It must end by itself: an unready sidecar
gets no requests, so no append of theirs could show that the disk is back."""


class HealthState:
    """Set by the composition root, read by the health endpoints; all on one event loop.

    It is an observer as well, and listens for one thing: whether the journal can be written.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.started = False
        """The journal is recovered and the gRPC server listens."""
        self.draining = False
        """No more requests are taken; those in flight go on."""
        self.holds_seat: Callable[[], bool] = lambda: True
        """Whether the other gateways at the store know that this one is alive."""
        self.serves_without_store: Callable[[], bool] = lambda: False
        """Whether the store is down and some requests are served all the same."""
        self.fatal: str | None = None
        """Why only a restart can help; a fixed text of ours."""
        self._now = now
        self._journal_failed_at: float | None = None
        self._store_down = False

    def find_startup_faults(self) -> tuple[str, ...]:
        """Has everything been put together? Once it has, this stays so."""
        return () if self.started else ("starting",)

    def find_live_faults(self) -> tuple[str, ...]:
        """Would a restart help? Being busy, draining or without a journal is no reason for one."""
        return () if self.fatal is None else ("fatal",)

    def find_ready_faults(self) -> tuple[str, ...]:
        """Should requests be sent here?"""
        faults = [*self.find_startup_faults(), *self.find_live_faults()]
        if self.draining:
            faults.append("draining")
        if self.serves_without_store():
            return tuple(faults)
        if not self.holds_seat():
            faults.append("seat")
        failed_at = self._journal_failed_at
        if self._store_down or (failed_at is not None and self._now() - failed_at < JOURNAL_FAILED_FOR_S):
            faults.append("journal")
        return tuple(faults)

    def note(self, note: Note) -> None:
        """Bad replicas do not make a bad sidecar. The word on the store is news before the next append."""
        if isinstance(note, StoreLost):
            self._store_down = True
        elif isinstance(note, StoreBack):
            self._store_down = False
            self._journal_failed_at = None

    def note_bug(self, where: str, error: BaseException) -> None:
        """A contained bug ends one exchange; the process is as good as before."""

    def note_journal(self, seconds: float, failed: bool) -> None:
        """Remember the last append's outcome."""
        self._journal_failed_at = self._now() if failed else None
