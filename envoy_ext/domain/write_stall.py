"""A client that takes nothing, told from a replica that says nothing and from a client that reads slowly.

While an exchange runs, Envoy tells at regular looks how many bytes have left the egress hop and how many
the client's connection has taken; the sidecar knows how many came to it and how many it let go. Where two
of these counts differ, bytes wait for the client: behind a window of its HTTP/2 stream, or between the
hops, because the ingress hop reads no more while its buffer for the client is full. A silent replica has
nothing waiting, however long it is silent.

A slow client takes some of what waits between two looks. Behind a window that shows in what was taken.
Between the hops it does not show at once: half of Envoy's buffer must be gone before the ingress hop reads
on, and more than the buffer's limit may be in it. There it shows in what the client's machine has
confirmed, where the sidecar can ask the kernel that Envoy runs on.
"""

from dataclasses import dataclass
from typing import Final

LOOKS: Final = 6
"""In the time of one limit. More would find a stall sooner after its limit, and cost a log entry of each hop
and stream."""

MIN_LOOK_S: Final = 0.1


def compute_look_s(limit_s: float) -> float:
    """How often Envoy is to tell, in seconds."""
    return max(MIN_LOOK_S, limit_s / LOOKS)


@dataclass(frozen=True, slots=True)
class Look:
    """Bytes of one exchange, counted from its start at places on their way to the client."""

    left: int
    """Of the body, of the egress hop."""
    arrived: int
    """Of the body, at the sidecar."""
    released: int
    """Of the body, by the sidecar."""
    taken: int
    """By the client's connection, with framing. Over HTTP/1.1 all that Envoy was given counts as taken."""
    acked: int | None = None
    """By the client's machine, over the connection's whole life. None: not known, or nothing waited."""

    def still_waits(self, before: "Look") -> bool:
        """Whether something that waited at the look before still does, and nothing has moved."""
        behind_window = before.released > before.taken == self.taken
        between_hops = before.left > before.arrived == self.arrived and before.acked == self.acked
        return behind_window or between_hops


class WriteStall:
    """Watches one exchange; fed by its owner at every look."""

    __slots__ = ("_last", "_limit_looks", "_look_s", "_waited_looks")

    def __init__(self, limit_s: float) -> None:
        self._look_s = compute_look_s(limit_s)
        self._limit_looks = limit_s / self._look_s
        self._last: tuple[Look, float] | None = None
        self._waited_looks = 0.0

    def note(self, look: Look, now: float) -> bool:
        """Whether the client has taken nothing of what waits for as long as the limit.

        No silence between two looks counts for more than one: after a pause of the sidecar itself, bytes
        that Envoy sent meanwhile are still to be read.
        """
        last, self._last = self._last, (look, now)
        if last is None or not look.still_waits(last[0]):
            self._waited_looks = 0.0
            return False
        self._waited_looks += min(1.0, (now - last[1]) / self._look_s)
        return self._waited_looks >= self._limit_looks
