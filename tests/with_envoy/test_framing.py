"""However a replica frames and encodes its stream: the client gets its bytes, and an end that is true."""

import asyncio
import gzip
import hashlib
import json
import zlib

import aiohttp
import pytest

from tests.with_envoy.asking import Reply, ask, asking, build_body, mint_request_id
from tests.with_envoy.gateway import Gateway
from tests.with_envoy.wire import WireConnection, Wired, WireRequest, build_head

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {"engine": {"token_s": 0.02}, "limits": {"max_sse_event_bytes": "400KiB"}}
WIRED = {"limits": {"max_sse_event_bytes": "4KiB"}}
TOKENS = 6


async def assert_whole(gateway: Gateway, reply: Reply) -> None:
    """One complete answer by one attempt, and the journal knows it."""
    assert (reply.status, reply.cut, reply.errors, reply.dones) == (200, False, [], 1)
    assert [mark.index for mark in reply.marks] == list(range(TOKENS))
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["state"], len(operation["attempts"])) == ("completed", 1)
    assert operation["delivered_deltas"] == TOKENS


@pytest.mark.parametrize(
    "fault", ["one_byte", "crlf", "cr", "crlf+one_byte", "cr+one_byte", "bom", "bom+one_byte"]
)
async def test_any_framing_of_the_same_answer_is_read(gateway: Gateway, fault: str) -> None:
    reply = await ask(gateway, fault=fault)

    await assert_whole(gateway, reply)
    newline = b"\r\n" if "crlf" in fault else b"\r" if "cr" in fault else b"\n"
    assert reply.body.endswith(b"data: [DONE]" + 2 * newline)
    assert reply.body.startswith(b"\xef\xbb\xbf") == fault.startswith("bom")


@pytest.mark.parametrize("fault", ["one_byte", "crlf", "cr", "crlf+one_byte", "bom"])
async def test_any_framing_is_replayed_and_interrupted_like_the_usual_one(
    gateway: Gateway, fault: str
) -> None:
    replayed = await ask(gateway, fault=f"#1:{fault}+die_mid_event=0:fin")
    assert (replayed.errors, replayed.dones, len(replayed.sources)) == ([], 1, 1)
    assert replayed.headers["x-attempt-count"] == "2"

    interrupted = await ask(gateway, fault=f"{fault}+slow=5+die_mid_event=5:fin")
    (error,) = interrupted.errors
    assert 0 < len(interrupted.parts) <= 5
    assert (error["delivered_output_tokens"], interrupted.dones) == (len(interrupted.parts), 0)
    assert interrupted.headers["x-attempt-count"] == "1"


async def test_an_event_of_300_kilobytes_passes(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="big_event=300000")

    await assert_whole(gateway, reply)
    assert max(len(block) for block in reply.blocks) >= 299_990


@pytest.mark.parametrize("fault", ["pings=4@0.02", "pings=4@0.02+one_byte"])
async def test_keep_alive_comments_before_the_answer_leave_one_clean_stream(
    gateway: Gateway, fault: str
) -> None:
    reply = await ask(gateway, fault=fault)

    await assert_whole(gateway, reply)
    assert reply.role_chunks == 1


async def test_keep_alive_comments_of_a_lost_attempt_are_not_a_commitment(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="#1:pings=4@0.02+die_after_role:rst")

    assert (reply.status, reply.errors, reply.dones, reply.role_chunks) == (200, [], 1, 1)
    assert len(reply.sources) == 1
    assert b": ping" not in reply.body
    assert reply.headers["x-attempt-count"] == "2"


async def test_a_compressed_request_reaches_the_replica_as_it_was_sent(gateway: Gateway) -> None:
    data = gzip.compress(json.dumps(build_body()).encode())
    reply = await ask(
        gateway, data=data, headers={"content-encoding": "gzip", "content-type": "application/json"}
    )

    await assert_whole(gateway, reply)
    (record,) = gateway.find_requests(reply.request_id)
    assert (record.body_sha256, record.body_bytes) == (hashlib.sha256(data).hexdigest(), len(data))


