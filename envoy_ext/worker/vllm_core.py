"""Asks vLLM's EngineCore whether it has let go of what its server has ended.

vLLM computes in another process than the one that answers requests. A request that ends early is an abort
on its way to that process when the server's last generator has ended: until it arrives the slot is taken,
and with a core that hangs that is for good. The core takes its messages in their order, between its
steps, so the answer to a question that is asked behind the abort is its word that the abort was taken.

Known by what `vllm.engine.protocol.EngineClient` promises, without an import of vLLM.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

MIN_ROUNDS: Final = 2
"""The answer to the first question says that the request is out of the schedule; to the second, that a step
is over which was computed while the abort came, and that the figures of it are in the metrics. Where more
steps are under way at once, as in a pipeline, it takes as many questions until the last of them is over:
each time that the core looks for questions it lets one step in, and waits for the oldest when it has all."""
LOOK_S: Final = 0.25
"""How often a core that does not answer is looked at: one that dies leaves its questions open."""


class NoWord(Exception):
    """The engine could not be asked; nothing is known."""


class VllmCore:
    """The engine behind one server's requests; belongs to one event loop."""

    def __init__(self, client: Any) -> None:
        self._client = client
        config = getattr(client, "vllm_config", None)
        self._rounds = max(MIN_ROUNDS, getattr(config, "max_concurrent_batches", MIN_ROUNDS))
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[str] | None = None

    async def wait_stopped(self) -> None:
        """Return when the core computes nothing any more of what was ended before this call, or is dead.

        Questions that would be asked at the same time are one, so that a step meets one pair at most.

        Raises:
            NoWord: it answered with an error.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask_in_turn())
        trouble = await asyncio.shield(self._next)
        if trouble:
            raise NoWord(trouble)

    async def _ask_in_turn(self) -> str:
        """The core's word; what went wrong, or nothing."""
        async with self._turn:
            self._next = None  # who comes from here on may have ended something behind this question
            try:
                for _ in range(self._rounds):
                    await self._ask()
            except Exception as error:  # whatever an engine's client may raise
                if not isinstance(error, type(self._client.dead_error)):
                    return f"{type(error).__name__}: {error}"
            return ""

    async def _ask(self) -> None:
        """One question and its answer; which question does not matter."""
        asking = asyncio.ensure_future(self._client.is_sleeping())
        try:
            while not asking.done():
                await asyncio.wait((asking,), timeout=LOOK_S)
                if not asking.done() and self._client.errored:
                    asking.cancel()
                    asking = asyncio.ensure_future(self._client.is_sleeping())  # one that is dead refuses
            asking.result()
        finally:
            asking.cancel()


def find_vllm_core(scope: Mapping[str, Any]) -> VllmCore | None:
    """The engine behind an application; None where that is not vLLM's server."""
    client = getattr(getattr(scope.get("app"), "state", None), "engine_client", None)
    wanted = ("is_sleeping", "errored", "dead_error")
    return VllmCore(client) if all(hasattr(client, name) for name in wanted) else None
