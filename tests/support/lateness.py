"""How late this machine runs what is due: the yardstick for what must have happened by a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

BEAT_S = 0.02


class Lateness:
    """Of the event loop that a test shares with all that it judges."""

    def __init__(self) -> None:
        self.total_s = 0.0
        """By how much its beats were late, altogether: nothing due here can have been later than that."""

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.total_s += loop.time() - due


@asynccontextmanager
async def measure_lateness() -> AsyncIterator[Lateness]:
    """Measured for as long as the block lasts."""
    lateness = Lateness()
    watching = asyncio.ensure_future(lateness.watch())
    try:
        yield lateness
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
