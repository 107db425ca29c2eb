"""Several observers as one: what happens in one of them reaches neither the others nor the caller."""

import contextlib
from collections.abc import Callable, Iterable

from envoy_ext.domain.notes import Note
from envoy_ext.ports import Observer


class Observers:
    """`ports.Observer` that hands everything on to each of its parts, in order."""

    def __init__(self, parts: Iterable[Observer]) -> None:
        self._parts = tuple(parts)

    def note(self, note: Note) -> None:
        """Hand on one note of the core."""
        self._tell_each(lambda part: part.note(note))

    def note_bug(self, where: str, error: BaseException) -> None:
        """Hand on an exception that should not be."""
        self._tell_each(lambda part: part.note_bug(where, error))

    def note_journal(self, seconds: float, failed: bool) -> None:
        """Hand on what became of an append."""
        self._tell_each(lambda part: part.note_journal(seconds, failed))

    def _tell_each(self, tell: Callable[[Observer], None]) -> None:
        for part in self._parts:
            try:
                tell(part)
            except Exception as error:
                # Whatever is wrong with a metric or a log line, the stream it speaks of goes on.
                self._report(part, error)

    def _report(self, failed: Observer, error: Exception) -> None:
        where = f"observer {type(failed).__name__}"
        for part in self._parts:
            if part is not failed:
                # The last stop: a second failure on top of the first has nobody left to hear it.
                with contextlib.suppress(Exception):
                    part.note_bug(where, error)
