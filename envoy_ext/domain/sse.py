"""An incremental parser for event streams, on bytes, by the rules of the WHATWG.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

It never changes a byte and never decodes UTF-8: field names and line ends are ASCII, so characters
cut between two chunks need no care. Fields it does not know are ignored, as the rules say; that
includes the `error: {...}` field some llama.cpp builds of 2025 write in place of `data:`. No client
reads that field either, so such a stream simply ends without its API's terminal mark.
"""

from dataclasses import dataclass
from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_LINE_ENDS: Final = b"\r\n"
_LF: Final = 0x0A


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One dispatched event."""

    data: bytes
    """The data lines joined with LF, without a trailing one."""
    event: str
    """The event's name, "" when it has none (the rules read that as `message`)."""


class SseParser:
    """Cuts bytes, however they are chunked, into events.

    Two offsets from the start of the stream say where it stands. Everything before `boundary` may be
    delivered without cutting an event; `received - boundary` bytes wait for the rest of theirs and
    are the only ones kept, never more than `max_event_bytes`. A longer event makes the parser let go
    of the stream for good (`overflowed`): it never raises.
    """

    __slots__ = (
        "_after_cr",
        "_at_start",
        "_boundary",
        "_data",
        "_event",
        "_limit",
        "_open",
        "_overflowed",
        "_partial",
        "_received",
    )

    def __init__(self, max_event_bytes: int) -> None:
        self._limit = max_event_bytes
        self._received = 0
        self._boundary = 0
        self._overflowed = False
        self._at_start = True
        self._after_cr = False
        self._partial = bytearray()
        self._data: list[bytes] = []
        self._event = b""
        self._open = False

    @property
    def boundary(self) -> int:
        """Offset after the last line end at which no event was open.

        Comments and fields that do not open an event (`id`, `retry`, unknown ones) move it too; a
        line without its end does not.
        """
        return self._boundary

    @property
    def received(self) -> int:
        """Bytes fed so far."""
        return self._received

    @property
    def overflowed(self) -> bool:
        """Whether an event grew past the limit; from then on `boundary` equals `received`."""
        return self._overflowed

    def skip(self, length: int) -> bool:
        """Count these bytes, which are whole events that need no reading.

        False, and nothing is counted, where they would have to be looked at: within an event, or above the
        limit.
        """
        received = self._received
        if self._boundary != received or length > self._limit or self._at_start or self._overflowed:
            return False
        self._received = self._boundary = received + length
        self._after_cr = False
        return True

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that these bytes complete."""
        position = self._received
        self._received += len(data)
        if self._overflowed:
            self._boundary = self._received
            return []
        if not data:
            return []
        if self._boundary == position and not self._after_cr:
            plain = self._read_plain(data)
            if plain is not None:
                return plain
        if self._after_cr and data[0] == _LF:
            # The second half of a CRLF: its CR already ended the line.
            data = data[1:]
            position += 1
            if not self._open:
                self._boundary = position
        self._after_cr = data.endswith(b"\r")
        events: list[SseEvent] = []
        # bytes.splitlines knows exactly the three line ends of the event-stream grammar.
        for line in data.splitlines(keepends=True):
            content = line.rstrip(_LINE_ENDS)
            if len(content) == len(line):  # only the last one can lack its end
                self._partial += line
                break
            # Measured where the line's content ends, so that the verdict on an event's size does not
            # depend on how the stream was chunked.
            if position + len(content) - self._boundary > self._limit:
                self._overflow()
                return events
            position += len(line)
            if self._partial:
                self._partial += content
                content = bytes(self._partial)
                self._partial.clear()
            event = self._read_line(content)
            if event is not None:
                events.append(event)
            if not self._open:
                self._boundary = position
        if self._received - self._boundary > self._limit:
            self._overflow()
        return events

    def _read_plain(self, data: bytes) -> list[SseEvent] | None:
        """Whole events of one data line each, as engines write nearly all; None for anything else."""
        if not data.endswith(b"\n\n") or b"\r" in data or len(data) > self._limit:
            return None
        events = []
        for event in data[:-2].split(b"\n\n"):
            if not event.startswith(b"data: ") or b"\n" in event:
                return None
            events.append(SseEvent(event[6:], ""))
        self._at_start = False
        self._boundary = self._received
        return events

    def _read_line(self, line: bytes) -> SseEvent | None:
        """Interpret one line without its end; return the event it dispatches."""
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._open = True
        elif name == b"event":
            self._event = value.removeprefix(b" ")
            self._open = True
        return None

    def _dispatch(self) -> SseEvent | None:
        event = None
        if self._data:  # no data, no dispatch: an event name alone is forgotten
            event = SseEvent(b"\n".join(self._data), self._event.decode("utf-8", "replace"))
            self._data = []
        self._event = b""
        self._open = False
        return event

    def _overflow(self) -> None:
        self._overflowed = True
        self._boundary = self._received
        self._partial = bytearray()
        self._data = []
        self._event = b""
        self._open = False
