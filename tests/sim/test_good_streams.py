"""Good answers: each API's stream has the chunks, keys and marks that its real server sends."""

import asyncio
import json
from typing import Any

import pytest

from envoy_ext.sim.answer import TokenMark, read_text
from tests.sim.conftest import StartEngine
from tests.sim.wire import CHAT, ask, read_chunks, read_content, read_events

# Keys of chunks that a vLLM 0.32 server sent, in their order; the simulated engine adds
# `system_fingerprint` to each, where vLLM has it on the usage chunk only.
ROLE_KEYS = ["id", "object", "created", "model", "choices", "prompt_token_ids", "prompt_text"]
CONTENT_KEYS = ["id", "object", "created", "model", "choices"]
USAGE_KEYS = ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"]


def keys_without_fingerprint(chunk: dict[str, Any]) -> list[str]:
    return [key for key in chunk if key != "system_fingerprint"]


async def test_a_chat_stream_has_role_content_finish_and_done(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=2)
    reply = await ask(engine)
    assert (reply.status, reply.complete) == (200, True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-sim-replica"] == "a"
    events = read_events(reply.body)
    assert events[-1] == "[DONE]"
    role, first, second, finish = read_chunks(reply.body)
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert keys_without_fingerprint(role) == ROLE_KEYS
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"content": "a.1.0 "},
            "logprobs": None,
            "finish_reason": None,
            "token_ids": None,
        }
    ]
    assert keys_without_fingerprint(first) == CONTENT_KEYS
    assert second["choices"][0]["delta"] == {"content": "a.1.1 "}
    assert finish["choices"][0] | {"index": 0} == {
        "index": 0,
        "delta": {"content": ""},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": None,
    }
    assert {chunk["id"] for chunk in (role, first, second, finish)} == {"chatcmpl-a-1"}
    assert {chunk["system_fingerprint"] for chunk in (role, first, second, finish)} == {"sim-a"}


async def test_every_event_is_one_chunk_of_the_body(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(tokens=2))
    assert len(reply.chunks) == len(read_events(reply.body))
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in reply.chunks)


async def test_usage_comes_only_when_asked_for_and_before_done(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=2)
    body = {"messages": [], "stream": True, "stream_options": {"include_usage": True}}
    *_, usage = read_chunks((await ask(engine, body=body)).body)
    assert list(usage) == USAGE_KEYS
    assert usage["choices"] == []
    prompt = len(json.dumps(body)) // 4
    assert usage["usage"] == {"prompt_tokens": prompt, "total_tokens": prompt + 2, "completion_tokens": 2}
    assert all("usage" not in chunk for chunk in read_chunks((await ask(engine)).body))


async def test_continuous_usage_grows_with_each_chunk(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=2)
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = await ask(engine, body={"messages": [], "stream": True, "stream_options": options})
    assert [chunk["usage"]["completion_tokens"] for chunk in read_chunks(reply.body)] == [0, 1, 2, 2, 2]


async def test_the_requests_limit_shortens_the_answer_and_shows_as_length(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=5)
    for limits, count, reason in [
        ({"max_tokens": 2}, 2, "length"),
        ({"max_completion_tokens": 3, "max_tokens": 1}, 3, "length"),
        ({"max_tokens": 5}, 5, "stop"),
        ({"max_tokens": 99}, 5, "stop"),
    ]:
        reply = await ask(engine, body={"messages": [], "stream": True, **limits})
        assert len(read_text(read_content(reply.body))) == count
        assert read_chunks(reply.body)[-1]["choices"][0]["finish_reason"] == reason


async def test_a_completions_stream_has_its_text_in_the_choice(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(tokens=2), "/v1/completions", {"prompt": "hi", "stream": True})
    assert read_events(reply.body)[-1] == "[DONE]"
    choices = [chunk["choices"][0] for chunk in read_chunks(reply.body)]
    assert [choice["text"] for choice in choices] == ["a.1.0 ", "a.1.1 ", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]


