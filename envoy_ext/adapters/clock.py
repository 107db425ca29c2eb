"""The machine's own clocks."""

import time


class SystemClock:
    """`ports.Clock` on the operating system: CLOCK_MONOTONIC and the wall clock."""

    def now(self) -> float:
        """Monotonic seconds; comparable only with itself, in this process."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix epoch seconds; may jump, so it is never used to measure."""
        return time.time()
