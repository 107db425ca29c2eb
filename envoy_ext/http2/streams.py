"""One stream, as both halves of a connection see it."""

from collections import deque
from typing import Any


class Stream:
    """A request and its answer. Only `Connection` and `Outbound` change it; `owner` is the upper layer's."""

    __slots__ = (
        "body_left",
        "ended_by_peer",
        "ended_by_us",
        "id",
        "in_line",
        "owner",
        "pending",
        "taken",
        "trailers",
        "uncredited",
        "window",
    )

    def __init__(self, stream_id: int, window: int, body_left: int | None) -> None:
        self.id = stream_id
        self.window = window
        """What may still be sent; below 0 when the peer has made its windows smaller."""
        self.uncredited = 0
        """Bytes that have come and count against the peer's window."""
        self.taken = 0
        """Of those, what the upper layer has taken; given back in larger parts."""
        self.body_left = body_left
        """Of a declared content-length; None where there is none."""
        self.ended_by_peer = False
        self.ended_by_us = False
        """Our END_STREAM, or RST_STREAM, is among the bytes to be sent."""
        self.pending: deque[memoryview] | None = None
        """What waits for a window or the transport, in order; None when nothing does."""
        self.in_line = False
        self.trailers: bytes | None = None
        """The block that ends the answer behind what is pending."""
        self.owner: Any = None

    @property
    def is_backed_up(self) -> bool:
        """Whether something of ours waits to be sent."""
        return self.pending is not None

    def __repr__(self) -> str:
        return f"<Stream {self.id}>"
