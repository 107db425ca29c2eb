"""What an ext_proc session and its transport promise each other.

A session is one gRPC stream without the gRPC: messages in, replies out, end of stream. Whichever
transport carries the stream calls `receive` for each message and `closed` once at the end, all on
the event loop; the session answers through its `Outbox`, at any time.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol


class Outbox(Protocol):
    """The transport's side of one stream. After `finish` or `abort` nothing more goes out."""

    def send(self, response: Any) -> None:
        """Queue one message, of ext_proc a ProcessingResponse as bytes; never waits. Bounded by the protocol:
        at most a few replies for each message that Envoy sent, and Envoy stops sending when its own buffers
        are full."""

    def finish(self) -> None:
        """End the stream cleanly after what was queued: Envoy goes on without us."""

    def abort(self) -> None:
        """End the stream with an error: Envoy fails the request, or resets it once headers are out."""


class Session(Protocol):
    """One ext_proc stream's logic."""

    def receive(self, message: Any) -> None:
        """Take in one ProcessingRequest."""

    def closed(self) -> None:
        """The stream is over, for whatever reason. Called once."""


class ChunkSession(ABC):
    """A session of a streamed answer: a transport that can tell its chunks from other messages hands them
    over as bytes."""

    __slots__ = ()

    @abstractmethod
    def receive_chunk(self, data: bytes) -> bytes:
        """Take in a `response_body` that does not end the body, in place of `receive`.

        Returns the bytes that go to the client, as one streamed body behind all that was sent so far; b""
        when there are none.
        """
