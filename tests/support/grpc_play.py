"""gRPC calls under test: handlers that keep what they hear, and answers read by the client's eyes."""

from collections.abc import Callable
from dataclasses import dataclass, field

from envoy_ext.http2.grpc_calls import Call, ServerCalls
from envoy_ext.http2.header_blocks import RequestHeaders
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client

LARGEST = 1 << 20


@dataclass
class Handler:
    """Keeps what it hears; `on_message` may answer."""

    call: Call
    on_message: Callable[[Call, bytes], None] | None = None
    heard: list[bytes] = field(default_factory=list)
    half_closes: int = 0
    closes: int = 0

    def receive(self, message: bytes) -> None:
        assert self.closes == self.half_closes == 0
        self.heard.append(message)
        if self.on_message is not None:
            self.on_message(self.call, message)

    def half_closed(self) -> None:
        self.half_closes += 1

    def closed(self) -> None:
        self.closes += 1


@dataclass
class Answer:
    """What the client got of one call."""

    headers: list[dict[str, str]] = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def messages(self) -> list[bytes]:
        found, rest = [], self.body
        while rest:
            assert rest[0] == 0
            length = int.from_bytes(rest[1:5], "big")
            found.append(rest[5 : 5 + length])
            assert len(found[-1]) == length, "a message that is not whole"
            rest = rest[5 + length :]
        return found

    @property
    def status(self) -> tuple[str, str]:
        last = self.headers[-1]
        return last["grpc-status"], last.get("grpc-message", "")


class GrpcPlay:
    """One connection. `handlers` are in the order of their calls."""

    def __init__(
        self,
        on_message: Callable[[Call, bytes], None] | None = None,
        limits: Limits | None = None,
        hello: bytes = client.HELLO,
    ) -> None:
        self.calls = ServerCalls(self._open, LARGEST, limits)
        self.on_message = on_message
        self.handlers: list[Handler] = []
        self.seen: list[RequestHeaders] = []
        self.answers: dict[int, Answer] = {}
        self.other: list[client.Frame] = []
        self.reader = client.Reader()
        self.now = 100.0
        self.send(hello)

    def _open(self, call: Call, headers: RequestHeaders) -> Handler | None:
        self.seen.append(headers)
        if headers.path != client.METHOD:
            return None
        self.handlers.append(Handler(call, self.on_message))
        return self.handlers[-1]

    def send(self, *parts: bytes) -> None:
        self.calls.receive(b"".join(parts), self.now)
        self.read()

    def read(self) -> None:
        while output := self.calls.take_output(self.now):
            for one in self.reader.read(output):
                answer = self.answers.setdefault(one.stream_id, Answer())
                if one.kind == client.HEADERS:
                    assert not answer.ended
                    answer.headers.append(self.reader.fields(one))
                    answer.ended = bool(one.flags & client.END_STREAM)
                elif one.kind == client.DATA:
                    assert answer.headers, "a body in front of its headers"
                    assert not answer.ended
                    answer.body += one.payload
                elif one.kind == client.RST_STREAM:
                    answer.reset = one.number
                else:
                    self.other.append(one)
