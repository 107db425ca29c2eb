"""Knows when a request computes no more: when every async generator that it began has come to its end.

A framework that fails to send leaves its generator behind, and the event loop closes it some time after
the application has returned (https://docs.python.org/3/library/sys.html#sys.set_asyncgen_hooks). Engines
free a slot in that close, so until then nothing has stopped. Here each generator is remembered from its
first step, and closed in the open.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

Generator = AsyncGenerator[Any, Any]
_BUSY_S: Final = 0.01
"""How often a generator that is in the middle of a step is looked at again."""

_watch: ContextVar["GeneratorWatch | None"] = ContextVar("envoy_ext_generators", default=None)


class GeneratorWatch:
    """The async generators of one request. Enter it in the task that runs the application.

    It holds on to them: what nobody holds is closed by the event loop, at a moment that nobody is told of.
    """

    def __init__(self) -> None:
        self._begun: list[Generator] = []

    def enter(self) -> None:
        """Watch what begins in this context, and in those that are made in it."""
        _install_hook()
        _watch.set(self)

    async def close(self) -> None:
        """Close what is still open, outermost first, and return when all have come to their end."""
        while self._begun:
            await _close(self._begun.pop(0))

    def note(self, generator: Generator) -> None:
        """One has begun."""
        self._begun = [known for known in self._begun if not _is_over(known)]
        self._begun.append(generator)


async def _close(generator: Generator) -> None:
    while not _is_over(generator):
        with suppress(Exception):  # what it says at its end is for nobody any more
            await generator.aclose()
        # One that is in the middle of a step refuses, and is looked at again.
        await asyncio.sleep(0 if _is_over(generator) else _BUSY_S)


def _is_over(generator: Generator) -> bool:
    return getattr(generator, "ag_frame", None) is None


def _install_hook() -> None:
    """Be told of first steps, beside whoever else is: the event loop has a hook of its own."""
    first, _finalizer = sys.get_asyncgen_hooks()
    if getattr(first, "of_generator_watch", False):
        return

    def note_first_step(generator: Generator) -> None:
        if first is not None:
            first(generator)
        watch = _watch.get()
        if watch is not None:
            watch.note(generator)

    hook: Callable[[Generator], None] = note_first_step
    hook.of_generator_watch = True  # type: ignore[attr-defined]
    sys.set_asyncgen_hooks(firstiter=hook)
