"""The gRPC servers' streams, whatever they carry."""

import asyncio
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from envoy_ext.adapters import grpc_native_calls, grpc_server
from tests.support.transports import TRANSPORTS, connect, open_stream, serve


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


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_message_is_not_kept_while_the_next_one_is_waited_for(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a whole body, and the wait that for a slot, or for the end of a long prefill."""
    for module in (grpc_server, grpc_native_calls):
        monkeypatch.setattr(module, "ProcessingRequest", Message)
    session = Session()
    async with (
        serve(
            transport, tmp_path, build=lambda given: replace(given, delivery=lambda outbox: session)
        ) as served,
        connect(served.address) as channel,
    ):
        call = open_stream(channel)
        for _ in range(2):
            await call.write(b"body")
            async with asyncio.timeout(10):
                heard = await session.heard.get()
                while heard() is not None:
                    await asyncio.sleep(0.01)
        call.cancel()
    assert served.watcher.bugs == []
