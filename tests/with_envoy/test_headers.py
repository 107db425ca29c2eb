"""What clients may not set, what replicas are told, what clients get back; read off the wire."""

import asyncio
import re

import pytest

from envoy_ext.domain import names
from tests.with_envoy.asking import CHAT, ask
from tests.with_envoy.wire import WireConnection, Wired, WireRequest, answering, build_head, build_response

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIRED = {"replicas": 2}
HOSTILE = {
    "x-envoy-attempt-count": "9",
    "x-envoy-retry-on": "5xx,reset",
    "x-envoy-max-retries": "9",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-upstream-rq-per-try-timeout-ms": "1",
    "x-envoy-hedge-on-per-try-timeout": "true",
    "x-envoy-original-dst-host": "127.0.0.1:1",
    "x-envoy-ext-exchange": "exg_forged",
    "x-envoy-ext-pool": "none",
    "x-envoy-ext-attempt": "att_forged",
    "x-envoy-ext-operation": "op_forged",
    "x-envoy-ext-endpoint": "127.0.0.1:1",
    "x-envoy-ext-lease": "9",
    "x-operation-id": "op_forged",
    "x-attempt-id": "att_forged",
    names.MESH_ATTEMPT: "9",
}


def collect_reserved(request: WireRequest) -> dict[str, str]:
    """What a replica was told under reserved names."""
    reserved = ("x-envoy-", "x-ext-", "x-operation-id", "x-attempt-id")
    return {name.lower(): value for name, value in request.headers if name.lower().startswith(reserved)}


async def test_what_a_client_sends_under_reserved_names_steers_nothing(wired: Wired) -> None:
    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await asyncio.sleep(0.1)  # longer than every timeout that the client names
        await connection.send(build_response(b"{}"))

    wired.answer_with(answer)
    reply = await ask(wired.gateway, headers=HOSTILE, stream=False)

    assert reply.status == 200
    (request,) = wired.find_requests(reply.request_id)
    told = collect_reserved(request)
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert told == {
        "x-envoy-attempt-count": "1",
        names.ATTEMPT: operation["attempts"][0]["attempt_id"],
        names.OPERATION: operation["operation_id"],
        names.LEASE: "1",
        names.LEASE_TTL: "6",
        **{name: told[name] for name in ("x-envoy-external-address", "x-envoy-internal") if name in told},
    }


async def test_each_attempt_is_told_its_own_number_and_id(wired: Wired) -> None:
    async def fail_first(request: WireRequest, connection: WireConnection) -> None:
        if request.get_all("x-envoy-attempt-count") == ["1"]:
            connection.reset()
        else:
            await connection.send(build_response(b"{}"))

    wired.answer_with(fail_first)
    reply = await ask(wired.gateway, headers=HOSTILE, stream=False)

    assert (reply.status, reply.headers["x-attempt-count"]) == (200, "2")
    first, second = sorted(
        wired.find_requests(reply.request_id), key=lambda one: one.get_all("x-envoy-attempt-count")
    )
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert [one.get_all("x-envoy-attempt-count") for one in (first, second)] == [["1"], ["2"]]
    ids = [attempt["attempt_id"] for attempt in operation["attempts"]]
    assert [one.get_all(names.ATTEMPT) for one in (first, second)] == [[id] for id in ids]
    assert {one.get_all(names.OPERATION)[0] for one in (first, second)} == {operation["operation_id"]}
    assert first.get_all("x-request-id") == second.get_all("x-request-id") == [reply.request_id]
    # Between the hops only: which exchange, which pool, which replica.
    for request in (first, second):
        for name in (names.EXCHANGE, names.POOL, names.ENDPOINT):
            assert request.get_all(name) == []


async def test_the_host_the_method_and_the_path_stay_the_clients_own(wired: Wired) -> None:
    wired.answer_with(answering(build_response(b"{}")))

    reply = await ask(
        wired.gateway,
        f"{CHAT}?api-version=1",
        stream=False,
        headers={"host": "llm.example"},
        body={"model": "sim", "messages": []},
    )

    (request,) = wired.find_requests(reply.request_id)
    assert request.line == f"POST {CHAT}?api-version=1 HTTP/1.1"
    assert request.get_all("host") == ["llm.example"]


