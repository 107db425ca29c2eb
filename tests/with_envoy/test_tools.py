"""A tool that an engine calls before its first delta is called once, whatever becomes of the engine."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import trustme

from envoy_ext.domain import names
from envoy_ext.sim.tool_calls import ToolResult
from envoy_ext.sim.tool_server import Behaviour, SimTool
from tests.with_envoy.asking import Reply, ask, asking, mint_request_id
from tests.with_envoy.gateway import Gateway, run_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 2048
NAME = "vault.test"
CA = trustme.CA()
SNI: list[str] = []
"""The names that Envoy has asked the tool over https for."""


def build_tools(tool: SimTool, vault: SimTool, ca_file: str) -> dict[str, Any]:
    """The section: one tool that acts, one that may be called twice, one that nobody listens at, and one over
    https, by its name and by another's."""
    return {
        "listener": {"port": 0},
        "max_request_bytes": "1KiB",
        "max_result_bytes": LIMIT,
        "routes": [
            {"name": "mail", "prefix": "/mail", "url": f"{tool.url}/api"},
            {"name": "search", "prefix": "/search", "url": tool.url, "idempotent": True},
            {"name": "vault", "prefix": "/vault", "url": vault.url, "host": NAME, "ca_file": ca_file},
            {"name": "false", "prefix": "/false", "url": vault.url, "host": "x.test", "ca_file": ca_file},
            {"name": "gone", "prefix": "/gone", "url": "http://127.0.0.1:9"},
        ],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[SimTool]:
    async with SimTool() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vault() -> AsyncIterator[SimTool]:
    """A tool over https."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert(NAME).configure_cert(tls)
    tls.sni_callback = lambda _socket, name, _context: SNI.append(name)  # type: ignore[assignment]
    async with SimTool(tls=tls) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def tool(server: SimTool) -> AsyncIterator[SimTool]:
    server.reset()
    yield server
    server.release()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    server: SimTool, vault: SimTool, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    ca_file = directory / "ca.pem"
    CA.cert_pem.write_to_path(ca_file)
    tools = build_tools(server, vault, str(ca_file))
    async with run_gateway(directory, tools=tools) as running:
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


async def show(gateway: Gateway, reply: Reply) -> dict[str, Any]:
    """The operation, with its tool calls, once it has ended."""
    operation = await gateway.wait_operation(reply.request_id)
    url = f"{gateway.stack.operations_url}/v1/operations/{operation['operation_id']}"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        shown: dict[str, Any] = await answer.json()
        return shown


async def test_a_replica_lost_during_its_call_ends_the_operation_which_says_which_call(
    gateway: Gateway, tool: SimTool
) -> None:
    tool.behaviour = Behaviour(fault="hold")
    request_id = mint_request_id()
    asking = asyncio.ensure_future(ask_with(gateway, call(gateway), request_id=request_id))
    await tool.wait_executions(1)
    for engine in gateway.engines.values():
        engine.cut(request_id)
    reply = await asking

    assert (reply.status, reply.json["error"]["code"]) == (409, "tool_outcome_unknown")
    assert reply.headers["x-should-retry"] == "false"
    assert reply.json["error"]["partial_output"] is False
    assert len(gateway.find_requests(request_id)) == 1, "no second attempt reached a replica"
    operation = await show(gateway, reply)
    assert reply.headers["location"] == f"/v1/operations/{operation['operation_id']}"
    (made,) = operation["tool_calls"]
    assert made["call_id"] == operation["error"]["tool_call_id"] == tool.keys[0]
    assert (made["tool"], made["state"], made["status"]) == ("mail", "unknown", None)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["replica_died", "refused"]
    assert len(tool.executions) == 1
    refused = gateway.read_metric(
        "envoy_ext_replays_refused_total", pool="chat", reason="tool_outcome_unknown"
    )
    assert refused == 1


async def test_a_clients_repeat_is_given_what_the_tool_said_to_the_first_one(
    gateway: Gateway, tool: SimTool
) -> None:
    """Both attempts were lost with nothing delivered: the key runs again, as another operation."""
    headers = {"idempotency-key": "repeated", "x-sim-tool": json.dumps([call(gateway)])}
    first = await ask(gateway, fault="die_after_headers", headers=headers)
    assert (first.status, first.json["error"]["code"]) == (503, "upstream_unavailable")
    again = await ask(gateway, headers=headers)

    assert (again.status, again.errors, again.dones) == (200, [], 1)
    assert again.headers["x-operation-id"] != first.headers["x-operation-id"]
    assert len(tool.executions) == 1
    ((result,),) = results(gateway, again)
    assert (result.status, result.replayed) == (200, True)
    (made,) = (await show(gateway, again))["tool_calls"]
    assert (made["state"], len(made["attempts"])) == ("recorded", 3)


async def test_a_tool_that_may_be_called_twice_is(gateway: Gateway, tool: SimTool) -> None:
    tool.behaviour = Behaviour(fault="hold")
    request_id = mint_request_id()
    wanted = call(gateway, "/search/x")
    asking = asyncio.ensure_future(ask_with(gateway, wanted, request_id=request_id))
    await tool.wait_executions(1)
    tool.behaviour = Behaviour()
    for engine in gateway.engines.values():
        engine.cut(request_id)
    reply = await asking

    assert (reply.status, reply.errors, reply.dones) == (200, [], 1)
    assert len(tool.executions) == 2
    assert len(set(tool.keys)) == 1
    (made,) = (await show(gateway, reply))["tool_calls"]
    assert (made["state"], made["status"], len(made["attempts"])) == ("recorded", 200, 2)


async def test_a_result_above_the_limit_passes_whole_and_forbids_the_replay(
    gateway: Gateway, tool: SimTool
) -> None:
    tool.behaviour = Behaviour(size=300_000)
    reply = await ask_with(gateway, call(gateway), fault="#1:die_after_headers")

    assert (reply.status, reply.json["error"]["code"]) == (503, "replay_not_allowed")
    ((result,),) = results(gateway, reply)
    assert (result.status, len(json.loads(result.body)["padding"])) == (200, 300_000)
    (made,) = (await show(gateway, reply))["tool_calls"]
    assert (made["state"], made["status"]) == ("not_kept", 200)
    assert len(tool.executions) == 1


async def test_a_call_that_found_no_tool_is_made_again(gateway: Gateway) -> None:
    reply = await ask_with(gateway, call(gateway, "/gone/x"), fault="#1:die_after_headers")

    assert (reply.status, reply.dones, reply.headers["x-attempt-count"]) == (200, 1, "2")
    assert [code(result) for (result,) in results(gateway, reply)] == [(503, "upstream_unavailable")] * 2
    (made,) = (await show(gateway, reply))["tool_calls"]
    assert (made["state"], len(made["attempts"])) == ("not_sent", 2)


@pytest.mark.parametrize("fault", ["cut", "cut_mid_body"])
async def test_a_call_that_got_no_whole_answer_is_not_made_again(
    gateway: Gateway, tool: SimTool, fault: str
) -> None:
    tool.behaviour = Behaviour(fault=fault)
    reply = await ask_with(gateway, call(gateway), call(gateway))

    assert (reply.status, reply.dones) == (200, 1), "the engine goes on as it likes"
    ((first, again),) = results(gateway, reply)
    assert code(first) == code(again) == (409, "tool_outcome_unknown")
    assert len(tool.executions) == 1
    assert [made["state"] for made in (await show(gateway, reply))["tool_calls"]] == ["unknown"]


async def test_a_callers_own_key_reaches_the_tool_and_is_the_call(gateway: Gateway, tool: SimTool) -> None:
    keyed = call(gateway, headers={"idempotency-key": "k-1"})
    other = call(gateway, headers={"idempotency-key": "k-1"}, arguments={"to": "b"})
    reply = await ask_with(gateway, keyed, keyed, other, fault="#1:die_after_headers")

    assert reply.status == 200
    assert tool.keys == ["k-1"]
    for first, again, reused in results(gateway, reply):
        assert first.body == again.body
        assert again.replayed
        assert code(reused) == (422, "idempotency_key_reused")


async def test_calls_at_once_and_in_another_order_get_their_own_results(
    gateway: Gateway, tool: SimTool
) -> None:
    def to(name: str, attempt: int, delay_s: float) -> dict[str, Any]:
        return call(gateway, arguments={"to": name}, attempt=attempt, delay_s=delay_s)

    turn = [to("a", 1, 0), to("b", 1, 0.05), to("a", 2, 0.05), to("b", 2, 0)]
    reply = await ask_with(gateway, turn, fault="#1:die_after_headers")

    assert (reply.status, len(tool.executions)) == (200, 2)
    first, second = results(gateway, reply)
    assert [result.body for result in first] == [result.body for result in second]
    assert [result.replayed for result in second] == [True, True]


async def test_another_call_in_the_place_of_one_that_acted_is_refused(
    gateway: Gateway, tool: SimTool
) -> None:
    turns = [call(gateway, attempt=1), call(gateway, "/mail/other", attempt=2)]
    reply = await ask_with(gateway, *turns, fault="#1:die_after_headers")

    assert (reply.status, reply.dones) == (200, 1)
    assert code(results(gateway, reply)[1][0]) == (409, "replay_not_allowed")
    assert len(tool.executions) == 1


async def test_an_attempt_that_is_over_calls_nothing(gateway: Gateway, tool: SimTool) -> None:
    reply = await ask_with(gateway, fault="#1:die_after_headers")
    operation = await show(gateway, reply)
    for attempt in operation["attempts"]:
        told = {names.OPERATION: operation["operation_id"], names.ATTEMPT: attempt["attempt_id"]}
        async with gateway.http.post(call(gateway)["url"], json={}, headers=told) as answer:
            assert answer.status == 409
            assert (await answer.json())["error"]["code"] == "attempt_superseded"
    assert tool.executions == []


async def test_no_header_of_an_engine_or_a_tool_steers_envoy_or_passes_for_ours(
    gateway: Gateway, tool: SimTool
) -> None:
    tool.behaviour = Behaviour(
        status=503, headers={names.TOOL_REPLAYED: "true", names.REPLAY: "x", "set-cookie": "a=b"}
    )
    hostile = {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "3", "x-envoy-upstream-alt-stat-name": "x"}
    unnamed = call(gateway, "/mail/unnamed", headers=hostile, names="none")
    reply = await ask_with(gateway, call(gateway, headers=hostile), unnamed, fault="#1:die_after_headers")

    assert len(tool.executions) == 3, "one recorded, and one unwatched by each attempt"
    for execution in tool.executions:
        assert not [name for name in execution.headers if name.startswith(names.ENVOY_PREFIX)]
    for watched, unwatched in results(gateway, reply):
        assert (watched.status, unwatched.status) == (503, 503)
        assert names.REPLAY not in watched.headers
        assert not unwatched.replayed
    assert [watched.replayed for watched, _ in results(gateway, reply)] == [False, True]
    assert "set-cookie" in results(gateway, reply)[0][0].headers
    assert "set-cookie" not in results(gateway, reply)[1][0].headers


async def test_what_is_no_call_of_a_tool_is_told_so(gateway: Gateway, tool: SimTool) -> None:
    large = {"to": "x" * 1500}
    reply = await ask_with(
        gateway,
        call(gateway, names="common"),
        call(gateway, arguments=large),
        call(gateway, arguments=large, names="none"),
        call(gateway, names="operation"),
        call(gateway, "/nowhere"),
    )
    ((passed, *refused),) = results(gateway, reply)
    assert passed.status == 200
    assert [code(result) for result in refused] == [
        (413, "request_too_large"),
        (413, "request_too_large"),
        (400, "invalid_request"),
        (404, "invalid_request"),
    ]
    assert len(tool.executions) == 1


async def test_an_mcp_server_is_called_once_and_answers_each_request_by_its_id(
    gateway: Gateway, tool: SimTool
) -> None:
    def rpc(number: int, method: str) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"name": "send"}}
        return call(gateway, arguments=message, attempt=number)

    turns = [rpc(1, "initialize"), rpc(1, "tools/call"), rpc(2, "initialize"), rpc(2, "tools/call")]
    reply = await ask_with(gateway, *turns, fault="#1:die_after_headers")

    assert reply.status == 200
    assert len(tool.executions) == 3, "each attempt opens a session of its own"
    first, second = (json.loads(made.body) for _, made in results(gateway, reply))
    assert (first["id"], second["id"]) == (1, 2)
    assert first["result"] == second["result"]


async def test_a_paths_prefix_is_replaced_by_that_of_the_url(gateway: Gateway, tool: SimTool) -> None:
    paths = ["/mail", "/mail/", "/mail/a%2Fb?x=1&y", "/search", "/search/deep/er", "/mailbox"]
    reply = await ask_with(gateway, *(call(gateway, path, names="none") for path in paths))
    told = [execution.path for execution in tool.executions]
    assert told == ["/api", "/api/", "/api/a%2Fb?x=1&y", "/", "/deep/er"]
    assert code(results(gateway, reply)[0][-1]) == (404, "invalid_request")


async def test_a_tool_over_https_must_be_who_it_is_called(gateway: Gateway, vault: SimTool) -> None:
    reply = await ask_with(gateway, call(gateway, "/vault/x"), call(gateway, "/false/x"))
    ((right, wrong),) = results(gateway, reply)
    assert (right.status, code(wrong)) == (200, (503, "upstream_unavailable"))
    assert [execution.headers["host"] for execution in vault.executions] == [NAME]
    assert SNI == [NAME, "x.test"]
    calls = (await show(gateway, reply))["tool_calls"]
    assert [(made["tool"], made["state"]) for made in calls] == [("vault", "recorded"), ("false", "not_sent")]


async def test_a_stream_that_is_listened_to_passes_while_it_is_open(gateway: Gateway, tool: SimTool) -> None:
    """As the one that an MCP client opens beside its calls: held to its end, nobody would hear anything."""
    tool.behaviour = Behaviour(fault="listen")
    request_id = mint_request_id()
    async with asking(gateway, fault="hang_after=1", request_id=request_id) as answer:
        await answer.content.readany()
        (record,) = gateway.find_requests(request_id)
        told = {name: record.own_headers[name] for name in (names.OPERATION, names.ATTEMPT)}
        listening = {**told, "accept": "text/event-stream"}
        async with gateway.http.get(f"{gateway.stack.tools_url}/mail/events", headers=listening) as stream:
            assert await stream.content.readuntil(b"\n\n") == b"data: 1\n\n"
            tool.release()
            assert await stream.content.read() == b""
        async with gateway.http.get(f"{gateway.stack.tools_url}/mail/once", headers=told) as plain:
            assert (plain.status, await plain.read()) == (200, b"data: 1\n\n"), "a call, and read to its end"
    assert [execution.key is None for execution in tool.executions] == [True, False]
