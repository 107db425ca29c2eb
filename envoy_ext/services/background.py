"""Work that goes on beside the events: each piece a task that somebody holds, and whose bugs are noted."""

import asyncio
from collections.abc import Coroutine

from envoy_ext.ports import Observer


class Background:
    """The tasks of the services around exchanges. Used from one event loop."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Let it run; nothing waits for it but `wait`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def __len__(self) -> int:
        """How many run."""
        return len(self._tasks)

    async def wait(self) -> None:
        """Until nothing runs any more, what is begun meanwhile included."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._observer.note_bug("a task of the exchanges", error)
