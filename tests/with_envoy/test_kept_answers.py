"""Repeats under a key that are given the kept answer, and repeats that wait for it. Streams are kept too."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.with_envoy.asking import (
    CHAT,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Reply,
    ask,
    asking,
    build_body,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import MODEL, WAIT_S, Gateway
from tests.with_envoy.test_repeated_requests import assert_conflict, check
from tests.with_envoy.wire import (
    WireConnection,
    Wired,
    WireRequest,
    answering,
    build_head,
    build_response,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {
    "engine": {"token_s": 0.02},
    "idempotency": {"answers": "all", "while_running": "wait", "max_wait": "20s"},
}
WIRED = {"idempotency": {"answers": "all"}}
RECORDED = Path(__file__).parents[1] / "data" / "sse"
HOP = {"date", "server", "content-length", "transfer-encoding", "connection"}
"""Of one exchange, and not of the answer."""


async def ask_with_key(gateway: Gateway, key: str, *args: Any, **options: Any) -> Reply:
    return await ask(
        gateway, *args, headers={"idempotency-key": key, **options.pop("headers", {})}, **options
    )


def count_replayed(gateway: Gateway) -> float:
    return gateway.read_metric("envoy_ext_answers_replayed_total", pool="chat")


def assert_given_again(gateway: Gateway, first: Reply, again: Reply) -> None:
    assert (first.status, again.status, again.cut) == (200, 200, False)
    assert again.body == first.body
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["x-request-id"] == again.request_id
    own = HOP | {"idempotent-replayed", "x-request-id", "preference-applied"}
    told = [{k.lower(): v for k, v in one.headers.items() if k.lower() not in own} for one in (first, again)]
    assert told[0] == told[1]
    assert gateway.find_requests(again.request_id) == []


# --- answers that are kept ------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, EMBEDDINGS])
async def test_an_answer_in_one_piece_is_given_again_byte_for_byte(gateway: Gateway, path: str) -> None:
    key, replayed = f"piece{path}", count_replayed(gateway)
    first = await ask_with_key(gateway, key, path, stream=False)
    again = await ask_with_key(gateway, key, path, stream=False)
    assert_given_again(gateway, first, again)
    assert again.headers["content-type"].startswith("application/json")
    assert again.headers["content-length"] == str(len(first.body))
    assert count_replayed(gateway) == replayed + 1
    assert await gateway.find_operation(again.request_id) is None


async def test_a_stream_is_given_again_byte_for_byte(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "stream")
    again = await ask_with_key(gateway, "stream")
    assert_given_again(gateway, first, again)
    assert (again.dones, len(again.parts)) == (1, 6)


async def test_a_replayed_attempt_is_one_operation_and_its_answer_is_kept(gateway: Gateway) -> None:
    """The gateway's own retry is no repeat: the replicas have seen two attempts of one request."""
    first = await ask_with_key(gateway, "own-retry", fault="#1:die_after_role:rst")
    again = await ask_with_key(gateway, "own-retry")
    assert_given_again(gateway, first, again)
    assert again.headers["x-attempt-count"] == "2"
    assert len(gateway.find_requests(first.request_id)) == 2


async def test_a_meshs_retry_under_a_key_is_given_the_kept_answer(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "mesh")
    again = await ask_with_key(
        gateway, "mesh", request_id=first.request_id, headers={"x-envoy-attempt-count": "2"}
    )
    assert again.body == first.body
    assert len(gateway.find_requests(first.request_id)) == 1


async def test_the_openai_client_reads_a_kept_answer_as_ever(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        texts = []
        for _ in range(2):
            headers = {"idempotency-key": "sdk-stream"}
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, extra_headers=headers
            )
            texts.append([c.choices[0].delta.content async for c in stream if c.choices])
        assert texts[0] == texts[1]
        answers = [
            await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "x"}],
                extra_headers={"idempotency-key": "sdk-piece"},
            )
            for _ in range(2)
        ]
        assert answers[0].id == answers[1].id


async def test_a_compressing_client_gets_an_answer_that_can_be_kept(gateway: Gateway) -> None:
    headers = {"accept-encoding": "gzip"}
    first = await ask_with_key(gateway, "gzip", stream=False, headers=headers)
    (seen,) = gateway.find_requests(first.request_id)
    assert (seen.accept_encoding, first.headers.get("content-encoding")) == (None, None)
    assert_given_again(gateway, first, await ask_with_key(gateway, "gzip", stream=False, headers=headers))


async def test_a_key_means_nothing_where_nothing_is_changed(gateway: Gateway) -> None:
    for _ in range(2):
        reply = await ask_with_key(gateway, "models", "/v1/models", method="GET")
        assert (reply.status, "idempotent-replayed" in reply.headers) == (200, False)


async def test_ext_authz_lets_a_completed_operation_on_to_its_answer(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "authz")
    allowed = await check(gateway, {"x-request-id": mint_request_id(), "idempotency-key": "authz"})
    assert allowed.status.code == 0
    assert_given_again(gateway, first, await ask_with_key(gateway, "authz"))


