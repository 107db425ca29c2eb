"""What vLLM's server asks its EngineCore through, as far as a worker knows it."""

import asyncio
from types import SimpleNamespace


class EngineDead(Exception):
    """Every call is refused with this one, once the core is known to be dead."""


class EngineClient:
    """A core that answers at once, unless it was told to stand still, to fail or to die."""

    dead_error = EngineDead()

    def __init__(self, steps_at_once: int = 1) -> None:
        self.vllm_config = SimpleNamespace(max_concurrent_batches=steps_at_once)
        self.asked = 0
        self.stands_still = asyncio.Event()
        self.fails = False
        self.errored = False
        self.dead = False

    async def is_sleeping(self) -> bool:
        self.asked += 1
        if self.fails:
            raise RuntimeError("no such method")
        if self.dead:
            raise EngineDead
        while self.stands_still.is_set():
            await asyncio.sleep(0.005)
        return False
