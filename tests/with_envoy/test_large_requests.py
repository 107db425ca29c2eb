"""Requests of any size up to the limit can be replayed as they were; above it no replica is asked."""

import gzip
import hashlib
import json
import secrets

import openai
import pytest

from tests.with_envoy.asking import CHAT, Reply, ask, build_body
from tests.with_envoy.gateway import MODEL, Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
LIMIT = 6 * MIB
GATEWAY = {
    "limits": {"max_request_bytes": "6MiB"},
    "on_upstream_failure": {"before_first_delta": {"max_replay_prompt_tokens": 10_000_000}},
}


def build_prompt(size: int) -> bytes:
    """A chat request of exactly this many bytes; its prompt is noise, so that a mixed-up one shows."""
    empty = len(json.dumps(build_body(messages=[{"role": "user", "content": ""}])))
    noise = secrets.token_hex(size // 2 + 1)[: size - empty]
    return json.dumps(build_body(messages=[{"role": "user", "content": noise}])).encode()


def assert_both_attempts_saw(gateway: Gateway, reply: Reply, data: bytes) -> None:
    """Neither lost, doubled nor replaced."""
    records = gateway.find_requests(reply.request_id)
    seen = [(record.body_sha256, record.body_bytes) for record in records]
    assert seen == 2 * [(hashlib.sha256(data).hexdigest(), len(data))]


@pytest.mark.parametrize("size", [64 << 10, MIB + MIB // 2, 5 * MIB, LIMIT])
async def test_both_attempts_see_the_same_request(gateway: Gateway, size: int) -> None:
    """A replica that refuses has read the whole request, as the next one does."""
    data = build_prompt(size)
    assert len(data) == size

    reply = await ask(gateway, data=data, fault="#1:status=503")

    assert (reply.status, reply.errors, reply.dones) == (200, [], 1)
    assert reply.headers["x-attempt-count"] == "2"
    assert_both_attempts_saw(gateway, reply, data)


@pytest.mark.parametrize("fault", ["die_before_headers:rst", "die_after_role:rst"])
async def test_a_large_request_is_replayed_after_a_reset(gateway: Gateway, fault: str) -> None:
    data = build_prompt(5 * MIB)

    reply = await ask(gateway, data=data, fault=f"#1:{fault}")

    assert (reply.status, reply.errors, reply.dones, len(reply.sources)) == (200, [], 1, 1)
    assert_both_attempts_saw(gateway, reply, data)


async def test_a_request_above_the_limit_is_413_and_no_replica_is_asked(gateway: Gateway) -> None:
    reply = await ask(gateway, data=build_prompt(LIMIT + 1))

    assert reply.status == 413
    error = reply.json["error"]
    assert (error["code"], error["type"]) == ("request_too_large", "invalid_request_error")
    assert (error["partial_output"], error["retryable"], error["delivered_output_tokens"]) == (
        False,
        False,
        0,
    )
    assert error["request_id"] == reply.request_id
    assert error["message"]
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["content-type"] == "application/json"
    assert gateway.find_requests(reply.request_id) == []


async def test_a_request_above_the_limit_without_a_length_is_413_too(gateway: Gateway) -> None:
    async def send():
        for _ in range(7):
            yield b" " * MIB

    async with gateway.http.post(
        gateway.url + CHAT, data=send(), headers={"content-type": "application/json"}
    ) as answer:
        assert answer.status == 413
        assert json.loads(await answer.read())["error"]["code"] == "request_too_large"


async def test_the_openai_client_does_not_repeat_what_is_too_large(gateway: Gateway) -> None:
    before = await gateway.read_envoy_stats("^http.ingress.downstream_rq_4xx$")
    async with gateway.openai(max_retries=2) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x" * (LIMIT + 1)}]
            )
    assert raised.value.status_code == 413
    assert raised.value.body["code"] == "request_too_large"
    after = await gateway.read_envoy_stats("^http.ingress.downstream_rq_4xx$")
    assert sum(after.values()) - sum(before.values()) == 1


async def test_a_compressed_request_that_grows_without_measure_is_refused(gateway: Gateway) -> None:
    """A few kilobytes that would be gigabytes: reading them would stop every stream."""
    data = gzip.compress(b" " * (200 * MIB))
    assert len(data) < MIB

    reply = await ask(gateway, data=data, headers={"content-encoding": "gzip"})

    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")
    assert reply.headers["x-should-retry"] == "false"
    assert gateway.find_requests(reply.request_id) == []
