"""Engines that stop when their test ends."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from envoy_ext.sim.engine import SimEngine
from tests.sim.wire import quick

StartEngine = Callable[..., Awaitable[SimEngine]]


@pytest_asyncio.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Starts an engine with `quick` options; keyword arguments change them."""
    async with AsyncExitStack() as stack:

        async def start(**changes: Any) -> SimEngine:
            return await stack.enter_async_context(SimEngine(quick(**changes)))

        yield start
