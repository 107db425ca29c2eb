"""What holds for two gateways at any store that they share, one check for each thing that can happen."""

import asyncio
import contextlib
import json
import signal

import aiohttp

from envoy_ext.domain.outcomes import Ending, OperationState
from tests.with_envoy.asking import mint_request_id, read_deltas
from tests.with_envoy.pair import TTL_S, WAIT_S, Pair


async def check_the_same_keys_at_once(pair: Pair, keys: int) -> None:
    """Each key is sent to both gateways, all of them at the same time."""
    sent = {f"at-once-{number}": [mint_request_id(), mint_request_id()] for number in range(keys)}
    answers = await asyncio.gather(
        *(
            edge.ask(request, key, "slow=8")
            for key, requests in sent.items()
            for edge, request in zip((pair.a, pair.b), requests, strict=True)
        )
    )
    for one, other in zip(answers[::2], answers[1::2], strict=True):
        assert sorted((one.status, other.status)) == [200, 409]
        assert {one.code, other.code} - {""} <= {"operation_in_progress", "operation_complete"}
    assert [pair.count_asked(*requests) for requests in sent.values()] == [1] * keys
    assert (await pair.b.ask_until("at-once-0", "operation_in_progress")).code == "operation_complete"


async def check_a_repeat_that_waits_for_the_other(pair: Pair) -> None:
    """What one gateway computes is given by the other, to a client that would rather wait than come back."""
    request = mint_request_id()
    first = asyncio.ensure_future(pair.a.ask(request, "awaited", "slow=20", stream=False))
    await pair.wait_asked(request)
    repeat = await pair.b.ask(mint_request_id(), "awaited", stream=False, prefer="wait=15")
    assert (repeat.status, repeat.body) == (200, (await first).body)
    assert repeat.headers["preference-applied"] == "wait=15"
    assert repeat.headers["idempotent-replayed"] == "true"
    assert repeat.headers["x-operation-id"] == (await first).headers["x-operation-id"]


async def check_a_gateway_that_freezes(pair: Pair) -> None:
    frozen = mint_request_id()
    cut = asyncio.ensure_future(pair.a.ask(frozen, "frozen", "hang"))
    await pair.wait_asked(frozen)
    pair.a.serving.process.send_signal(signal.SIGSTOP)
    froze_at = asyncio.get_running_loop().time()

    assert (await pair.b.ask(mint_request_id(), "frozen")).code == "operation_in_progress"
    assert (await pair.b.ask_until("frozen", "operation_in_progress")).whole
    (lost,) = await pair.read_operations(frozen)
    assert (lost.token, lost.ending, lost.first_delta_sent) == (2, Ending.UNKNOWN, False)
    assert [attempt.detail for attempt in lost.attempts] == ["gateway_gone"]
    assert not cut.done()

    # Three times a lease, however long it took.
    await asyncio.sleep(max(0.0, froze_at + 3 * TTL_S - asyncio.get_running_loop().time()))
    pair.a.serving.process.send_signal(signal.SIGCONT)
    answer = await cut
    assert (answer.status, answer.code) == (503, "upstream_unavailable")
    error = json.loads(answer.body)["error"]
    assert (error["reason"], error["partial_output"]) == ("taken_over", False)
    assert pair.count_asked(frozen) == 1
    assert await pair.read_operations(frozen) == [lost], "an owner that was replaced has written"

    async with asyncio.timeout(WAIT_S):
        while await pair.a.read_ready():
            await asyncio.sleep(0.02)
    assert (await pair.a.ask(mint_request_id(), "after")).whole
    assert (await pair.a.ask(mint_request_id(), "frozen")).code == "operation_complete"


async def check_a_gateway_that_stops(pair: Pair) -> None:
    """It resigns: the other need not watch it, and finds all that it did."""
    request = mint_request_id()
    assert (await pair.a.ask(request, "before the stop")).whole
    assert await pair.a.serving.end(signal.SIGTERM) == 0
    assert (await pair.b.ask(mint_request_id(), "before the stop")).code == "operation_complete"
    (operation,) = await pair.read_operations(request)
    assert (operation.state, operation.token) == (OperationState.COMPLETED, 1)


async def check_a_store_that_stands_still(pair: Pair) -> None:
    """For longer than a seat is kept: nobody is found gone for that, and what had begun ends as it should."""
    assert pair.redis is not None
    requests = [mint_request_id(), mint_request_id()]
    async with contextlib.AsyncExitStack() as opened:
        answers = [
            await opened.enter_async_context(edge.asking(request, f"still {request}", "slow=60"))
            for edge, request in zip((pair.a, pair.b), requests, strict=True)
        ]
        for answer in answers:
            await read_deltas(answer, 1)
        pair.redis.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(1.5 * TTL_S)
            refused = await pair.b.ask(mint_request_id(), "while it stands still")
            assert (refused.status, refused.code) == (503, "upstream_unavailable")
            assert refused.headers["retry-after"].isdigit()
        finally:
            pair.redis.signal(signal.SIGCONT)
        for answer in answers:
            assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
    for edge in (pair.a, pair.b):
        async with asyncio.timeout(WAIT_S):
            while await edge.read_ready():
                await asyncio.sleep(0.02)
    for request in requests:
        operation = await pair.wait_ended(request)
        assert (operation.state, operation.token) == (OperationState.COMPLETED, 1)
    assert (await pair.b.ask_until("while it stands still", "upstream_unavailable")).whole


async def check_a_gateway_that_is_killed(pair: Pair) -> None:
    """It says no word; the other ends what it ran, and knows what it did."""
    whole, prefill, decode = (mint_request_id() for _ in range(3))
    assert (await pair.a.ask(whole, "whole", stream=False)).status == 200
    waiting = asyncio.ensure_future(pair.a.ask(prefill, "prefill", "hang"))
    async with pair.a.asking(decode, "decode", "hang_after=2") as answer:
        await read_deltas(answer, 2)
        await pair.wait_asked(prefill)
        pair.a.serving.process.kill()
        with contextlib.suppress(aiohttp.ClientPayloadError):
            await answer.content.read()
    assert (await waiting).status >= 500

    replayed = await pair.b.ask(mint_request_id(), "whole", stream=False)
    assert (replayed.status, replayed.headers["idempotent-replayed"]) == (200, "true")
    assert (await pair.b.ask_until("prefill", "operation_in_progress")).whole
    told = await pair.b.ask_until("decode", "operation_in_progress")
    assert (told.status, told.code) == (409, "operation_incomplete")
    lost = [await pair.wait_ended(request) for request in (prefill, decode)]
    assert [(one.ending, one.token, one.first_delta_sent) for one in lost] == [
        (Ending.UNKNOWN, 2, False),
        (Ending.UNKNOWN, 2, True),
    ]
    assert told.headers["location"] == f"/v1/operations/{lost[1].operation_id}"
    assert [pair.count_asked(request) for request in (whole, prefill, decode)] == [1, 1, 1]
