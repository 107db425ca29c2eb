"""Connections to replicas: what an engine does with one behind its answer costs no request."""

import pytest

from tests.with_envoy.asking import ask
from tests.with_envoy.wire import WireConnection, Wired, WireRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIRED = {"engine": "llamacpp"}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


async def test_a_replica_that_closes_behind_each_stream_without_a_word_loses_no_request(wired: Wired) -> None:
    """As llama.cpp does. Whoever came in time for the close, and sent into it, gets no answer."""
    sent_into_the_close: list[bytes] = []

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(HEAD)
        await connection.send_chunks(ANSWER, b"")
        sent_into_the_close.append(await connection.reader.read(1))

    wired.answer_with(answer)
    for _ in range(3):
        reply = await ask(wired.gateway)
        operation = await wired.gateway.wait_operation(reply.request_id)
        assert (reply.status, reply.cut, reply.body) == (200, False, ANSWER)
        assert [attempt["outcome"] for attempt in operation["attempts"]] == ["completed"]
    assert set(sent_into_the_close) == {b""}
