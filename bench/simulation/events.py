"""The simulated clock and what happens on it, in order of time; equal times in the order they were set."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any

WALL_AT_0 = 1_750_000_000.0


class Timer:
    """Something that will happen, unless it is cancelled. Takes the place of an `asyncio.TimerHandle`."""

    __slots__ = ("args", "call")

    def __init__(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.call: Callable[..., object] | None = call
        self.args = args

    def cancel(self) -> None:
        """It will not happen."""
        self.call = None
        self.args = ()


class Events:
    """The queue of events. A `Clock` of the project, whose time is that of the event which runs."""

    def __init__(self) -> None:
        self.time = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.time

    def wall(self) -> float:
        """The same, as a Unix time."""
        return WALL_AT_0 + self.time

    def at(self, time: float, call: Callable[..., object], *args: object) -> Timer:
        """Let it happen at a time; one that lies behind is this moment."""
        timer = Timer(call, args)
        self._count += 1
        heappush(self._heap, (max(time, self.time), self._count, timer))
        return timer

    def after(self, seconds: float, call: Callable[..., object], *args: object) -> Timer:
        """Let it happen so many seconds from this moment."""
        return self.at(self.time + seconds, call, *args)

    call_later = after
    """As asyncio's loop calls it: the core's services set their timers here (`as_loop`)."""

    def run(self, until: float) -> None:
        """Let everything happen that is due by then."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            time, _, timer = heappop(heap)
            if timer.call is not None:
                self.time = time
                timer.call(*timer.args)
        self.time = until

    @contextmanager
    def as_loop(self) -> Iterator[None]:
        """Inside, `asyncio.get_running_loop().call_later` means this queue.

        `services.Queues` has its timers from there, and that is all that it wants of a loop.
        """
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            yield
        finally:
            asyncio._set_running_loop(before)
