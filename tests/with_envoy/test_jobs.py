"""Jobs: taken in, run when there is a slot that nobody waits for, looked at, fetched, cancelled, too late."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.with_envoy.asking import (
    CHAT,
    Reply,
    ask,
    asking,
    build_body,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import WAIT_S, Gateway, run_gateway
from tests.with_envoy.job_client import cancel, fetch, look, submit, wait_headers, wait_state

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATER = {"ladder": ["job"]}
SECTIONS: dict[str, Any] = {
    "jobs": {},
    "capacity": {"concurrency": 1},
    # Who cancels frees its slot when the engine's own figures say so.
    "readiness": {"scrape": "100ms", "stale": "5s"},
    "lease": {"ttl": "1s", "renew": "200ms", "margin": "200ms"},
    "admission": {
        "queue": 1,
        "max_wait": "300ms",
        "classes": {
            "later": LATER,
            "patient": {"max_wait": "20s"},
            "payment": {"side_effects": True},
        },
    },
    "data_classes": {"default": {"boundaries": ["local"]}, "health": {"boundaries": ["site"]}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with run_gateway(tmp_path_factory.mktemp("gateway"), "a", **SECTIONS) as running:
        yield running
        assert running.stack.app._jobs is not None
        assert running.stack.app._jobs.runner.idle


@contextlib.asynccontextmanager
async def busy(gateway: Gateway) -> AsyncIterator[None]:
    """The one slot is taken."""
    async with asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        yield
    await gateway.wait_idle()


async def test_a_request_that_need_not_be_waited_for_is_run_and_fetched(gateway: Gateway) -> None:
    """It asked for a stream: a job's result is one document."""
    body = build_body(stream=True, stream_options={"include_usage": True})
    taken = await submit(gateway, body=body, headers={"authorization": "Bearer me"})
    operation_id = taken.headers["x-operation-id"]
    assert (taken.status, taken.headers["preference-applied"]) == (202, "respond-async")
    assert taken.headers["location"] == f"/v1/operations/{operation_id}"
    assert 1 <= int(taken.headers["retry-after"]) <= 3
    assert taken.json["job"]["state"] == "queued"
    assert (await look(gateway, taken)).status == 404  # somebody else's
    assert (await fetch(gateway, taken, authorization="Bearer you")).status == 404
    assert (await cancel(gateway, taken, authorization="Bearer you")).status == 404

    me = {"authorization": "Bearer me"}
    record = await wait_request(gateway, taken.request_id, lambda one: one.ended == "done")
    async with asyncio.timeout(WAIT_S):
        while (result := await fetch(gateway, taken, **me)).status == 202:
            await asyncio.sleep(0.02)
    assert (result.status, result.headers["x-operation-id"]) == (200, operation_id)
    assert "idempotent-replayed" not in result.headers
    assert result.json["choices"][0]["finish_reason"] == "stop"
    assert len(result.json["choices"][0]["message"]["content"].split()) == 6
    assert (record.stream, gateway.find_requests(taken.request_id)) == (False, [record])
    assert (await fetch(gateway, taken, **me)).body == result.body
    shown = (await look(gateway, taken, **me)).json
    assert (shown["state"], shown["phase"], shown["job"]["state"]) == ("completed", "completed", "succeeded")
    assert shown["job"]["runs"] == [operation_id]
    assert gateway.read_metric("envoy_ext_jobs_ended_total", pool="chat", state="succeeded") >= 1


async def test_nothing_of_a_job_but_ids_and_names_is_logged_counted_or_shown_to_operators(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "envoy_ext")
    secret = f"secret-{mint_request_id()}"
    body = build_body(stream=False, messages=[{"role": "user", "content": secret}])
    taken = await submit(gateway, body=body, headers={"authorization": f"Bearer {secret}"})
    me = {"authorization": f"Bearer {secret}"}
    await wait_state(gateway, taken, "succeeded", **me)
    answer = (await fetch(gateway, taken, **me)).json["choices"][0]["message"]["content"]
    seen = [str(vars(record)) for record in caplog.records]
    assert [one for one in ("job_submitted", "job_ended") if not any(one in line for line in seen)] == []
    pages = (
        f"/v1/operations/{taken.headers['x-operation-id']}",
        "/v1/operations",
        "/v1/jobs?state=succeeded",
        "/metrics",
    )
    for page in pages:
        async with gateway.http.get(gateway.stack.operations_url + page) as told:
            seen.append(await told.text())
    assert any(taken.headers["x-operation-id"] in one for one in seen[-4:-1])
    assert [one for one in seen if secret in one or answer in one] == []


