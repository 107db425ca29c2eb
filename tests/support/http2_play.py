"""A server's connection under test, fed by hand; its output read by the client's eyes."""

from typing import Any

from envoy_ext.http2.connection import Connection
from envoy_ext.http2.events import (
    ConnectionFailed,
    DataReceived,
    Drained,
    Event,
    RequestStarted,
    SendsDrained,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from envoy_ext.http2.limits import Limits
from envoy_ext.http2.streams import Stream
from tests.support import http2_client as client
from tests.support.http2_client import Frame


def describe(event: Event) -> tuple[Any, ...]:
    """An event as plain values."""
    match event:
        case RequestStarted():
            return ("request", event.stream.id, event.headers.path, event.ended)
        case DataReceived():
            return ("data", event.stream.id, event.data, event.ended)
        case TrailersReceived():
            return ("trailers", event.stream.id)
        case SendsDrained():
            return ("drained", event.stream.id)
        case StreamEnded():
            return ("ended", event.stream.id)
        case StreamReset():
            return ("reset", event.stream.id, event.code, event.by_peer)
        case ConnectionFailed():
            return ("failed", event.code)
        case Drained():
            return ("connection drained",)


class Play:
    """`Play().opened()` is a connection on which everybody has said hello."""

    def __init__(self, limits: Limits | None = None, *, max_frame: int = 16_384) -> None:
        self.connection = Connection(limits)
        self.reader = client.Reader(max_frame)
        self.now = 0.0
        self.streams: dict[int, Stream] = {}

    def opened(self, hello: bytes = client.HELLO) -> "Play":
        assert self.send(hello) == []
        self.read()
        return self

    def send(self, *parts: bytes) -> list[tuple[Any, ...]]:
        """What the client sends, and what the server says has happened."""
        self.connection.receive(b"".join(parts), self.now)
        return self.events()

    def events(self) -> list[tuple[Any, ...]]:
        found = self.connection.take_events()
        for event in found:
            if isinstance(event, RequestStarted):
                self.streams[event.stream.id] = event.stream
        return [describe(event) for event in found]

    def read(self) -> list[Frame]:
        """All that the server sends now."""
        found = []
        while output := self.connection.take_output():
            found += self.reader.read(output)
        return found

    def fails_with(self, code: int, *parts: bytes) -> None:
        """The connection is given up for this, with a GOAWAY of this code as its last word."""
        assert self.send(*parts)[-1] == ("failed", code)
        last = self.read()[-1]
        assert last.kind == client.GOAWAY
        assert int.from_bytes(last.payload[4:8], "big") == code
        assert self.send(client.ping()) == []
        assert self.read() == []

    def resets_with(self, code: int, *parts: bytes, stream_id: int = 1) -> None:
        """One stream is reset for this, and the connection lives."""
        events = self.send(*parts)
        assert not any(event[0] == "failed" for event in events), events
        resets = [one for one in self.read() if one.kind == client.RST_STREAM]
        assert [(one.stream_id, one.number) for one in resets] == [(stream_id, code)]
        assert self.is_alive()

    def is_alive(self) -> bool:
        self.send(client.ping(b"is there"))
        return any(one.kind == client.PING and one.payload == b"is there" for one in self.read())