async def test_a_responses_stream_is_named_numbered_and_completed(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(tokens=2), "/v1/responses", {"input": "hi", "stream": True})
    chunks = read_chunks(reply.body)
    assert [chunk["type"] for chunk in chunks] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(10))
    names = [line[7:].decode() for line in reply.body.split(b"\n") if line.startswith(b"event: ")]
    assert names == [chunk["type"] for chunk in chunks]
    assert chunks[-1]["response"]["status"] == "completed"
    assert b"[DONE]" not in reply.body


async def test_a_responses_stream_cut_by_its_limit_says_incomplete(start_engine: StartEngine) -> None:
    body = {"input": "hi", "stream": True, "max_output_tokens": 1}
    completed = read_chunks((await ask(await start_engine(), "/v1/responses", body)).body)[-1]
    assert completed["type"] == "response.completed"
    assert completed["response"]["status"] == "incomplete"
    assert completed["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_messages_stream_ends_with_message_stop(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(tokens=2), "/v1/messages", {"messages": [], "stream": True})
    chunks = read_chunks(reply.body)
    assert [chunk["type"] for chunk in chunks] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [chunk["delta"]["text"] for chunk in chunks[3:5]] == ["a.1.0 ", "a.1.1 "]
    assert chunks[6]["delta"]["stop_reason"] == "end_turn"


async def test_a_tgi_stream_has_no_space_and_ends_with_the_generated_text(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(tokens=2), "/generate_stream", {"inputs": "hi"})
    assert all(chunk.startswith(b"data:{") for chunk in reply.chunks)
    first, second, last = read_chunks(reply.body)
    assert (first["token"]["text"], first["generated_text"]) == ("a.1.0 ", None)
    assert second["index"] == 2
    assert last["generated_text"] == "a.1.0 a.1.1 "
    assert last["token"]["special"] is True


async def test_tgi_takes_its_limit_from_its_parameters(start_engine: StartEngine) -> None:
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 1}}
    last = read_chunks((await ask(await start_engine(), "/generate_stream", body)).body)[-1]
    assert last["generated_text"] == "a.1.0 "
    assert last["details"]["finish_reason"] == "length"


async def test_no_two_generations_of_any_replica_share_a_token(start_engine: StartEngine) -> None:
    engines = [await start_engine(name=name) for name in ("a", "b")]
    replies = await asyncio.gather(*(ask(engine) for engine in engines for _ in range(5)))
    marks = [mark for reply in replies for mark in read_text(read_content(reply.body))]
    assert len(marks) == len(set(marks)) == 10 * 3
    assert {mark.replica for mark in marks} == {"a", "b"}


async def test_a_restarted_replica_can_continue_its_numbering(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(first_generation=1000))
    assert read_text(read_content(reply.body))[0] == TokenMark("a", 1000, 0)


def test_text_of_no_engine_is_not_read_as_tokens() -> None:
    assert read_text("") == ()
    assert read_text("a.1.0 ~~~~b-2.7.13 ") == (TokenMark("a", 1, 0), TokenMark("b-2", 7, 13))
    for text in ("hello", "a.1.0", "a.1.0 b.2", "a.1. "):
        with pytest.raises(ValueError, match="not a token"):
            read_text(text)


async def test_bad_requests_are_refused_in_vllms_words(start_engine: StartEngine) -> None:
    engine = await start_engine()
    for body, status, kind in [
        (b"{", 400, "BadRequestError"),
        (b"[]", 400, "BadRequestError"),
        ({"model": "other", "messages": []}, 404, "NotFoundError"),
        ({"messages": [], "max_tokens": 0}, 400, "BadRequestError"),
        ({"messages": [], "max_tokens": "many"}, 400, "BadRequestError"),
    ]:
        reply = await ask(engine, CHAT, body)
        assert reply.status == status
        assert reply.json["error"]["type"] == kind
        assert reply.json["error"]["code"] == status
    assert {record.ended for record in engine.find_requests()} == {"refused"}
    assert engine.state.generations == 0
