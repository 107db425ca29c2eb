"""The real `openai` client: what it raises, what it repeats, what it never notices."""

from collections.abc import Awaitable, Callable

import openai
import pytest

from tests.with_envoy.asking import mint_request_id
from tests.with_envoy.gateway import MODEL, Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {"engine": {"token_s": 0.02}}
MESSAGES = [{"role": "user", "content": "Tell me the truth."}]


async def read_chat(client: openai.AsyncOpenAI, headers: dict[str, str]) -> list[str]:
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, extra_headers=headers
    )
    return [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]


async def read_completions(client: openai.AsyncOpenAI, headers: dict[str, str]) -> list[str]:
    stream = await client.completions.create(model=MODEL, prompt="x", stream=True, extra_headers=headers)
    return [chunk.choices[0].text async for chunk in stream if chunk.choices]


async def read_responses(client: openai.AsyncOpenAI, headers: dict[str, str]) -> list[str]:
    stream = await client.responses.create(model=MODEL, input="x", stream=True, extra_headers=headers)
    return [event.delta async for event in stream if event.type == "response.output_text.delta"]


Read = Callable[[openai.AsyncOpenAI, dict[str, str]], Awaitable[list[str]]]
READERS = pytest.mark.parametrize("read", [read_chat, read_completions, read_responses])


def headers_of(fault: str = "") -> dict[str, str]:
    return {"x-request-id": mint_request_id(), "x-sim-fault": fault}


@READERS
async def test_an_interrupted_stream_raises_with_our_error_object(gateway: Gateway, read: Read) -> None:
    headers = headers_of("die_after=5:fin")
    async with gateway.openai() as client:
        with pytest.raises(openai.APIError) as raised:
            await read(client, headers)

    body = raised.value.body
    assert isinstance(body, dict)
    assert body["code"] == "upstream_decode_interrupted"
    assert body["reason"] == "replica_died"
    assert body["request_id"] == headers["x-request-id"]
    assert (body["partial_output"], body["retryable"]) == (True, False)
    assert 0 < body["delivered_output_tokens"] <= 5
    assert raised.value.message == body["message"]
    assert len(gateway.find_requests(headers["x-request-id"])) == 1


@READERS
async def test_a_silently_truncated_stream_raises(gateway: Gateway, read: Read) -> None:
    async with gateway.openai() as client:
        with pytest.raises(openai.APIError) as raised:
            await read(client, headers_of("truncate=2"))
    assert raised.value.body["reason"] == "truncated"


@READERS
async def test_a_replayed_stream_is_one_answer_to_the_client(gateway: Gateway, read: Read) -> None:
    headers = headers_of("#1:die_after_role:rst")
    async with gateway.openai() as client:
        parts = [part for part in await read(client, headers) if part]
    sources = {part.rpartition(".")[0] for part in parts}
    assert (len(parts), len(sources)) == (6, 1)
    assert len(gateway.find_requests(headers["x-request-id"])) == 2


async def test_answers_in_one_piece_are_read_as_ever(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert chat.choices[0].finish_reason == "stop"
        assert len((chat.choices[0].message.content or "").split()) == 6
        vectors = await client.embeddings.create(model=MODEL, input="x")
        assert len(vectors.data) == 1
        assert [model.id async for model in client.models.list()] == [MODEL]


async def test_the_client_does_not_repeat_an_interrupted_stream_by_itself(gateway: Gateway) -> None:
    headers = headers_of("die_after=5:fin")
    async with gateway.openai(max_retries=2) as client:
        with pytest.raises(openai.APIError):
            await read_chat(client, headers)
    assert len(gateway.find_requests(headers["x-request-id"])) == 1


async def test_an_unknown_model_is_the_clients_mistake_and_is_not_repeated(gateway: Gateway) -> None:
    before = await gateway.read_envoy_stats("^http.ingress.downstream_rq_completed$")
    async with gateway.openai(max_retries=2) as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="other", messages=MESSAGES)
    assert raised.value.body["code"] == "invalid_request"
    after = await gateway.read_envoy_stats("^http.ingress.downstream_rq_completed$")
    assert sum(after.values()) - sum(before.values()) == 1


async def test_the_clients_own_retries_go_on_when_another_time_may_help(gateway: Gateway) -> None:
    headers = headers_of("die_before_headers:rst")
    async with gateway.openai(max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            await read_chat(client, headers)
    assert raised.value.body["code"] == "upstream_unavailable"
    assert raised.value.response.headers["retry-after"] in ("1", "2", "3")
    # Each of the client's three requests is an exchange of its own, with its two attempts.
    assert len(gateway.find_requests(headers["x-request-id"])) == 6


async def test_a_replicas_own_word_on_when_to_come_back_reaches_the_client(gateway: Gateway) -> None:
    headers = headers_of("status=429;7")
    async with gateway.openai() as client:
        with pytest.raises(openai.RateLimitError) as raised:
            await read_chat(client, headers)
    assert raised.value.response.headers["retry-after"] == "7"
    assert len(gateway.find_requests(headers["x-request-id"])) == 2
