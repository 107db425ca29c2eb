"""The gRPC server's streams, whatever they carry."""

import asyncio
import weakref
from pathlib import Path
from typing import Any

import grpc
import pytest

from envoy_ext.adapters import grpc_server
from envoy_ext.adapters.grpc_server import GrpcServer
from envoy_ext.domain import names
from tests.support.sidecar import Watcher

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Message:
    """A request that can be watched: protobuf's own cannot."""

    FromString = staticmethod(lambda data: Message())


class Session:
    """Hears of messages and keeps none."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[weakref.ref[Message]] = asyncio.Queue()

    def receive(self, message: Message) -> None:
        self.heard.put_nowait(weakref.ref(message))

    def closed(self) -> None:
        pass


async def test_a_message_is_not_kept_while_the_next_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a whole body, and the wait that for a slot, or for the end of a long prefill."""
    monkeypatch.setattr(grpc_server, "ProcessingRequest", Message)
    session, watcher = Session(), Watcher()
    unused: Any = None
    server = GrpcServer(
        delivery=lambda outbox: session,
        attempt=unused,
        access_log=unused,
        discovery=unused,
        check=unused,
        observer=watcher,
        max_request_bytes=1 << 20,
    )
    address = f"unix:{tmp_path}/sidecar.sock"
    await server.start(address)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(PROCESS)(metadata=[(names.ROLE_METADATA, names.ROLE_DELIVERY)])
            for _ in range(2):
                await call.write(b"body")
                async with asyncio.timeout(10):
                    heard = await session.heard.get()
                    while heard() is not None:
                        await asyncio.sleep(0.01)
            call.cancel()
    finally:
        await server.stop(0)
    assert watcher.bugs == []
