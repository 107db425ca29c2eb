"""An operations port that stops when its test ends."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.ops_port import OpsPort


@pytest_asyncio.fixture
async def ops() -> AsyncIterator[OpsPort]:
    async with OpsPort().serving() as ops:
        yield ops
