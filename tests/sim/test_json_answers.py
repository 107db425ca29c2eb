"""Answers that are one JSON object, the small read-only endpoints, and the faults of both."""

import base64
import gzip
import json
import struct

import pytest

from tests.sim.conftest import StartEngine
from tests.sim.wire import CHAT, ask


async def test_a_chat_answer_is_one_object_of_known_length(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=2)
    reply = await ask(engine, stream=False)
    assert (reply.status, reply.complete) == (200, True)
    assert "content-length" in reply.headers
    assert reply.json["object"] == "chat.completion"
    assert reply.json["choices"][0]["message"]["content"] == "a.1.0 a.1.1 "
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    assert reply.json["usage"]["completion_tokens"] == 2
    assert engine.find_requests()[0].tokens_sent == 2


async def test_other_apis_answer_in_their_own_shape(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=1)
    completion = (await ask(engine, "/v1/completions", {"prompt": "hi"})).json
    assert completion["choices"][0]["text"] == "a.1.0 "
    response = (await ask(engine, "/v1/responses", {"input": "hi"})).json
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "a.2.0 "
    message = (await ask(engine, "/v1/messages", {"messages": []})).json
    assert (message["content"][0]["text"], message["stop_reason"]) == ("a.3.0 ", "end_turn")


async def test_embeddings_are_the_same_on_every_replica_and_in_both_encodings(
    start_engine: StartEngine,
) -> None:
    first, second = await start_engine(name="a", token_s=60.0), await start_engine(name="b")
    plain = (await ask(first, "/v1/embeddings", {"input": "hi"})).json["data"][0]["embedding"]
    assert plain == (await ask(second, "/v1/embeddings", {"input": "hi"})).json["data"][0]["embedding"]
    assert len(plain) == 16
    body = {"input": "hi", "encoding_format": "base64"}
    packed = (await ask(first, "/v1/embeddings", body)).json["data"][0]["embedding"]
    assert len(struct.unpack("<16f", base64.b64decode(packed))) == 16


@pytest.mark.parametrize(("how", "reset"), [("fin", False), ("rst", True)])
async def test_json_answers_can_be_cut_before_after_and_in_their_body(
    start_engine: StartEngine, how: str, reset: bool
) -> None:
    engine = await start_engine()
    nothing = await ask(engine, stream=False, fault=f"die_before_headers:{how}")
    assert (nothing.raw, nothing.reset) == (b"", reset)
    head = await ask(engine, stream=False, fault=f"die_after_headers:{how}")
    assert (head.status, head.body, head.reset) == (200, b"", reset)
    half = await ask(engine, stream=False, fault=f"die_mid_body:{how}")
    assert len(half.body) == int(half.headers["content-length"]) // 2
    assert half.body.startswith(b'{"id":"chatcmpl-a-3"')
    assert half.reset == reset
    assert [record.ended for record in engine.find_requests()] == [
        "die_before_headers",
        "die_after_headers",
        "die_mid_body",
    ]


async def test_json_answers_can_be_refused_and_compressed(start_engine: StartEngine) -> None:
    engine = await start_engine()
    assert (await ask(engine, stream=False, fault="status=503;1")).status == 503
    zipped = await ask(engine, stream=False, fault="gzip", accept_encoding="gzip")
    assert zipped.complete
    assert json.loads(gzip.decompress(zipped.body))["object"] == "chat.completion"
    single = await ask(engine, stream=False, fault="one_byte")
    assert single.complete
    assert single.json["object"] == "chat.completion"


async def test_a_fault_that_the_answer_cannot_show_is_refused(start_engine: StartEngine) -> None:
    engine = await start_engine()
    assert (await ask(engine, stream=False, fault="truncate=1")).status == 400
    assert (await ask(engine, stream=True, fault="die_mid_body")).status == 400


async def test_gzipped_requests_are_read_and_their_digest_is_the_wires(start_engine: StartEngine) -> None:
    engine = await start_engine()
    body = gzip.compress(json.dumps({"messages": [], "max_tokens": 1}).encode())
    reply = await ask(engine, CHAT, body, content_encoding="gzip")
    assert reply.json["usage"]["completion_tokens"] == 1
    assert engine.find_requests()[0].body_bytes == len(body)
    assert (await ask(engine, CHAT, b"no gzip", content_encoding="gzip")).status == 400


async def test_models_and_health_answer_get_and_head(start_engine: StartEngine) -> None:
    engine = await start_engine(models=("org/one", "two"))
    listed = await ask(engine, "/v1/models", method="GET")
    assert [card["id"] for card in listed.json["data"]] == ["org/one", "two"]
    assert (await ask(engine, "/v1/models/org/one", method="GET")).json["id"] == "org/one"
    assert (await ask(engine, "/v1/models/three", method="GET")).status == 404
    assert (await ask(engine, "/v1/models", method="HEAD")).raw.endswith(b"\r\n\r\n")
    health = await ask(engine, "/health", method="GET")
    assert (health.status, health.body, health.headers["x-sim-replica"]) == (200, b"", "a")
