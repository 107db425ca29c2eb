"""What a connection says has happened."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envoy_ext.http2.header_blocks import RequestHeaders
    from envoy_ext.http2.streams import Stream


class RequestStarted:
    """A stream has begun; `ended` when nothing follows its headers."""

    __slots__ = ("ended", "headers", "stream")

    def __init__(self, stream: "Stream", headers: "RequestHeaders", ended: bool) -> None:
        self.stream = stream
        self.headers = headers
        self.ended = ended


class DataReceived:
    """A part of a request's body. It counts against the peer's windows until `Connection.take` is called."""

    __slots__ = ("data", "ended", "stream")

    def __init__(self, stream: "Stream", data: bytes, ended: bool) -> None:
        self.stream = stream
        self.data = data
        self.ended = ended


class TrailersReceived:
    """The request has ended with trailers."""

    __slots__ = ("stream",)

    def __init__(self, stream: "Stream") -> None:
        self.stream = stream


class SendsDrained:
    """What of this stream waited for a window, or for the transport, has gone out."""

    __slots__ = ("stream",)

    def __init__(self, stream: "Stream") -> None:
        self.stream = stream


class StreamEnded:
    """The stream is over, and our answer is out as a whole."""

    __slots__ = ("stream",)

    def __init__(self, stream: "Stream") -> None:
        self.stream = stream


class StreamReset:
    """The stream is over before its end. `code` may be one that nobody knows; `by_peer` says who reset it."""

    __slots__ = ("by_peer", "code", "stream")

    def __init__(self, stream: "Stream", code: int, by_peer: bool) -> None:
        self.stream = stream
        self.code = code
        self.by_peer = by_peer


class Drained:
    """The last stream of a connection that takes no more is over: it can be closed."""

    __slots__ = ()


class ConnectionFailed:
    """The peer broke a rule. What is to be sent holds a GOAWAY; behind it the connection has to be closed."""

    __slots__ = ("code", "detail")

    def __init__(self, code: int, detail: str) -> None:
        self.code = code
        self.detail = detail


Event = (
    RequestStarted
    | DataReceived
    | TrailersReceived
    | SendsDrained
    | StreamEnded
    | StreamReset
    | Drained
    | ConnectionFailed
)