async def test_nobody_waits_for_what_does_not_ask_for_it_or_cannot_be_a_job(gateway: Gateway) -> None:
    assert (await ask(gateway, headers={"prefer": "respond-async=false"})).dones == 1
    listed = await ask(gateway, "/v1/models", method="GET", headers={"prefer": "respond-async"})
    assert (listed.status, "location" in listed.headers) == (200, False)
    assert (await ask(gateway, "/v1/audio", body={}, headers={"prefer": "respond-async"})).status == 404


async def test_a_header_of_ours_from_a_client_makes_no_run_and_finds_none(gateway: Gateway) -> None:
    async with busy(gateway):
        taken = await submit(gateway)
        forged = await ask(
            gateway, headers={"x-envoy-ext-run": taken.headers["x-operation-id"], "x-envoy-ext-role": "run"}
        )
        assert (forged.status, forged.json["error"]["code"]) == (503, "queue_deadline_exceeded")
        assert (await look(gateway, taken)).json["job"]["state"] == "queued"
    await wait_state(gateway, taken, "succeeded")


async def test_a_key_is_one_job_and_one_operation_however_it_is_asked_for(gateway: Gateway) -> None:
    key = {"idempotency-key": mint_request_id()}
    async with busy(gateway):
        first, again = [await submit(gateway, headers=key) for _ in range(2)]
        assert (again.status, again.headers["location"]) == (202, first.headers["location"])
        other = await submit(gateway, headers=key, body=build_body(stream=False, n=1))
        assert (other.status, other.json["error"]["code"]) == (422, "idempotency_key_reused")
        body = build_body(stream=False)
        at_once = await ask(gateway, headers=key, body=body)
        assert (at_once.status, at_once.json["error"]["code"]) == (409, "operation_in_progress")
        waits = asyncio.create_task(ask(gateway, headers={**key, "prefer": "wait=9"}, body=body))
    waited = await waits
    result = await fetch(gateway, first)
    assert (waited.status, waited.body) == (200, result.body)
    assert waited.headers["preference-applied"] == "wait=9"
    assert (await submit(gateway, headers=key)).headers["location"] == first.headers["location"]
    assert [one.request_id for one in gateway.engines["a"].find_requests()].count(first.request_id) == 1
    assert gateway.find_requests(waited.request_id) == []


async def test_who_would_rather_come_back_does_not_wait_for_what_runs_under_its_key(gateway: Gateway) -> None:
    key, request_id = {"idempotency-key": mint_request_id()}, mint_request_id()
    async with asking(gateway, fault="hang_after=1", request_id=request_id, headers=key) as answer:
        await read_deltas(answer, 1)
        wants = "respond-async, wait=9"
        told = await asyncio.wait_for(submit(gateway, wants=wants, headers=key, body=build_body()), 8)
        assert (told.status, told.json["error"]["code"]) == (409, "operation_in_progress")
    await gateway.wait_idle()


async def test_a_key_that_was_answered_at_once_is_no_job(gateway: Gateway) -> None:
    key = {"idempotency-key": mint_request_id()}
    body = build_body(stream=False)
    answer = await ask(gateway, headers=key, body=body)
    repeat = await submit(gateway, headers=key, body=body)
    assert (repeat.status, repeat.body) == (200, answer.body)


