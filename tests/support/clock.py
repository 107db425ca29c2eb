"""Time that moves only when a test says so."""


class ManualClock:
    """`ports.Clock` in the hands of a test."""

    def __init__(self, now: float = 1_000.0, wall: float = 1_750_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        assert seconds >= 0, "monotonic time does not go back"
        self._now += seconds
        self._wall += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP may."""
        self._wall += seconds