@pytest.mark.parametrize("fault", ["truncate=3", "finish_null=3", "abort=3", "error_after=3;engine"])
async def test_what_was_no_success_is_never_given_as_one(gateway: Gateway, fault: str) -> None:
    first = await ask_with_key(gateway, fault, fault=fault)
    again = await ask_with_key(gateway, fault)
    assert_conflict(again, 409, "operation_incomplete", first.headers["x-operation-id"], sdk_retries=False)


@pytest.mark.parametrize(
    "name", ["vllm_cut_no_finish_no_done", "vllm_finish_null_then_done", "vllm_abort_then_done"]
)
@pytest.mark.parametrize("reset", [False, True])
async def test_a_recorded_stream_that_was_no_success_is_never_given_as_one(
    wired: Wired, name: str, reset: bool
) -> None:
    data, key = (RECORDED / f"{name}.sse").read_bytes(), f"{name}-{reset}"

    async def answer(request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked")))
        await connection.send_chunks(data)
        if reset:  # which overtakes what has not been read
            await wired.gateway.wait_let_out(request.get_all("x-request-id")[0])
            connection.reset()
        else:
            await connection.send(b"0\r\n\r\n")

    wired.answer_with(answer)
    first = await ask_with_key(wired.gateway, key)
    assert first.parts
    await wired.gateway.wait_operation(first.request_id)
    again = await ask_with_key(wired.gateway, key)
    assert (again.status, again.json["error"]["code"]) == (409, "operation_incomplete")
    assert len(wired.find_requests(first.request_id)) == 1
    assert wired.find_requests(again.request_id) == []


async def test_headers_of_an_answer_are_given_again_and_those_of_one_client_are_not(wired: Wired) -> None:
    body = b'{"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}'
    own = [("x-engine", "w"), ("link", "<a>"), ("link", "<b>"), ("set-cookie", "one=client"), ("age", "3")]
    wired.answer_with(answering(build_response(body, *own, status="201 Created")))
    first = await ask_with_key(wired.gateway, "headers", stream=False)
    again = await ask_with_key(wired.gateway, "headers", stream=False)
    assert (first.status, again.status, again.body) == (201, 201, body)
    assert (first.headers["set-cookie"], first.headers["age"]) == ("one=client", "3")
    assert (again.headers["x-engine"], again.headers.getall("link")) == ("w", ["<a>, <b>"])
    assert not {"set-cookie", "age"} & {name.lower() for name in again.headers}


async def test_an_answer_of_a_megabyte_is_given_again_and_a_longer_one_is_not(wired: Wired) -> None:
    for size, kept in ((1 << 20, False), ((1 << 20) - 200, True)):
        body = b'{"object": "list", "data": "' + b"x" * (size - 30) + b'"}'
        wired.answer_with(answering(build_response(body)))
        key = f"size-{size}"
        first = await ask_with_key(wired.gateway, key, EMBEDDINGS, stream=False)
        again = await ask_with_key(wired.gateway, key, EMBEDDINGS, stream=False)
        assert first.body == body
        assert (again.body == body) is kept
        assert again.status == (200 if kept else 409)


# --- repeats that wait ----------------------------------------------------------------------------


async def wait_repeats(gateway: Gateway, count: int) -> None:
    """Until so many repeats wait."""
    async with asyncio.timeout(WAIT_S):
        while gateway.read_metric("envoy_ext_repeats_waiting") != count:
            await asyncio.sleep(0.01)


async def wait_running(gateway: Gateway, request_id: str) -> None:
    await wait_request(gateway, request_id, lambda record: record.generation is not None)


async def test_repeats_wait_for_the_end_and_say_whose_wish_it_was(gateway: Gateway) -> None:
    """(That they may wait longer than Envoy waits by itself is shown where they wait for a slot too.)"""
    first_id = mint_request_id()
    first = asyncio.ensure_future(ask_with_key(gateway, "joined", request_id=first_id, fault="slow=20"))
    await wait_running(gateway, first_id)
    wish = {"prefer": "respond-async, wait=15"}
    repeats = [
        asyncio.ensure_future(ask_with_key(gateway, "joined", headers=headers)) for headers in ({}, wish)
    ]
    await wait_repeats(gateway, 2)
    replies = [await repeat for repeat in repeats]
    for reply in replies:
        assert_given_again(gateway, await first, reply)
    assert ["preference-applied" in one.headers for one in replies] == [False, True]
    assert replies[1].headers["preference-applied"] == "wait=15"


async def test_a_wait_that_ends_before_the_operation_is_409(gateway: Gateway) -> None:
    first = mint_request_id()
    async with asking(
        gateway, fault="hang_after=2", request_id=first, headers={"idempotency-key": "long"}
    ) as a:
        await read_deltas(a, 2)
        short = await ask_with_key(gateway, "long", headers={"prefer": "wait=1"})
        none = await ask_with_key(gateway, "long", headers={"prefer": "wait=0"})
        late = await ask_with_key(gateway, "long", headers={"x-request-deadline": "0.3"})
        operation_id = a.headers["x-operation-id"]
    for reply in (short, none):
        assert_conflict(reply, 409, "operation_in_progress", operation_id, sdk_retries=True)
    assert (short.headers["preference-applied"], "preference-applied" in none.headers) == ("wait=1", False)
    assert (late.status, late.json["error"]["code"]) == (504, "deadline_exceeded")
    await gateway.wait_operation(first)


@pytest.mark.parametrize("deltas", [0, 2])
async def test_a_client_that_leaves_is_followed_by_its_own_repeat(gateway: Gateway, deltas: int) -> None:
    """At once: the repeat waits until it is known how the first one ended, and gets what that calls for."""
    first, key = mint_request_id(), f"left-{deltas}"
    headers = {
        "idempotency-key": key,
        "x-request-id": first,
        "x-sim-fault": f"hang_after={deltas}" if deltas else "hang",
    }
    asked = asyncio.ensure_future(gateway.http.post(gateway.url + CHAT, json=build_body(), headers=headers))
    await wait_running(gateway, first)
    if deltas:
        await read_deltas(await asked, deltas)
        (await asked).close()
    else:
        asked.cancel()
        await asyncio.wait((asked,))
    async with asyncio.timeout(WAIT_S):
        again = await ask_with_key(gateway, key)
    if deltas:
        assert (again.status, again.json["error"]["code"]) == (409, "operation_incomplete")
        assert len(gateway.find_requests(again.request_id)) == 0
    else:
        assert (again.status, again.dones) == (200, 1)
        assert "idempotent-replayed" not in again.headers


async def test_a_repeat_that_leaves_while_it_waits_disturbs_nothing(gateway: Gateway) -> None:
    first, leaver = mint_request_id(), mint_request_id()
    running = asyncio.ensure_future(ask_with_key(gateway, "leaver", request_id=first, fault="slow=8"))
    await wait_running(gateway, first)
    leaves = asyncio.ensure_future(ask_with_key(gateway, "leaver", request_id=leaver))
    await wait_repeats(gateway, 1)
    leaves.cancel()
    await wait_repeats(gateway, 0)
    assert not running.done()
    assert (await running).dones == 1
    assert gateway.find_requests(leaver) == []


MOST_UNDECIDED = 100
"""Of the requests that are sent: one event loop plays all clients, both engines and the sidecar, and what
Envoy waits for longer than its patience is refused."""


PACE_S = 0.003
"""Between two requests."""


class Herd:
    """A thousand requests with a hundred keys, each repeated until it has an answer."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.refusals = 0
        self._sent = self._replayed = 0
        self._before = self._count_executions()

    def _count_executions(self) -> int:
        return sum(len(engine.find_requests()) for engine in self.gateway.engines.values())

    @property
    def executions(self) -> int:
        return self._count_executions() - self._before

    async def ask_all(self) -> list[Reply]:
        """All answers, of requests sent as fast as the sidecar decides on them."""
        asked = []
        for number in range(1000):
            asked.append(asyncio.ensure_future(self._ask(number)))
            await asyncio.sleep(PACE_S)
            while self._sent - self._count_decided() >= MOST_UNDECIDED:
                await asyncio.sleep(0.01)
        return await asyncio.gather(*asked)

    async def _ask(self, number: int) -> Reply:
        body = build_body(stream=False)
        while True:
            self._sent += 1
            reply = await ask_with_key(self.gateway, f"herd-{number % 100}", body=body, fault="slow=50")
            if reply.status != 409:
                self._replayed += "idempotent-replayed" in reply.headers
                return reply
            assert reply.json["error"]["code"] == "operation_in_progress"
            self.refusals += 1
            # No faster than they came: all in one second are more than one loop decides in time.
            await asyncio.sleep(int(reply.headers["retry-after"]) + number * PACE_S)

    def _count_decided(self) -> float:
        """Of those that were sent, the ones that the sidecar runs, keeps waiting, or has answered."""
        waiting = self.gateway.read_metric("envoy_ext_repeats_waiting")
        return self.executions + waiting + self.refusals + self._replayed


@pytest.mark.timeout(300)  # a busy machine needs a minute and more
async def test_a_thousand_requests_with_a_hundred_keys_are_a_hundred_executions(gateway: Gateway) -> None:
    """Ten for each key, sent faster than a key is done. More come than may wait: the rest comes back."""
    herd = Herd(gateway)
    async with asyncio.timeout(240):
        answered = await herd.ask_all()
    assert {(reply.status, reply.body if reply.status != 200 else b"") for reply in answered} == {(200, b"")}
    assert herd.executions == 100
    bodies: dict[int, set[bytes]] = {}
    for n, reply in enumerate(answered):
        assert reply.json["choices"][0]["finish_reason"] == "stop"
        bodies.setdefault(n % 100, set()).add(reply.body)
    assert [len(one) for one in bodies.values()] == [1] * 100
    assert sum("idempotent-replayed" in reply.headers for reply in answered) == 900
    assert herd.refusals
