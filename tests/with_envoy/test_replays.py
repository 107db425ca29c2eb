"""A replica that is lost before the first delta: the client gets one whole answer from another one."""

from pathlib import Path

import pytest

from tests.with_envoy.asking import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, TGI, Reply, ask
from tests.with_envoy.gateway import Gateway, run_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 6


def assert_one_whole_answer(reply: Reply) -> None:
    """Complete, from one generation, in order, with one preamble and one end."""
    assert (reply.status, reply.cut, reply.errors) == (200, False, [])
    assert len(reply.sources) == 1
    assert [mark.index for mark in reply.marks] == list(range(TOKENS))
    assert reply.role_chunks == 1
    assert reply.dones == 1
    assert len({event["id"] for event in reply.events}) == 1
    assert reply.body.endswith(b"data: [DONE]\n\n")


async def assert_replayed_once(gateway: Gateway, reply: Reply, outcome: str) -> None:
    """Two attempts at two replicas, and everybody says so: client, engines, journal."""
    operation = await gateway.wait_operation(reply.request_id)
    first, second = operation["attempts"]
    assert reply.headers["x-attempt-count"] == "2"
    assert reply.headers["x-operation-id"] == operation["operation_id"]
    assert (first["outcome"], second["outcome"]) == (outcome, "completed")
    assert first["replica"] != second["replica"]
    (source,) = reply.sources
    assert source[0] == second["replica"]
    assert (operation["state"], operation["ending"], operation["error"]) == ("completed", "finished", None)
    assert operation["delivered_deltas"] == len(reply.parts) == TOKENS


@pytest.mark.parametrize(
    "fault",
    [
        "die_before_headers:fin",
        "die_before_headers:rst",
        "die_after_headers:fin",
        "die_after_headers:rst",
        "die_after_role:fin",
        "die_after_role:rst",
        # The first event is computed and half of it has left the replica; nobody could read it.
        "die_mid_event=0:fin",
        "die_mid_event=0:rst",
    ],
)
async def test_a_replica_lost_before_its_first_delta_costs_the_client_nothing(
    gateway: Gateway, fault: str
) -> None:
    reply = await ask(gateway, fault=f"#1:{fault}")

    assert_one_whole_answer(reply)
    await assert_replayed_once(gateway, reply, "replica_died")
    lost, answered = gateway.find_requests(reply.request_id)
    assert lost.ended == fault.partition(":")[0].partition("=")[0]
    assert answered.ended == "done"


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("overloaded", "overloaded"),
        ("engine", "engine_error"),
        # vLLM calls a dead engine a bad request, status 400, inside its streams.
        ("engine_400", "engine_error"),
        ("tgi_overloaded", "overloaded"),
    ],
)
async def test_a_200_whose_first_event_is_the_engines_own_failure_is_replayed(
    gateway: Gateway, kind: str, outcome: str
) -> None:
    reply = await ask(gateway, fault=f"#1:error_first={kind}")

    assert_one_whole_answer(reply)
    await assert_replayed_once(gateway, reply, outcome)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("truncate=0", "truncated"),
        ("done_only", "truncated"),
        ("finish_null=0", "truncated"),
        ("raw_json_error", "truncated"),
        ("abort=0", "engine_error"),
        ("status=503", "overloaded"),
        ("status=429;7", "overloaded"),
        ("status=500", "engine_error"),
    ],
)
async def test_an_orderly_answer_that_is_no_answer_is_replayed_while_nothing_was_read(
    gateway: Gateway, fault: str, outcome: str
) -> None:
    reply = await ask(gateway, fault=f"#1:{fault}")

    assert_one_whole_answer(reply)
    await assert_replayed_once(gateway, reply, outcome)


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES, MESSAGES, TGI])
async def test_every_api_is_replayed_with_one_preamble(gateway: Gateway, path: str) -> None:
    reply = await ask(gateway, path, fault="#1:die_after_role:rst")

    assert (reply.status, reply.cut, reply.errors) == (200, False, [])
    assert [mark.index for mark in reply.marks] == list(range(TOKENS))
    assert len(reply.sources) == 1
    assert reply.names.count("response.created") == (path == RESPONSES)
    assert reply.names.count("message_start") == (path == MESSAGES)
    await assert_replayed_once(gateway, reply, "replica_died")


async def test_a_legal_empty_answer_is_an_answer(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="empty")

    assert (reply.status, reply.errors, reply.dones, reply.text) == (200, [], 1, "")
    assert [choice["finish_reason"] for event in reply.events for choice in event["choices"]][-1] == "stop"
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["state"], len(operation["attempts"])) == ("completed", 1)
    assert len(gateway.find_requests(reply.request_id)) == 1


async def test_a_missing_done_is_no_failure(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="no_done")

    assert (reply.status, reply.errors, reply.dones, len(reply.marks)) == (200, [], 0, TOKENS)
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["state"], len(operation["attempts"])) == ("completed", 1)


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
async def test_answers_in_one_piece_are_replayed_too(gateway: Gateway, path: str) -> None:
    reply = await ask(gateway, path, fault="#1:die_before_headers:rst", stream=False)

    assert (reply.status, reply.cut) == (200, False)
    assert reply.headers["x-attempt-count"] == "2"
    operation = await gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["replica_died", "completed"]


async def test_a_refused_connection_is_replayed_and_the_prompt_was_never_read_there(tmp_path: Path) -> None:
    async with run_gateway(tmp_path) as gateway:
        await gateway.engines["a"].stop()
        replies = [await ask(gateway) for _ in range(4)]

        for reply in replies:
            assert_one_whole_answer(reply)
            (record,) = gateway.find_requests(reply.request_id)
            assert reply.sources == {("b", record.generation)}
        attempts = [(await gateway.wait_operation(reply.request_id))["attempts"] for reply in replies]
        outcomes = {tuple(attempt["outcome"] for attempt in one) for one in attempts}
        # Envoy's turns send some of the four to the dead replica first.
        assert outcomes == {("completed",), ("replica_died", "completed")}