async def test_a_job_that_waits_is_cancelled_before_anybody_is_asked(gateway: Gateway) -> None:
    async with busy(gateway):
        taken = await submit(gateway)
        over = await cancel(gateway, taken)
        assert (over.status, over.json["job"]["state"], over.json["state"]) == (200, "cancelled", "cancelled")
        again = await ask(gateway, taken.headers["location"], method="DELETE")
        assert (again.status, again.json["job"]["state"]) == (200, "cancelled")
    result = await fetch(gateway, taken)
    assert (result.status, result.json["error"]["code"]) == (410, "operation_cancelled")
    later = await submit(gateway)  # the slot is free, and whoever was before it has had its turn
    await wait_state(gateway, later, "succeeded")
    assert gateway.find_requests(taken.request_id) == []


async def test_a_job_that_runs_is_cancelled_at_its_engine_which_is_free_again(gateway: Gateway) -> None:
    gateway.engines["a"].faults.arm("hang_mid_body", 1)
    taken = await submit(gateway)
    await wait_headers(gateway, taken)
    told = await ask(gateway, taken.headers["location"], method="DELETE")
    assert told.status == 202
    assert told.json["job"]["cancel_requested"] is True
    shown = await wait_state(gateway, taken, "cancelled")
    assert (shown["state"], len(shown["job"]["runs"])) == ("cancelled", 1)
    await wait_request(gateway, taken.request_id, lambda one: one.ended == "client_disconnected")
    later = await submit(gateway)
    await wait_state(gateway, later, "succeeded")
    late = await cancel(gateway, later)
    assert (late.status, late.json["error"]["code"]) == (409, "operation_ended")
    assert "succeeded" in late.json["error"]["message"]


async def test_a_job_that_is_not_finished_in_its_time_has_expired(gateway: Gateway) -> None:
    gateway.engines["a"].faults.arm("hang", 1)
    runs = await submit(gateway, headers={"x-request-deadline": "1.5"})
    await wait_request(gateway, runs.request_id)
    waits = await submit(gateway, headers={"x-request-deadline": "0.1"})
    for one in (runs, waits):
        shown = await wait_state(gateway, one, "expired")
        assert (shown["state"], shown["error"]["code"]) == ("failed", "deadline_exceeded")
        result = await fetch(gateway, one)
        assert (result.status, result.json["error"]["code"]) == (410, "deadline_exceeded")
    await wait_request(gateway, runs.request_id, lambda one: one.ended == "client_disconnected")
    assert gateway.find_requests(waits.request_id) == []


async def test_what_cannot_be_decided_for_is_refused_before_it_is_a_job(gateway: Gateway) -> None:
    outside = await submit(gateway, headers={"x-data-class": "health"})
    assert (outside.status, outside.json["error"]["code"]) == (403, "data_class_forbidden")
    strange = await submit(gateway, body=build_body(model="nobody"))
    assert (strange.status, strange.json["error"]["code"]) == (404, "invalid_request")
    assert (await ask(gateway, "/v1/operations/op_none/result", method="GET")).status == 404


async def test_what_an_engine_says_to_a_bad_request_is_the_result(gateway: Gateway) -> None:
    taken = await submit(gateway, body=build_body(stream=False, max_tokens=0))
    shown = await wait_state(gateway, taken, "failed")
    assert len(shown["job"]["runs"]) == 1
    result = await fetch(gateway, taken)
    assert (result.status, "max_tokens" in json.dumps(result.json)) == (400, True)


async def test_an_answer_that_breaks_off_is_computed_again_and_given_whole(gateway: Gateway) -> None:
    """Behind its first bytes, where no client's request would be: nothing of it has reached one."""
    gateway.engines["a"].faults.arm("die_mid_body", 1)
    taken = await submit(gateway)
    shown = await wait_state(gateway, taken, "succeeded")
    first, second = gateway.find_requests(taken.request_id)
    assert (first.ended, second.ended) == ("die_mid_body", "done")
    assert first.finished_at is not None
    assert first.finished_at <= second.started_at
    assert shown["job"]["runs"][0] == taken.headers["x-operation-id"] != shown["job"]["runs"][1]
    assert (await fetch(gateway, taken)).json["choices"][0]["finish_reason"] == "stop"


