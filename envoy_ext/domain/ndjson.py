"""An incremental splitter for newline-delimited JSON, with the shape of the event-stream parser."""

from envoy_ext.domain.sse import SseEvent


class NdjsonParser:
    """Cuts bytes into lines; each line that is not blank is one event without a name.

    LF alone ends a line (https://github.com/ndjson/ndjson-spec): a CR before it is white space to
    JSON. Offsets and overflow mean what they mean in `SseParser`.
    """

    __slots__ = ("_boundary", "_limit", "_overflowed", "_partial", "_received")

    def __init__(self, max_event_bytes: int) -> None:
        self._limit = max_event_bytes
        self._received = 0
        self._boundary = 0
        self._overflowed = False
        self._partial = bytearray()

    @property
    def boundary(self) -> int:
        """Offset after the last newline."""
        return self._boundary

    @property
    def received(self) -> int:
        """Bytes fed so far."""
        return self._received

    @property
    def overflowed(self) -> bool:
        """Whether a line grew past the limit; from then on `boundary` equals `received`."""
        return self._overflowed

    def skip(self, length: int) -> bool:
        """Count these bytes, which are whole lines that need no reading; as `SseParser.skip`."""
        received = self._received
        if self._boundary != received or length > self._limit or self._overflowed:
            return False
        self._received = self._boundary = received + length
        return True

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the lines that these bytes complete."""
        position = self._received
        self._received += len(data)
        if self._overflowed:
            self._boundary = self._received
            return []
        *lines, rest = data.split(b"\n")
        events: list[SseEvent] = []
        for line in lines:
            position += len(line)
            if position - self._boundary > self._limit:
                self._overflow()
                return events
            position += 1
            self._boundary = position
            if self._partial:
                self._partial += line
                line = bytes(self._partial)
                self._partial.clear()
            if line and not line.isspace():
                events.append(SseEvent(line, ""))
        self._partial += rest
        if self._received - self._boundary > self._limit:
            self._overflow()
        return events

    @property
    def rest(self) -> bytes:
        """The line that has no newline yet; when the body ends here, readers take it as a line."""
        return bytes(self._partial)

    def _overflow(self) -> None:
        self._overflowed = True
        self._boundary = self._received
        self._partial = bytearray()
