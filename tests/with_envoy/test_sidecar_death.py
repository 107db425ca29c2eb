"""The sidecar dies by SIGKILL: what is in flight is cut, what had begun is found again, Envoy serves on."""

import asyncio
import json
import signal
from typing import Any

import aiohttp
import pytest

from envoy_ext.operations_client import fetch_operations
from tests.with_envoy.apart import run_apart
from tests.with_envoy.asking import mint_request_id

both = pytest.mark.parametrize("resources", ["static", "xds"])


@both
async def test_a_killed_sidecar_cuts_what_is_in_flight_and_loses_no_operation(resources: str) -> None:
    async with run_apart(resources) as apart:
        whole, held, keyed = (mint_request_id() for _ in range(3))
        streams = [mint_request_id() for _ in range(5)]
        async with apart.sidecar() as (serving, _):
            assert (await apart.ask(whole))[0] == 200
            answers = [await apart.post(request_id, "hang_after=3") for request_id in streams]
            holding = asyncio.ensure_future(apart.ask(held, "hang_after_headers"))
            cut_with_key = await apart.post(keyed, "hang_after=3", **{"idempotency-key": "k-1"})
            for request_id in (*streams, keyed):
                await apart.wait_engines(request_id, None, tokens=3)
            await apart.wait_engines(held, None)
            for answer in (*answers, cut_with_key):
                assert answer.status == 200
                await answer.content.readuntil(b"\n\n")

            assert await serving.end(signal.SIGKILL) == -signal.SIGKILL

            for answer in (*answers, cut_with_key):
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
            held_id = assert_unavailable(*await holding)
            for request_id in (*streams, held, keyed):
                await apart.wait_engines(request_id, "client_disconnected")
            # Nothing passes unwatched: without a sidecar the answer is no, and it comes at once.
            assert assert_unavailable(*await apart.ask(mint_request_id(), **FORGED)) is None

        async with apart.sidecar() as (serving, operations_url):
            operations = {one["request_id"]: one for one in await fetch_operations(operations_url, 100)}
            assert set(operations) == {whole, held, keyed, *streams}
            assert operations.pop(whole)["state"] == "completed"
            assert operations[held]["operation_id"] == held_id, "what Envoy's own answer had called it"
            for request_id, operation in operations.items():
                assert_ended_by_the_restart(operation, first_delta=request_id != held)

            new = mint_request_id()
            status, body = await apart.ask(new)
            assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
            status, body = await apart.ask(mint_request_id(), **{"idempotency-key": "k-1"})
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (409, "operation_incomplete")
            assert error["delivered_output_tokens"] is None
            assert await serving.end(signal.SIGTERM) == 0


FORGED = {"x-envoy-ext-operation": "op_of_mine"}


def assert_unavailable(status: int, body: bytes) -> str | None:
    """And the operation's id that is told; None where none is."""
    error = json.loads(body)["error"]
    assert (status, error["code"], error["partial_output"]) == (503, "upstream_unavailable", False)
    told: str | None = error["operation_id"]
    return told


def assert_ended_by_the_restart(operation: dict[str, Any], *, first_delta: bool) -> None:
    """What the dead sidecar knew of the end went with it; saying "unknown" is all that is true."""
    assert (operation["state"], operation["ending"]) == ("failed", "unknown")
    assert operation["ended_at"] is not None
    assert operation["first_delta_sent"] is first_delta
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["unknown"]
    assert operation["delivered_deltas"] is None if first_delta else operation["delivered_deltas"] == 0


async def test_a_sidecar_that_is_killed_again_and_again_loses_none() -> None:
    async with run_apart() as apart:
        begun: set[str] = set()
        for life in range(3):
            async with apart.sidecar() as (serving, _):
                requests = [mint_request_id() for _ in range(8)]
                asked = [asyncio.ensure_future(apart.ask(one, "slow=3")) for one in requests]
                await apart.wait_engines(requests[life], None, tokens=1)
                await serving.end(signal.SIGKILL)
                await asyncio.gather(*asked, return_exceptions=True)
                # Which of the eight had begun is the question; the engines know which got that far.
                reached = {record.request_id for engine in apart.engines for record in engine.find_requests()}
                begun |= reached & set(requests)

        async with apart.sidecar() as (serving, operations_url):
            operations = {one["request_id"]: one for one in await fetch_operations(operations_url, 100)}
            assert begun <= set(operations)
            assert len(begun) >= 3
            assert all(
                one["ended_at"] and all(a["ended_at"] for a in one["attempts"]) for one in operations.values()
            )
            assert await serving.end(signal.SIGTERM) == 0


async def test_a_key_whose_attempt_a_killed_sidecar_left_running_is_free_when_that_can_act_no_more() -> None:
    async with run_apart(lease={"ttl": "1s", "renew": "200ms", "margin": "500ms"}) as apart:
        lost = mint_request_id()
        async with apart.sidecar() as (serving, _):
            holding = asyncio.ensure_future(apart.ask(lost, "hang", **{"idempotency-key": "k-1"}))
            await apart.wait_engines(lost, None)
            await serving.end(signal.SIGKILL)
            assert_unavailable(*await holding)
        async with apart.sidecar() as (serving, operations_url):
            answers = []
            async with asyncio.timeout(20):
                while not answers or answers[-1][0] == 409:
                    answers.append(await apart.ask(mint_request_id(), **{"idempotency-key": "k-1"}))
            assert {json.loads(body)["error"]["code"] for _, body in answers[:-1]} <= {
                "operation_in_progress"
            }
            assert answers[-1][0] == 200
            operations = {one["request_id"]: one for one in await fetch_operations(operations_url, 100)}
            assert_ended_by_the_restart(operations[lost], first_delta=False)
            assert await serving.end(signal.SIGTERM) == 0


@both
async def test_a_sidecar_that_hangs_is_noticed_and_forgiven(resources: str) -> None:
    """Its kernel still takes connections; only Envoy's patience for a message ends the wait."""
    async with run_apart(resources) as apart, apart.sidecar() as (serving, _):
        assert (await apart.ask(mint_request_id()))[0] == 200

        serving.process.send_signal(signal.SIGSTOP)
        assert_unavailable(*await apart.ask(mint_request_id()))

        serving.process.send_signal(signal.SIGCONT)
        status, body = await apart.ask(mint_request_id())
        assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
        assert await serving.end(signal.SIGTERM) == 0
