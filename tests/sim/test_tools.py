"""An engine's server-side tool, and the simulated tool it calls."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from envoy_ext.sim.faults import FaultError
from envoy_ext.sim.tool_calls import SimToolCall, parse_tool_calls
from envoy_ext.sim.tool_server import Behaviour, SimTool
from tests.sim.conftest import StartEngine
from tests.sim.wire import ask

CHAT = "/v1/chat/completions"
OURS = {"x_envoy_ext_operation": "op_1", "x_envoy_ext_attempt": "att_1"}


@pytest_asyncio.fixture
async def tool() -> AsyncIterator[SimTool]:
    async with SimTool() as running:
        yield running


def call(tool: SimTool, path: str = "/mail", **fields: Any) -> str:
    return json.dumps({"url": tool.url + path, "arguments": {"to": "a"}, **fields})


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_is_called_once_before_the_answer_and_told_for_whom(
    start_engine: StartEngine, tool: SimTool, stream: bool
) -> None:
    engine = await start_engine()
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": stream}).encode()
    reply = await ask(engine, CHAT, body, x_sim_tool=call(tool), **OURS)
    (execution,) = tool.executions
    assert reply.status == 200
    assert execution.headers["x-envoy-ext-operation"] == "op_1"
    assert execution.headers["x-envoy-ext-attempt"] == "att_1"
    assert json.loads(execution.body)["to"] == "a"
    assert json.loads(execution.body)["tool_call_id"].startswith("call_")
    (record,) = engine.find_requests()
    (result,) = record.tool_results
    assert (result.status, result.replayed, json.loads(result.body)["execution"]) == (200, False, 1)


@pytest.mark.parametrize(
    ("fault", "executions"),
    [("die_before_headers", 0), ("die_in_tool=0.3", 1), ("die_after_headers", 1)],
)
async def test_an_engine_dies_before_in_or_after_its_call(
    start_engine: StartEngine, tool: SimTool, fault: str, executions: int
) -> None:
    engine = await start_engine()
    if fault.startswith("die_in"):
        tool.behaviour = Behaviour(fault="hold")
    reply = await ask(engine, x_sim_tool=call(tool), x_sim_fault=fault, **OURS)
    assert not reply.raw or not reply.complete
    assert b"choices" not in reply.raw
    assert engine.find_requests()[0].ended == fault.partition("=")[0]
    assert len(tool.executions) == executions


async def test_an_answer_is_cut_while_its_call_is_held(start_engine: StartEngine, tool: SimTool) -> None:
    engine = await start_engine()
    tool.behaviour = Behaviour(fault="hold")
    asking = asyncio.ensure_future(ask(engine, x_request_id="req-1", x_sim_tool=call(tool), **OURS))
    await tool.wait_executions(1)
    engine.cut("req-1")
    assert not (await asking).complete


async def test_turns_are_made_one_after_the_other_and_some_by_one_attempt_alone(
    start_engine: StartEngine, tool: SimTool
) -> None:
    engine = await start_engine()
    one = {"url": f"{tool.url}/one", "delay_s": 0.05}
    turns = [[one, {"url": f"{tool.url}/two", "names": "common"}], {"url": f"{tool.url}/three", "attempt": 2}]
    await ask(engine, x_sim_tool=json.dumps(turns), **OURS)
    assert [execution.path for execution in tool.executions] == ["/two", "/one"]
    assert tool.executions[0].headers["x-operation-id"] == "op_1"
    await ask(engine, x_sim_tool=json.dumps(turns), x_envoy_attempt_count="2", **OURS)
    assert tool.executions[-1].path == "/three"


@pytest.mark.parametrize("text", ["{", '{"to": 1}', "[[[]]]", "7"])
def test_what_is_no_call_is_a_mistake(text: str) -> None:
    with pytest.raises(FaultError, match="x-sim-tool"):
        parse_tool_calls(text)


def test_one_call_is_one_turn() -> None:
    assert parse_tool_calls('{"url": "u"}') == ((SimToolCall("u"),),)
    assert parse_tool_calls("") == ()


async def test_a_tool_behaves_as_it_is_told_and_shows_what_it_did(tool: SimTool) -> None:
    async with aiohttp.ClientSession() as http:
        told = {"status": 503, "size": 100, "headers": {"x-more": "1"}}
        async with http.post(f"{tool.url}/sim/behaviour", json=told) as answer:
            assert answer.status == 200
        async with http.post(f"{tool.url}/x?y=1", data=b"z", headers={"idempotency-key": "k"}) as answer:
            assert (answer.status, answer.headers["x-more"]) == (503, "1")
            assert len(await answer.read()) > 100
        async with http.get(f"{tool.url}/sim/executions") as answer:
            (shown,) = (await answer.json())["executions"]
        assert (shown["path"], shown["key"], shown["body"]) == ("/x?y=1", "k", "z")
        async with http.post(f"{tool.url}/sim/behaviour", json={"what": 1}) as answer:
            assert answer.status == 400
        for fault in ("cut", "cut_mid_body"):
            tool.behaviour = Behaviour(fault=fault)
            with pytest.raises(aiohttp.ClientError):
                async with http.post(f"{tool.url}/x") as answer:
                    await answer.read()
        assert tool.keys == ["k", None, None]
