"""What an engine remembers of its requests, and faults armed over the control endpoint."""

import asyncio
import hashlib
import json
from collections import deque

from envoy_ext.sim.state import MAX_RECORDS, EngineState
from tests.sim.conftest import StartEngine
from tests.sim.wire import CHAT, ask


async def test_a_request_is_remembered_with_what_the_gateway_sent(start_engine: StartEngine) -> None:
    engine = await start_engine()
    body = json.dumps({"messages": [{"role": "user", "content": "a secret"}], "stream": True}).encode()
    await ask(
        engine,
        CHAT,
        body,
        x_request_id="req-1",
        x_envoy_ext_attempt="att_1",
        X_Envoy_Ext_Lease="7",
        x_envoy_attempt_count="2",
        idempotency_key="key",
        accept_encoding="br",
        authorization="Bearer secret",
    )
    reply = await ask(engine, "/sim/requests?request_id=req-1", method="GET")
    (record,) = reply.json["requests"]
    assert record.pop("started_at") <= record.pop("finished_at")
    assert record == {
        "number": 1,
        "path": CHAT,
        "request_id": "req-1",
        "own_headers": {"x-envoy-ext-attempt": "att_1", "x-envoy-ext-lease": "7"},
        "attempt_count": "2",
        "idempotency_key": "key",
        "accept_encoding": "br",
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "body_bytes": len(body),
        "stream": True,
        "model": "sim",
        "limit": None,
        "items": 1,
        "generation": 1,
        "fault": None,
        "status": 200,
        "tokens_sent": 3,
        "tool_results": [],
        "ended": "done",
    }
    assert b"secret" not in reply.body


async def test_requests_are_found_by_their_id(start_engine: StartEngine) -> None:
    engine = await start_engine()
    for request_id in ("one", "two", "one"):
        await ask(engine, x_request_id=request_id)
    found = (await ask(engine, "/sim/requests?request_id=one", method="GET")).json["requests"]
    assert [record["number"] for record in found] == [1, 3]
    everything = (await ask(engine, "/sim/requests", method="GET")).json["requests"]
    assert len(everything) == 3
    assert (await ask(engine, "/sim/requests?request_id=x", method="GET")).json == {"requests": []}


async def test_a_prompt_of_five_mebibytes_arrives_whole(start_engine: StartEngine) -> None:
    engine = await start_engine()
    body = json.dumps({"prompt": "x" * (5 * 1024 * 1024), "stream": True}).encode()
    assert (await ask(engine, "/v1/completions", body)).complete
    assert engine.find_requests()[0].body_sha256 == hashlib.sha256(body).hexdigest()


def test_old_requests_are_forgotten() -> None:
    state = EngineState(max_running=1, next_generation=1)
    for _ in range(MAX_RECORDS + 5):
        state.open("/", None, 0.0, {})
    assert isinstance(state.requests, deque)
    assert (len(state.requests), state.requests[0].number) == (MAX_RECORDS, 6)


async def test_state_gives_the_counters(start_engine: StartEngine) -> None:
    engine = await start_engine(name="b")
    await ask(engine)
    state = (await ask(engine, "/sim/state", method="GET")).json
    assert {
        key: state[key] for key in ("name", "running", "waiting", "generations", "cancelled", "kv_tokens")
    } == {
        "name": "b",
        "running": 0,
        "waiting": 0,
        "generations": 1,
        "cancelled": 0,
        "kv_tokens": 0,
    }


async def test_an_armed_fault_holds_for_its_count(start_engine: StartEngine) -> None:
    engine = await start_engine()
    armed = await ask(engine, "/sim/faults", {"fault": "truncate=1", "count": 2})
    assert armed.json == {"faults": [{"fault": "truncate=1", "count": 2}]}
    for _ in range(3):
        await ask(engine)
    assert [record.ended for record in engine.find_requests()] == ["truncate", "truncate", "done"]


async def test_an_armed_fault_without_a_count_holds_until_it_is_deleted(start_engine: StartEngine) -> None:
    engine = await start_engine()
    await ask(engine, "/sim/faults", {"fault": "done_only", "count": None})
    await ask(engine)
    await ask(engine)
    assert (await ask(engine, "/sim/faults", method="DELETE")).json == {"faults": []}
    await ask(engine)
    assert [record.ended for record in engine.find_requests()] == ["done_only", "done_only", "done"]


async def test_armed_faults_are_used_in_their_order(start_engine: StartEngine) -> None:
    engine = await start_engine()
    for fault in ("no_done", "done_only"):
        await ask(engine, "/sim/faults", {"fault": fault, "count": 1})
    for _ in range(3):
        await ask(engine)
    assert [record.ended for record in engine.find_requests()] == ["no_done", "done_only", "done"]


async def test_a_requests_own_fault_comes_before_an_armed_one(start_engine: StartEngine) -> None:
    engine = await start_engine()
    await ask(engine, "/sim/faults", {"fault": "done_only", "count": 1})
    await ask(engine, fault="no_done")
    await ask(engine)
    assert [record.ended for record in engine.find_requests()] == ["no_done", "done_only"]


async def test_an_armed_fault_waits_for_a_request_that_can_show_it(start_engine: StartEngine) -> None:
    engine = await start_engine()
    await ask(engine, "/sim/faults", {"fault": "b:hang, truncate=1", "count": 1})
    await ask(engine, stream=False)
    await ask(engine)
    assert [record.ended for record in engine.find_requests()] == ["done", "truncate"]


async def test_a_malformed_control_request_is_refused(start_engine: StartEngine) -> None:
    engine = await start_engine()
    bodies = [b"{", [], {}, {"fault": 1}, {"fault": "hang", "count": 0}, {"fault": "hang", "count": True}]
    replies = [await ask(engine, "/sim/faults", body) for body in [*bodies, {"fault": "explode"}]]
    assert {reply.status for reply in replies} == {400}
    assert "known:" in replies[-1].json["error"]["message"]
    assert (await ask(engine, "/sim/faults", method="GET")).json == {"faults": []}


async def test_waiting_for_a_condition_returns_when_it_already_holds() -> None:
    state = EngineState(max_running=1, next_generation=1)
    async with asyncio.timeout(5):
        await state.wait_until(lambda: state.running == 0)


async def test_the_metrics_page_says_what_it_was_told_to_until_it_is_told_otherwise(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    told = json.dumps({"waiting": 20, "kv_cache_usage": 0.97}).encode()
    reply = await ask(engine, "/sim/load", told)
    assert (reply.status, reply.json) == (200, {"load": {"waiting": 20, "kv_cache_usage": 0.97}})
    page = (await ask(engine, "/metrics", method="GET")).body.decode()
    assert 'vllm:num_requests_waiting{engine="0",model_name="sim"} 20.0' in page
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="sim"} 0.97' in page
    assert 'vllm:num_requests_running{engine="0",model_name="sim"} 0.0' in page
    await ask(engine, "/sim/load", method="DELETE")
    page = (await ask(engine, "/metrics", method="GET")).body.decode()
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="sim"} 0.0' in page


async def test_figures_that_no_page_can_have_are_refused(start_engine: StartEngine) -> None:
    engine = await start_engine()
    for told in (b"[]", b'{"waiting": -1}', b'{"waiting": true}', b'{"queue": 1}', b"{"):
        assert (await ask(engine, "/sim/load", told)).status == 400
