"""Streams that come to an orderly end and still are not, or do not look like, a plain good answer."""

import gzip
import json
import zlib

import pytest

from envoy_ext.sim import player
from tests.sim.conftest import StartEngine
from tests.sim.wire import ask, read_chunks, read_content, read_events


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        (
            "engine",
            [
                b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", '
                b'"param": null, "code": 500}}',
                b"data: [DONE]",
            ],
        ),
        ("tgi_overloaded", [b'data:{"error":"Model is overloaded","error_type":"overloaded"}']),
    ],
)
async def test_an_error_first_is_all_there_is(
    start_engine: StartEngine, kind: str, events: list[bytes]
) -> None:
    engine = await start_engine()
    reply = await ask(engine, fault=f"error_first={kind}")
    assert (reply.status, reply.complete) == (200, True)
    assert reply.body == b"".join(event + b"\n\n" for event in events)
    assert engine.find_requests()[0].ended == "error_first"


async def test_error_kinds_name_the_fault_in_their_engines_words(start_engine: StartEngine) -> None:
    engine = await start_engine()
    overloaded = read_chunks((await ask(engine, fault="error_first=overloaded")).body)
    assert overloaded[0]["error"]["code"] == 503
    validation = read_chunks((await ask(engine, fault="error_first=validation")).body)
    assert validation[0]["error"]["http_status_code"] == 422
    dead = read_chunks((await ask(engine, fault="error_first=engine_400")).body)
    assert dead[0]["error"]["type"] == "BadRequestError"


async def test_an_error_after_deltas_is_followed_by_done(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="error_after=2")
    assert read_content(reply.body) == "a.1.0 a.1.1 "
    error, done = read_events(reply.body)[-2:]
    assert json.loads(error)["error"]["code"] == 500
    assert done == "[DONE]"
    assert reply.complete


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/v1/responses", {"type": "error", "code": "server_error"}),
        ("/v1/messages", {"type": "error"}),
        ("/generate_stream", {"error_type": "generation"}),
    ],
)
async def test_other_apis_report_errors_in_their_own_form(
    start_engine: StartEngine, path: str, data: dict[str, str]
) -> None:
    reply = await ask(await start_engine(), path, {"stream": True}, fault="error_after=1")
    error = read_chunks(reply.body)[-1]
    assert data.items() <= error.items()
    assert b"[DONE]" not in reply.body


async def test_a_truncated_stream_ends_in_order_without_any_mark(start_engine: StartEngine) -> None:
    engine = await start_engine()
    reply = await ask(engine, fault="truncate=2")
    assert reply.complete
    assert read_content(reply.body) == "a.1.0 a.1.1 "
    assert len(read_events(reply.body)) == 3
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in read_chunks(reply.body))
    assert engine.find_requests()[0].ended == "truncate"


async def test_no_done_has_the_finish_and_ends(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="no_done")
    assert reply.complete
    assert json.loads(read_events(reply.body)[-1])["choices"][0]["finish_reason"] == "stop"


async def test_done_only_is_a_bare_done(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="done_only")
    assert (reply.body, reply.complete) == (b"data: [DONE]\n\n", True)


async def test_abort_is_the_finish_reason_before_done(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="abort=1")
    assert read_content(reply.body) == "a.1.0 "
    assert read_chunks(reply.body)[-1]["choices"][0]["finish_reason"] == "abort"
    assert read_events(reply.body)[-1] == "[DONE]"


async def test_an_aborted_response_is_completed_as_cancelled(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), "/v1/responses", {"stream": True}, fault="abort")
    assert read_chunks(reply.body)[-1]["response"]["status"] == "cancelled"


async def test_finish_null_has_done_and_never_a_reason(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="finish_null")
    assert read_content(reply.body) == "a.1.0 a.1.1 a.1.2 "
    assert {chunk["choices"][0]["finish_reason"] for chunk in read_chunks(reply.body)} == {None}
    assert read_events(reply.body)[-1] == "[DONE]"


async def test_an_empty_completion_is_a_whole_answer(start_engine: StartEngine) -> None:
    engine = await start_engine()
    reply = await ask(engine, fault="empty")
    role, finish = read_chunks(reply.body)
    assert (role["choices"][0]["finish_reason"], finish["choices"][0]["finish_reason"]) == (None, "stop")
    assert read_content(reply.body) == ""
    assert engine.find_requests()[0].ended == "done"


async def test_pings_come_before_the_role(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="pings=3@0.001")
    assert reply.body.startswith(b": ping\n\n" * 3 + b"data: {")
    assert reply.body.count(b": ping") == 3


