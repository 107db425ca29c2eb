"""Clients over HTTP/2, and more than one Envoy worker."""

import asyncio
import json

import h2.connection
import h2.errors
import h2.events
import httpx
import pytest

from tests.with_envoy.asking import (
    CHAT,
    MESSAGES,
    Reply,
    ask,
    build_body,
    build_headers,
    mint_request_id,
    wait_request,
)
from tests.with_envoy.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {
    "names": "abc",
    "engine": {"token_s": 0.05},
    "envoy": {"concurrency": 2, "admin": {"port": 0}},
    "retry_budget": {"percent": 100, "min_concurrency": 100},
}


def build_client() -> httpx.AsyncClient:
    """Speaks HTTP/2 from the first byte."""
    return httpx.AsyncClient(http1=False, http2=True, timeout=30, trust_env=False)


async def ask_http2(client: httpx.AsyncClient, gateway: Gateway, path: str = CHAT, fault: str = "") -> Reply:
    request_id = mint_request_id()
    answer = await client.post(
        gateway.url + path, json=build_body(path), headers=build_headers(request_id, fault)
    )
    assert answer.http_version == "HTTP/2"
    return Reply(request_id, answer.status_code, body=answer.content)


async def test_one_http2_connection_carries_whole_replayed_and_interrupted_streams(gateway: Gateway) -> None:
    faults = ["", "#1:die_after_role:rst", "die_after=5:fin", "truncate=2"] * 5
    async with build_client() as client:
        replies = await asyncio.gather(*(ask_http2(client, gateway, fault=fault) for fault in faults))

    for fault, reply in zip(faults, replies, strict=True):
        broken = fault.startswith(("die_after=", "truncate"))
        assert reply.status == 200
        assert len(reply.errors) == broken
        assert reply.dones == (not broken)
        assert len(reply.sources) == 1
        operation = await gateway.wait_operation(reply.request_id)
        assert operation["delivered_deltas"] == len(reply.parts)
        assert len(operation["attempts"]) == (2 if fault.startswith("#1") else 1)
    stats = await gateway.read_envoy_stats(r"^http\.ingress\.downstream_cx_http2_total$")
    assert stats["http.ingress.downstream_cx_http2_total"] == 1


async def test_a_typed_event_ends_an_http2_stream_of_another_api(gateway: Gateway) -> None:
    async with build_client() as client:
        reply = await ask_http2(client, gateway, MESSAGES, fault="die_after=5:fin")

    assert reply.names[-1] == "error"
    assert reply.errors[0]["reason"] == "replica_died"


class Http2Connection:
    """One connection and its streams; httpx leaves a stream it has done with open, so `h2` itself speaks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._h2 = h2.connection.H2Connection()
        self._h2.initiate_connection()
        self._bodies: dict[int, bytearray] = {}
        self._ended: set[int] = set()

    def ask(self, request_id: str, fault: str = "") -> int:
        stream = self._h2.get_next_available_stream_id()
        body = json.dumps(build_body()).encode()
        head = {":method": "POST", ":path": CHAT, ":scheme": "http", ":authority": "gateway"}
        self._h2.send_headers(stream, [*head.items(), *build_headers(request_id, fault).items()])
        self._h2.send_data(stream, body, end_stream=True)
        self._flush()
        return stream

    def reset(self, stream: int) -> None:
        self._h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    async def read_until(self, stream: int, part: bytes = b"", *, end: bool = False) -> bytes:
        """Until a part of the body, or its end, has come."""
        while part not in (body := self._bodies.setdefault(stream, bytearray())) or (
            end and stream not in self._ended
        ):
            data = await self._reader.read(65536)
            assert data, "the connection ended"
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self._bodies.setdefault(event.stream_id, bytearray()).extend(event.data)
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    self._ended.add(event.stream_id)
            self._flush()
        return bytes(body)

    def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())


async def test_a_reset_http2_stream_frees_its_replica_and_leaves_the_connection(gateway: Gateway) -> None:
    left, stays = mint_request_id(), mint_request_id()
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(10):
            client = Http2Connection(reader, writer)
            first = client.ask(left, "hang_after=2")
            await client.read_until(first, b".1 ")
            client.reset(first)
            await wait_request(gateway, left, lambda record: record.ended == "client_disconnected")
            assert (await gateway.wait_operation(left))["ending"] == "client_gone"
            body = await client.read_until(client.ask(stays), end=True)
    finally:
        writer.close()

    assert body.endswith(b"data: [DONE]\n\n")
    assert (await gateway.wait_operation(stays))["ending"] == "finished"


async def test_thirty_streams_over_two_workers_each_end_with_their_own_truth(gateway: Gateway) -> None:
    faults = [
        "",
        "#1:die_before_headers:rst",
        "#1:die_after_role:fin",
        "die_after=5:fin",
        "#1:error_first=engine",
    ]

    replies = await asyncio.gather(*(ask(gateway, fault=fault) for fault in faults * 6))

    for fault, reply in zip(faults * 6, replies, strict=True):
        broken = fault.startswith("die_after=")
        assert (reply.status, reply.cut, reply.dones, len(reply.errors)) == (200, False, not broken, broken)
        assert len(reply.sources) == 1
        assert [mark.index for mark in reply.marks] == list(range(len(reply.parts)))
        assert 0 < len(reply.parts) <= 5 if broken else len(reply.parts) == 6
        operation = await gateway.wait_operation(reply.request_id)
        assert operation["delivered_deltas"] == len(reply.parts)
        assert len(operation["attempts"]) == (2 if fault.startswith("#1") else 1)
    # The kernel spreads connections over the workers: with 30 of them, both had some.
    stats = await gateway.read_envoy_stats(r"^listener\..*\.worker_\d\.downstream_cx_total$")
    ingress = [count for name, count in stats.items() if "sock" not in name]
    assert len(ingress) == 2
    assert all(ingress)