async def test_a_compressed_request_is_replayed_as_it_was_sent(gateway: Gateway) -> None:
    data = gzip.compress(json.dumps(build_body()).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    reply = await ask(gateway, data=data, headers=headers, fault="#1:die_before_headers:rst")

    assert reply.headers["x-attempt-count"] == "2"
    digests = {record.body_sha256 for record in gateway.find_requests(reply.request_id)}
    assert digests == {hashlib.sha256(data).hexdigest()}


async def test_a_compressed_request_for_an_unknown_model_is_read_all_the_same(gateway: Gateway) -> None:
    data = gzip.compress(json.dumps(build_body(model="other")).encode())
    reply = await ask(gateway, data=data, headers={"content-encoding": "gzip"})

    assert (reply.status, reply.json["error"]["code"]) == (404, "invalid_request")


async def test_a_replica_is_asked_for_plain_streams_and_may_compress_the_rest(gateway: Gateway) -> None:
    accept = {"accept-encoding": "gzip, br"}
    streamed = await ask(gateway, headers=accept, fault="gzip")
    in_one_piece = await ask(gateway, headers=accept, stream=False, fault="gzip")

    assert "content-encoding" not in streamed.headers
    await assert_whole(gateway, streamed)
    assert [record.accept_encoding for record in gateway.find_requests(streamed.request_id)] == [None]
    assert in_one_piece.headers["content-encoding"] == "gzip"
    answer = json.loads(gzip.decompress(in_one_piece.body))
    assert answer["choices"][0]["finish_reason"] == "stop"
    (record,) = gateway.find_requests(in_one_piece.request_id)
    assert record.accept_encoding == "gzip, br"


async def test_a_stream_that_is_compressed_all_the_same_passes_and_is_called_unknown(
    gateway: Gateway,
) -> None:
    reply = await ask(gateway, fault="gzip_always")

    assert (reply.status, reply.cut, reply.headers["content-encoding"]) == (200, False, "gzip")
    plain = gzip.decompress(reply.body)
    assert plain.endswith(b"data: [DONE]\n\n")
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["ending"], operation["state"]) == ("unknown", "failed")


async def test_nothing_is_added_to_a_compressed_stream_that_breaks(gateway: Gateway) -> None:
    """Plain text in a gzip body would be noise; the broken connection is all that can be said."""
    reply = await ask(gateway, fault="gzip_always+die_after=3:fin")

    assert (reply.status, reply.cut) == (200, True)
    plain = zlib.decompressobj(wbits=31).decompress(reply.body)
    assert plain.startswith(b"data: {")
    assert b"upstream_decode_interrupted" not in plain
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["ending"], operation["error"]["reason"]) == ("upstream_broke", "replica_died")
    assert len(operation["attempts"]) == 1


async def test_no_length_is_promised_for_a_stream_that_may_be_added_to(gateway: Gateway) -> None:
    whole = await ask(gateway, fault="content_length")
    cut = await ask(gateway, fault="content_length+die_after=3:fin")

    await assert_whole(gateway, whole)
    for reply in (whole, cut):
        assert "content-length" not in reply.headers
    assert (cut.cut, len(cut.errors)) == (False, 1)


def build_chunk(content: str) -> bytes:
    event = {"id": "x", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}
    return f"data: {json.dumps(event)}\n\n".encode()


@pytest.mark.parametrize("first", [True, False])
async def test_a_stream_with_an_event_above_the_limit_passes_unwatched(wired: Wired, first: bool) -> None:
    big = build_chunk("x" * 20_000)
    data = (b"" if first else build_chunk("one ")) + big + build_chunk("two ") + b"data: [DONE]\n\n"

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked")))
        await connection.send_chunks(*(data[at : at + 1000] for at in range(0, len(data), 1000)), b"")

    wired.answer_with(answer)
    reply = await ask(wired.gateway)

    assert (reply.status, reply.cut) == (200, False)
    assert reply.body == data
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert (operation["ending"], operation["state"]) == ("unknown", "failed")
    assert operation["first_delta_sent"] is True
    assert len(wired.find_requests(reply.request_id)) == 1


async def test_a_first_delta_behind_more_than_can_be_held_is_still_delivered(wired: Wired) -> None:
    """Comments are small beside this; a responses API repeats the whole request in its first events."""
    comments = (b": " + b"x" * 1_000 + b"\n\n") * 2_600
    data = (
        comments
        + build_chunk("late ")
        + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    )

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(), *(data[at : at + 65_536] for at in range(0, len(data), 65_536)))

    wired.answer_with(answer)
    async with asyncio.timeout(20):
        reply = await ask(wired.gateway)

    assert (reply.status, reply.cut, reply.body) == (200, False, data)
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert (operation["state"], operation["delivered_deltas"]) == ("completed", 1)


async def test_an_unwatched_stream_that_breaks_is_broken_off(wired: Wired) -> None:
    data, read = build_chunk("x" * 20_000), asyncio.Event()

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked")))
        await connection.send_chunks(data)
        await read.wait()
        connection.reset()

    wired.answer_with(answer)
    request_id = mint_request_id()
    async with asking(wired.gateway, request_id=request_id) as reply:
        assert await reply.content.readexactly(len(data)) == data
        read.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.content.read()

    operation = await wired.gateway.wait_operation(request_id)
    assert (operation["ending"], len(operation["attempts"])) == ("upstream_broke", 1)
