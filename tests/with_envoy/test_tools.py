"""A tool that an engine calls before its first delta is called once, whatever becomes of the engine."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from envoy_ext.domain import names
from envoy_ext.sim.tool_calls import ToolResult
from envoy_ext.sim.tool_server import SimTool
from tests.with_envoy.asking import Reply, ask, mint_request_id
from tests.with_envoy.gateway import Gateway, run_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 2048


def build_tools(tool: SimTool) -> dict[str, Any]:
    """The section: one tool that acts, one that may be called twice, one that nobody listens at."""
    return {
        "listener": {"port": 0},
        "max_request_bytes": "4KiB",
        "max_result_bytes": LIMIT,
        "routes": [
            {"name": "mail", "prefix": "/mail", "url": f"{tool.url}/api"},
            {"name": "search", "prefix": "/search", "url": tool.url, "idempotent": True},
            {"name": "gone", "prefix": "/gone", "url": "http://127.0.0.1:9"},
        ],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[SimTool]:
    async with SimTool() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def tool(server: SimTool) -> AsyncIterator[SimTool]:
    server.reset()
    yield server
    server.release()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(server: SimTool, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with run_gateway(tmp_path_factory.mktemp("gateway"), tools=build_tools(server)) as running:
        yield running


def call(gateway: Gateway, path: str = "/mail/send", **fields: Any) -> dict[str, Any]:
    return {"url": gateway.stack.tools_url + path, "arguments": {"to": "a", "n": 1}, **fields}


async def ask_with(gateway: Gateway, *turns: Any, fault: str = "", request_id: str = "") -> Reply:
    """A request whose engine makes these calls."""
    headers = {"x-sim-tool": json.dumps(list(turns))}
    return await ask(gateway, fault=fault, headers=headers, request_id=request_id or mint_request_id())


def results(gateway: Gateway, reply: Reply) -> list[list[ToolResult]]:
    """What each attempt's engine got of its calls."""
    return [record.tool_results for record in gateway.find_requests(reply.request_id)]


def code(result: ToolResult) -> tuple[int, str]:
    return result.status, json.loads(result.body)["error"]["code"]


async def test_a_replica_lost_after_its_call_costs_no_second_one(gateway: Gateway, tool: SimTool) -> None:
    reply = await ask_with(gateway, call(gateway), fault="#1:die_after_headers")

    assert (reply.status, reply.errors, reply.dones) == (200, [], 1)
    (execution,) = tool.executions
    (first,), (second,) = results(gateway, reply)
    assert (first.replayed, second.replayed) == (False, True)
    assert (first.status, first.body) == (second.status, second.body)
    assert json.loads(execution.body)["to"] == "a"
    assert not [name for name in execution.headers if name.startswith(names.ENVOY_PREFIX)]
