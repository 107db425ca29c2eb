"""A tool's call when the sidecar dies beside it, and one that comes through another gateway."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from envoy_ext.domain import names
from envoy_ext.operations_client import fetch_operation
from envoy_ext.sim.tool_server import Behaviour, SimTool
from tests.with_envoy.asking import ask, mint_request_id
from tests.with_envoy.gateway import run_gateway
from tests.with_envoy.test_sidecar_death import run_apart

LEASE = {"ttl": "1s", "renew": "300ms", "margin": "200ms"}
"""What a lost attempt may still act for is waited for in full; a test has no need of seconds."""


OVER_XDS = {"concurrency": 1, "admin": {"port": 0}, "resources": "xds"}


def build_tools(tool: SimTool) -> dict[str, Any]:
    return {"listener": {"port": 0}, "routes": [{"name": "mail", "prefix": "/mail", "url": tool.url}]}


async def test_a_sidecar_killed_beside_a_call_leaves_it_unknown_and_nothing_is_called_without_it() -> None:
    async with SimTool() as tool, run_apart(tools=build_tools(tool), lease=LEASE) as apart:
        tool.behaviour = Behaviour(fault="hold")
        url = f"http://{await apart.envoy.find_listener(names.LISTENER_TOOLS)}/mail/send"
        wanted = json.dumps({"url": url, "arguments": {"to": "a"}})
        sent = {"idempotency-key": "k-1", "x-sim-tool": wanted}
        async with apart.sidecar() as (serving, _):
            request_id = mint_request_id()
            asking = asyncio.ensure_future(apart.ask(request_id, **sent))
            await tool.wait_executions(1)
            assert await serving.end(signal.SIGKILL) == -signal.SIGKILL
            assert (await asking)[0] == 503
            tool.behaviour = Behaviour()
            async with apart.http.post(url, json={}) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (503, "upstream_unavailable")

        async with apart.sidecar() as (serving, operations_url):
            async with asyncio.timeout(20):
                while True:  # what the sidecar before had begun is ended some time after a start
                    status, body = await apart.ask(mint_request_id(), **sent)
                    error = json.loads(body)["error"]
                    if error["code"] != "operation_in_progress":
                        break
                    await asyncio.sleep(0.2)
            assert (status, error["code"]) == (409, "tool_outcome_unknown")
            operation = await fetch_operation(operations_url, error["operation_id"])
            (call,) = operation["tool_calls"]
            assert (call["call_id"], call["state"]) == (tool.keys[0], "begun")
            assert len(tool.executions) == 1
            assert await serving.end(signal.SIGTERM) == 0


async def test_the_tool_listener_of_any_gateway_of_a_shared_store_does(tmp_path: Path) -> None:
    async with SimTool() as tool:
        shared = {
            "journal": {"path": str(tmp_path / "shared.db"), "shared": True},
            "tools": build_tools(tool),
        }
        async with (
            run_gateway(tmp_path, names="ab", **shared) as one,
            run_gateway(tmp_path, names="c", envoy=OVER_XDS, **shared) as other,
        ):
            wanted = json.dumps({"url": f"{other.stack.tools_url}/mail/send", "arguments": {"to": "a"}})
            reply = await ask(one, fault="#1:die_after_headers", headers={"x-sim-tool": wanted})
            assert (reply.status, reply.dones, len(tool.executions)) == (200, 1, 1)
            calls = [record.tool_results[0] for record in one.find_requests(reply.request_id)]
            assert [call.replayed for call in calls] == [False, True]
            for gateway, outcome in ((other, "granted"), (other, "answered")):
                assert gateway.read_metric("envoy_ext_tool_calls_total", tool="mail", outcome=outcome) == 1
