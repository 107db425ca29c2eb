"""The terminal event through the real openai client: it raises, with our object."""

import httpx
import openai
import pytest

from tests.support.exchange_builders import SSE, ReqChat, ReqCompletions, ReqResponses, delta, event, role
from tests.support.exchange_envoy import Envoy

LEGACY = event({"id": "c", "choices": [{"index": 0, "text": "Hel", "finish_reason": None}]})
RESPONSE = event(
    {
        "type": "response.output_text.delta",
        "delta": "Hel",
        "item_id": "i",
        "output_index": 0,
        "content_index": 0,
        "sequence_number": 1,
        "logprobs": [],
    },
    "response.output_text.delta",
)


def interrupted(request, *chunks):
    """What a client gets when the replica is lost behind these chunks, in the middle of the next."""
    envoy = Envoy(request)
    envoy.replica.answers(*chunks)
    envoy.replica.sends(chunks[-1][:15])
    envoy.replica.is_lost()
    assert envoy.client.ended
    return bytes(envoy.client.body)


def client_of(body):
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, headers={"content-type": SSE}, content=body)
    )
    return openai.OpenAI(
        api_key="x", base_url="http://gateway/v1", http_client=httpx.Client(transport=transport)
    )


def ask_chat(client):
    return client.chat.completions.create(model="m", messages=[], stream=True)


def ask_completions(client):
    return client.completions.create(model="m", prompt="p", stream=True)


def ask_responses(client):
    return client.responses.create(model="m", input="p", stream=True)


@pytest.mark.parametrize(
    ("ask", "request_arrived", "chunks"),
    [
        pytest.param(ask_chat, ReqChat(), [role(), delta("Hel")], id="chat"),
        pytest.param(ask_completions, ReqCompletions(), [LEGACY], id="completions"),
        pytest.param(ask_responses, ReqResponses(), [RESPONSE], id="responses"),
    ],
)
def test_an_interrupted_stream_raises_with_our_object(ask, request_arrived, chunks):
    with client_of(interrupted(request_arrived, *chunks)) as client:
        seen = []
        with pytest.raises(openai.APIError) as raised:
            seen.extend(ask(client))
    assert len(seen) == len(chunks)
    assert raised.value.code == "upstream_decode_interrupted"
    assert raised.value.message == "The replica stopped after part of the answer was delivered."
    assert raised.value.body["delivered_output_tokens"] == 1
    assert raised.value.body["reason"] == "replica_died"
