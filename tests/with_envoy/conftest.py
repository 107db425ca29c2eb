"""One gateway for all tests of a module, unless a test starts its own.

A module that needs another configuration names it: `GATEWAY = {"names": "ab", "limits": {…}}`, the
arguments of `run_gateway`; `WIRED` likewise, in front of replicas made of bytes. Such modules run
on one event loop (`loop_scope="module"`).
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.with_envoy.gateway import Gateway, run_gateway
from tests.with_envoy.wire import Wired, run_wire_gateway


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts a real Envoy."""
    for item in items:
        if "with_envoy" in item.path.parts:
            item.add_marker(pytest.mark.with_envoy)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    """The module's gateway."""
    options = getattr(request.module, "GATEWAY", {})
    async with run_gateway(tmp_path_factory.mktemp("gateway"), **options) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wired(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Wired]:
    """The module's gateway in front of replicas made of bytes."""
    options = getattr(request.module, "WIRED", {})
    async with run_wire_gateway(tmp_path_factory.mktemp("wired"), **options) as running:
        yield running
