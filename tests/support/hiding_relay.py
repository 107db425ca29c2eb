"""A way to a server that hides from it when the near end has gone, as some proxies do."""

import asyncio
from contextlib import suppress
from typing import Self


class HidingRelay:
    """Listens on a free port and passes bytes to `far_port` of this host and back.

    A connection is closed when the server closes it, and never because the near end has gone.
    """

    def __init__(self, far_port: int = 0) -> None:
        self.far_port = far_port
        """May be set later: a gateway must be named before it listens."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _pass_on(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        self._writers.add(near)
        with suppress(ConnectionError):
            far_reader, far = await asyncio.open_connection("127.0.0.1", self.far_port)
            self._writers.add(far)
            there = asyncio.ensure_future(_pump(near_reader, far))
            await _pump(far_reader, near, hide=True)
            there.cancel()
            far.transport.abort()
        near.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, hide: bool = False) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65536):
            try:
                sink.write(data)
                await sink.drain()
            except ConnectionError:
                if not hide:
                    raise
