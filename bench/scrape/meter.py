"""What a measured process tells of itself: its CPU time, by part, and how long it held its event loop."""

import asyncio
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LATE_EVERY_S = 0.01
"""How often a timer is due whose lateness is measured: a stream's chunks wait like that."""


class Parts:
    """CPU time of the loop's thread inside chosen functions; a part inside a part counts once, as its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._nested: list[float] = []

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, measured."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            self._nested.append(0.0)
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time() - started
                inside = self._nested.pop()
                self.seconds[part] = self.seconds.get(part, 0.0) + spent - inside
                self.calls[part] = self.calls.get(part, 0) + 1
                if self._nested:
                    self._nested[-1] += spent

        return measured


async def measure(seconds: float, parts: Parts) -> dict[str, float]:
    """The process's CPU time over a window, as shares of one core: `all`, and each part."""
    before, called = dict(parts.seconds), dict(parts.calls)
    cpu, started = read_cpu(), time.monotonic()
    await asyncio.sleep(seconds)
    wall, spent = time.monotonic() - started, read_cpu() - cpu
    told = {f"share {part}": (s - before.get(part, 0.0)) / wall for part, s in parts.seconds.items()}
    told |= {f"calls {part}": n - called.get(part, 0) for part, n in parts.calls.items()}
    return told | {"share": spent / wall, "cpu_s": spent, "wall_s": wall}


async def measure_loop(seconds: float) -> dict[str, float]:
    """How late a timer of the event loop comes, because of what runs on it.

    Costs a little itself, so CPU time is measured in another window.
    """
    late: list[float] = []
    until = time.monotonic() + seconds
    while (due := time.monotonic() + LATE_EVERY_S) < until:
        await asyncio.sleep(LATE_EVERY_S)
        late.append(time.monotonic() - due)
    late.sort()
    return {
        "late_p50_ms": 1e3 * late[len(late) // 2],
        "late_p99_ms": 1e3 * late[int(len(late) * 0.99)],
        "late_max_ms": 1e3 * late[-1],
    }


def read_cpu() -> float:
    """CPU seconds of the whole process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def read_line() -> str:
    """A line of standard input; empty at its end."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
