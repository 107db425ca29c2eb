"""When an engine in a process of its own has stopped: what each kind tells of it.

A closed connection is a cancel that was sent. llama.cpp, for one, looks at it between two steps of its work:
a prompt of 1,500 tokens on a slow machine was computed for 29 s more, and an answer that is not streamed
until something else had kept it from computing for a second.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol, assert_never

from envoy_ext.worker.engine_port import EnginePort, Presence
from envoy_ext.worker.settings import EngineKind

LOOK_EVERY_S: Final = 0.1
PARSED_S: Final = 1.0
"""A request that an engine has had for so long is in its queue or beyond: it has been read and tokenized."""
DEFERRED: Final = b"llamacpp:requests_deferred "

SlotTask = tuple[int, int]
"""A slot and the task in it."""


class Watch(Protocol):
    """Looks at one engine for one request that it should stop to work on."""

    async def look(self) -> bool:
        """Whether it has stopped for sure, as of this moment."""


def build_watch(kind: EngineKind, port: EnginePort, headers: Mapping[str, str]) -> Watch:
    """The watch of an engine's kind. `headers` go with questions: those that let the client in."""
    match kind:
        case EngineKind.LLAMACPP:
            return LlamaCppWatch(port, headers)
        case EngineKind.GENERIC:
            return PortWatch(port)
        case _:
            assert_never(kind)


class PortWatch:
    """An engine that says nothing of its work has stopped for sure when its process is dead."""

    def __init__(self, port: EnginePort) -> None:
        self._port = port

    async def look(self) -> bool:
        """Whether its port refuses."""
        return await self._port.look() is Presence.GONE


class LlamaCppWatch:
    """Reads `/slots`, where each slot has the number of the task that it works on.

    Which task is ours is told nowhere, so all that may be ours are waited for: those that a slot works on
    once nothing waits for one. A task that starts after that is somebody else's.
    """

    def __init__(self, port: EnginePort, headers: Mapping[str, str]) -> None:
        self._port = port
        self._headers = headers
        self._suspects: frozenset[SlotTask] | None = None

    async def look(self) -> bool:
        """Whether no slot works on a task that may be ours."""
        if await self._port.look() is Presence.GONE:
            return True
        nothing_waits = self._suspects is None and await self._read_deferred() == 0
        working = await self._read_working()
        if working is None:
            return False
        if not working:
            return True  # a slot that is free takes what waits, so nothing does
        if self._suspects is not None:
            return not self._suspects & working
        if nothing_waits:
            self._suspects = working
        return False

    async def _read_working(self) -> frozenset[SlotTask] | None:
        """The tasks that slots work on; None where that is not told (`--no-slots`, loading, an API key)."""
        status, page = await self._port.ask("/slots", self._headers)
        return read_working(page) if status == 200 else None

    async def _read_deferred(self) -> int | None:
        """How many tasks wait for a slot; None where that is not told (without `--metrics`)."""
        status, page = await self._port.ask("/metrics", self._headers)
        return read_deferred(page) if status == 200 else None


def read_working(page: bytes) -> frozenset[SlotTask] | None:
    """The tasks in llama.cpp's `/slots`; None for what is no such page."""
    try:
        slots: Any = json.loads(page)
        return frozenset((int(one["id"]), int(one["id_task"])) for one in slots if one["is_processing"])
    except (ValueError, TypeError, KeyError):
        return None


def read_deferred(page: bytes) -> int | None:
    """The tasks without a slot in llama.cpp's `/metrics`; None where it has no such line."""
    for line in page.splitlines():
        if line.startswith(DEFERRED):
            try:
                return int(float(line.removeprefix(DEFERRED)))
            except (ValueError, OverflowError):
                return None
    return None


async def wait_stopped(watch: Watch, had_s: float) -> None:
    """Until the engine has stopped for sure, however long that is. `had_s`: how long it has had the whole
    request; before it has read that, what it says of its work says nothing of ours."""
    await asyncio.sleep(max(0.0, PARSED_S - had_s))
    while not await watch.look():  # noqa: ASYNC110  # what runs elsewhere can only be asked again
        await asyncio.sleep(LOOK_EVERY_S)
