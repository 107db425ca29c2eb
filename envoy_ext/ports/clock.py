"""Time."""

from typing import Protocol


class Clock(Protocol):
    """Time as a port, so that tests can move it."""

    def now(self) -> float:
        """Monotonic seconds; comparable only with itself, in this process."""

    def wall(self) -> float:
        """Unix epoch seconds, for people and for records."""