async def test_line_ends_and_bom_change_nothing_else(start_engine: StartEngine) -> None:
    engine = await start_engine()
    for fault, newline in [("crlf", b"\r\n"), ("cr", b"\r")]:
        body = (await ask(engine, fault=fault)).body
        assert body.endswith(b"data: [DONE]" + newline * 2)
        assert b"\n" not in body.replace(b"\r\n", b"")
        assert read_events(body.replace(newline, b"\n"))[-1] == "[DONE]"
    body = (await ask(engine, fault="bom")).body
    assert body.startswith(b"\xef\xbb\xbfdata: {")
    assert body.count(b"\xef\xbb\xbf") == 1


async def test_gzip_is_used_only_where_the_client_accepts_it(start_engine: StartEngine) -> None:
    engine = await start_engine()
    plain = await ask(engine, fault="gzip")
    assert "content-encoding" not in plain.headers
    zipped = await ask(engine, fault="gzip", accept_encoding="br, gzip")
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.complete
    assert read_events(gzip.decompress(zipped.body))[-1] == "[DONE]"
    forced = await ask(engine, fault="gzip_always")
    assert read_content(gzip.decompress(forced.body)) == "a.3.0 a.3.1 a.3.2 "


async def test_every_gzipped_event_can_be_read_when_it_arrives(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="gzip_always+die_after=2")
    reader = zlib.decompressobj(wbits=31)
    assert read_content(reader.decompress(reply.body)) == "a.1.0 a.1.1 "
    assert not reader.eof


@pytest.mark.parametrize("size", [400, 300_000])
async def test_a_big_event_has_exactly_the_bytes_asked_for(start_engine: StartEngine, size: int) -> None:
    reply = await ask(await start_engine(), fault=f"big_event={size}")
    sizes = [len(event) + 2 for event in reply.body.split(b"\n\n")]
    assert sizes.count(size) == 1
    assert reply.complete


async def test_one_byte_writes_each_byte_as_a_chunk(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=1)
    reply = await ask(engine, fault="one_byte")
    assert {len(chunk) for chunk in reply.chunks} == {1}
    assert read_events(reply.body)[-1] == "[DONE]"
    assert engine.find_requests()[0].tokens_sent == 1


async def test_content_length_announces_the_whole_stream(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="content_length")
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert "transfer-encoding" not in reply.headers
    assert read_events(reply.body)[-1] == "[DONE]"


async def test_a_204_has_no_body_at_all(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="status204")
    assert (reply.status, reply.raw.partition(b"\r\n\r\n")[2]) == (204, b"")
    assert not {"content-length", "transfer-encoding"} & set(reply.headers)


async def test_a_raw_error_is_json_without_framing_on_an_event_stream(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="raw_json_error")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "error" in json.loads(reply.body)


async def test_ndjson_is_one_object_a_line(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="ndjson")
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = reply.body.split(b"\n")
    assert lines.pop() == b""
    assert [next(iter(json.loads(line))) for line in lines] == ["id"] * 5


async def test_a_refusal_has_its_status_its_retry_after_and_vllms_error(start_engine: StartEngine) -> None:
    engine = await start_engine()
    reply = await ask(engine, fault="status=503;7")
    assert (reply.status, reply.headers["retry-after"], reply.complete) == (503, "7", True)
    assert reply.json["error"]["code"] == 503
    assert "retry-after" not in (await ask(engine, fault="status=500")).headers
    assert [record.status for record in engine.find_requests()] == [503, 500]


async def test_an_unknown_fault_is_refused_and_named(start_engine: StartEngine) -> None:
    engine = await start_engine()
    reply = await ask(engine, fault="a:explode")
    assert reply.status == 400
    assert "'explode'" in reply.json["error"]["message"]
    assert "die_after_headers" in reply.json["error"]["message"]


async def test_slow_stretches_the_time_of_tokens(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    monkeypatch.setattr(player, "sleep", nap)
    reply = await ask(await start_engine(tokens=3, prefill_s=5.0, token_s=2.0), fault="slow=10")
    assert reply.complete
    assert naps == [5.0, 0, 20.0, 20.0]


async def test_a_token_takes_longer_for_each_other_request_that_runs(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    engine = await start_engine(tokens=2, token_s=2.0, token_s_a_neighbour=0.5)
    monkeypatch.setattr(player, "sleep", nap)
    await ask(engine)
    assert naps == [0.0, 0, 2.0]
    async with engine.state.slot(1), engine.state.slot(1), engine.state.slot(1):
        naps.clear()
        await ask(engine)
    assert naps == [0.0, 0, 3.5]