async def test_what_acts_on_the_world_is_not_done_again_when_its_answer_breaks_off(gateway: Gateway) -> None:
    gateway.engines["a"].faults.arm("die_mid_body", 1)
    taken = await submit(gateway, headers={"x-request-class": "payment"})
    shown = await wait_state(gateway, taken, "failed")
    assert len(gateway.find_requests(taken.request_id)) == 1
    assert shown["error"]["code"] == "replay_not_allowed"
    result = await fetch(gateway, taken)
    assert (result.status, result.headers["x-should-retry"]) == (503, "false")


async def ask_later(gateway: Gateway, **options: Any) -> Reply:
    headers = {"x-request-class": "later", **options.pop("headers", {})}
    return await ask(gateway, CHAT, headers=headers, stream=options.pop("stream", False), **options)


async def wait_depth(gateway: Gateway, depth: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while gateway.read_metric("envoy_ext_queue_depth", pool="chat") != depth:
            await asyncio.sleep(0.005)


async def test_the_ladder_makes_a_job_of_what_would_be_refused(gateway: Gateway) -> None:
    """At once where the line is full, and behind a wait in vain where it is not."""
    key = {"idempotency-key": mint_request_id()}
    async with busy(gateway):
        waits = asyncio.create_task(ask(gateway, headers={"x-request-class": "patient"}))
        await wait_depth(gateway, 1)
        full = await ask_later(gateway)
        stream = await ask_later(gateway, stream=True)
        assert (stream.status, stream.json["error"]["code"]) == (429, "queue_full")
        waits.cancel()
        await wait_depth(gateway, 0)
        waited = await ask_later(gateway, headers=key)
        for one in (full, waited):
            assert (one.status, one.headers["x-degraded"]) == (202, "job")
            assert "preference-applied" not in one.headers
        again = await ask_later(gateway, headers=key)
        assert (again.status, again.json["error"]["code"]) == (409, "operation_in_progress")
    for one in (full, waited):
        await wait_state(gateway, one, "succeeded")
        result = await fetch(gateway, one)
        assert (result.status, result.headers["x-degraded"]) == (200, "job")
        assert len(gateway.find_requests(one.request_id)) == 1
    assert (await ask_later(gateway, headers=key)).status == 200


async def test_two_hundred_jobs_on_two_slots_keep_no_request_waiting_for_their_like(tmp_path: Path) -> None:
    """A request finds at most the two that run when it comes: no other job begins before it does."""
    sections = {"jobs": {}, "capacity": {"concurrency": 2}}
    engine = {"tokens": 2, "token_s": 0.002, "prefill_s": 0.005}
    async with run_gateway(tmp_path, "a", engine=engine, **sections) as gateway:
        jobs = await asyncio.gather(*(submit(gateway, headers=as_caller(n % 3)) for n in range(200)))
        assert {one.status for one in jobs} == {202}
        ahead = []
        for _ in range(20):
            came = time.time()
            request = await ask(gateway)
            assert (request.status, request.dones) == (200, 1)
            (own,) = gateway.find_requests(request.request_id)
            begun = [
                one.started_at
                for one in gateway.engines["a"].find_requests()
                if one.request_id != own.request_id
            ]
            ahead.append(sum(came <= at < own.started_at for at in begun))
        # Those that had a slot already may not have been at the engine yet.
        assert max(ahead) <= 2
        assert gateway.read_metric("envoy_ext_jobs_ended_total", pool="chat", state="succeeded") < 200
        for number, one in enumerate(jobs):
            await wait_state(gateway, one, "succeeded", **as_caller(number % 3))
        asked = [gateway.find_requests(one.request_id) for one in jobs]
        assert [len(one) for one in asked] == [1] * 200
        assert gateway.engines["a"].state.generations - 220 <= 2  # and what proved that it is ready
        assert gateway.read_metric("envoy_ext_jobs_ended_total", pool="chat", state="succeeded") == 200


def as_caller(number: int) -> dict[str, str]:
    return {"authorization": f"Bearer {number}"}