async def test_a_client_gets_its_ids_and_the_number_of_attempts(wired: Wired) -> None:
    wired.answer_with(answering(build_response(b"{}")))

    reply = await ask(wired.gateway, stream=False)

    assert reply.headers.getall("x-request-id") == [reply.request_id]
    assert reply.headers.getall("x-attempt-count") == ["1"]
    (operation_id,) = reply.headers.getall("x-operation-id")
    assert re.fullmatch(r"op_[0-9A-HJKMNP-TV-Z]{26}", operation_id)
    assert not [name for name in reply.headers if name.lower().startswith(("x-envoy", "x-ext-"))]


@pytest.mark.parametrize("given", [None, "", "x" * 200, "caf\u00e9"])
async def test_a_request_id_that_cannot_be_used_is_replaced_on_both_sides(
    wired: Wired, given: str | None
) -> None:
    wired.answer_with(answering(build_response(b"{}")))
    before = {id(request) for request in wired.requests}
    headers = {} if given is None else {"x-request-id": given}

    async with wired.gateway.http.post(
        wired.gateway.url + CHAT, json={"model": "sim", "messages": []}, headers=headers
    ) as reply:
        await reply.read()
        (seen,) = reply.headers.getall("x-request-id")

    (request,) = [request for request in wired.requests if id(request) not in before]
    assert request.get_all("x-request-id") == [seen]
    assert 0 < len(seen) <= 128
    assert seen != given
    assert (await wired.gateway.wait_operation(seen))["ending"] == "finished"


@pytest.mark.parametrize("mark", [names.REPLAY, names.REFUSAL])
async def test_a_replica_cannot_pass_its_own_headers_for_marks_of_the_gateway(
    wired: Wired, mark: str
) -> None:
    wired.answer_with(answering(build_response(b"{}", (mark, "retry_budget_exhausted"))))

    reply = await ask(wired.gateway, stream=False)

    assert (reply.status, reply.body) == (200, b"{}")
    assert mark not in reply.headers
    assert len(wired.find_requests(reply.request_id)) == 1


@pytest.mark.parametrize("mark", [names.REPLAY, names.REFUSAL])
async def test_nor_in_a_refusal_of_its_own(wired: Wired, mark: str) -> None:
    body = b'{"error": {"message": "no", "type": "BadRequestError"}}'
    wired.answer_with(answering(build_response(body, (mark, "draining"), status="400 Bad Request")))

    reply = await ask(wired.gateway, stream=False)

    assert (reply.status, reply.body) == (400, body)
    assert len(wired.find_requests(reply.request_id)) == 1


async def test_trailers_of_a_replica_do_not_disturb_the_end(wired: Wired) -> None:
    event = (
        b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked"), ("trailer", "x-sum")))
        await connection.send_chunks(event)
        await connection.send(b"0\r\nx-sum: 1\r\n\r\n")

    wired.answer_with(answer)
    reply = await ask(wired.gateway)

    assert (reply.status, reply.cut, reply.body) == (200, False, event)
    assert (await wired.gateway.wait_operation(reply.request_id))["state"] == "completed"


@pytest.mark.parametrize(
    "headers",
    [[(f"x-{number}", "v") for number in range(98)], [(f"x-{number}", "v" * 600) for number in range(94)]],
)
async def test_an_answer_with_as_many_headers_as_envoy_takes_is_delivered(
    wired: Wired, headers: list[tuple[str, str]]
) -> None:
    """Those of ours come on top, when it has been released and can be replayed no more."""
    wired.answer_with(answering(build_head(*headers, content_type="application/json") + b"{}"))

    reply = await ask(wired.gateway, stream=False)

    assert (reply.status, reply.body) == (200, b"{}")
    assert reply.headers[headers[-1][0]] == headers[-1][1]
    assert (await wired.gateway.wait_operation(reply.request_id))["state"] == "completed"


@pytest.mark.parametrize(
    ("count", "size", "status"), [(88, 1, 200), (110, 1, 431), (80, 700, 200), (80, 900, 431)]
)
async def test_too_many_headers_are_the_clients_mistake_and_are_called_so(
    wired: Wired, count: int, size: int, status: int
) -> None:
    wired.answer_with(answering(build_response(b"{}")))

    reply = await ask(
        wired.gateway, headers={f"x-{number}": "v" * size for number in range(count)}, stream=False
    )

    assert reply.status == status
    if status == 431:
        assert reply.json["error"]["code"] == "invalid_request"
        assert reply.headers["x-should-retry"] == "false"
        assert wired.find_requests(reply.request_id) == []
