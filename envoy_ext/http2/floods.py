"""A budget of things that cost us more than the peer."""

from envoy_ext.http2.errors import ConnectionFault, ErrorCode


class Budget:
    """Refills by its own size each second: a burst passes, a flood does not."""

    __slots__ = ("_detail", "_left", "_refilled_at", "_size")

    def __init__(self, size: int, detail: str) -> None:
        """`detail` is what the peer is told when it has spent all."""
        self._size = size
        self._left = float(size)
        self._refilled_at: float | None = None
        self._detail = detail

    def spend(self, now: float) -> None:
        """One more.

        Raises:
            ConnectionFault: there is nothing left.
        """
        if self._left < 1:
            since = self._refilled_at
            if since is not None:
                self._left = min(float(self._size), self._left + (now - since) * self._size)
            self._refilled_at = now
            if self._left < 1:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, self._detail)
        elif self._refilled_at is None:
            self._refilled_at = now
        self._left -= 1
