"""The callers of the file as they are at this moment: read at the start, and again when the file has changed.

A new file that is bad in any place changes nothing: the one before stays in force, and that is told.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from envoy_ext.domain.callers import CallerBook, CallerEntry, CallerRules
from envoy_ext.domain.errors import ConfigError

LOOK_EVERY_S: Final = 1.0
"""How soon a change is seen. It is read one look later, when whoever writes the file has finished."""


class CallersSource(Protocol):
    """The file. Both calls may block on a disk."""

    def read_mark(self) -> object:
        """What changes with the file's content; None where there is none."""

    def load(self) -> CallerBook:
        """All of it, or a `ConfigError`."""


class Listener(Protocol):
    """What is told of it: metrics and log."""

    def note_read(self, callers: int) -> None:
        """A file is in force."""

    def note_refused(self, mistakes: list[str]) -> None:
        """A file is bad, and the one before stays in force."""


@dataclass(frozen=True, slots=True)
class CallersView:
    """For people; no hash of a key is in it."""

    refused: tuple[str, ...]
    """What is wrong with the file as it is; () while it is in force."""
    entries: tuple[CallerEntry, ...]


class Callers:
    """Whom to let in. Used from one event loop; the file is read beside it."""

    def __init__(
        self,
        rules: CallerRules,
        source: CallersSource | None,
        listener: Listener,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`rules` are those without the file.

        Raises:
            ConfigError: the file is bad.
        """
        self.rules = rules
        """What holds at this moment."""
        self._source = source
        self._listener = listener
        self._sleep = sleep
        self._seen: object = None
        self._tried: object = None
        self._refused: tuple[str, ...] = ()
        if source is not None:
            self._seen = self._tried = source.read_mark()
            self._take(source.load())

    def show(self) -> CallersView:
        """Who is let in."""
        book = self.rules.book
        return CallersView(self._refused, () if book is None else book.entries)

    async def run(self) -> None:
        """Look after the file until cancelled."""
        while self._source is not None:
            await self._sleep(LOOK_EVERY_S)
            await self.look(self._source)

    async def look(self, source: CallersSource) -> None:
        """Read the file if it is another one, and was the same at the last look."""
        mark = await asyncio.to_thread(source.read_mark)
        settled, self._seen = mark == self._seen, mark
        if not settled or mark == self._tried:
            return
        self._tried = mark
        try:
            self._take(await asyncio.to_thread(source.load))
        except ConfigError as bad:
            self._refused = tuple(bad.mistakes)
            self._listener.note_refused(bad.mistakes)

    def _take(self, book: CallerBook) -> None:
        self.rules = replace(self.rules, book=book)
        self._refused = ()
        self._listener.note_read(len(book.entries))
