"""A small gRPC server that carries ADS streams between a real Envoy and our sessions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from envoy_ext.adapters.ads import DIALECTS, AdsHub, AdsSession
from envoy_ext.xds.dialects import Dialect
from envoy_ext.xds.kinds import BY_TYPE_URL, Kind

_ABORT = object()


class QueueOutbox:
    """What a session sends, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, response: Any) -> None:
        self.queue.put_nowait(response)

    def finish(self) -> None:
        self.queue.put_nowait(None)

    def abort(self) -> None:
        self.queue.put_nowait(_ABORT)


class AdsServer:
    """Serves one hub at a Unix socket; `log` holds every message of every stream, in order."""

    def __init__(self, hub: AdsHub) -> None:
        self.hub = hub
        self.log: list[Any] = []
        self._withheld: Kind | None = None
        self._late: list[tuple[QueueOutbox, Any]] = []
        self._server = grpc.aio.server()
        handlers = {
            dialect.method.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(
                self._carry(dialect),
                dialect.request.FromString,
                dialect.response.SerializeToString,
            )
            for dialect in DIALECTS
        }
        service = DIALECTS[0].method.split("/")[1]
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def start(self, address: str) -> None:
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    def withhold(self, kind: Kind) -> None:
        """Keep the answers of this kind from now on."""
        self._withheld = kind

    def release(self) -> None:
        """Send what was kept."""
        self._withheld = None
        for outbox, response in self._late:
            outbox.send(response)
        self._late.clear()

    def _carry(self, dialect: Dialect) -> Any:
        async def carry(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            outbox = QueueOutbox()
            session = AdsSession(self.hub, outbox, dialect)

            async def read() -> None:
                async for request in requests:
                    self.log.append(request)
                    session.receive(request)
                outbox.finish()

            reader = asyncio.get_running_loop().create_task(read())
            try:
                while (response := await outbox.queue.get()) is not None:
                    if response is _ABORT:
                        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a request")
                    if BY_TYPE_URL[response.type_url] is self._withheld:
                        self._late.append((outbox, response))
                        continue
                    self.log.append(response)
                    yield response
            finally:
                reader.cancel()
                session.closed()

        return carry
