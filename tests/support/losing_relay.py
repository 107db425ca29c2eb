"""A way to a server on which answers get lost: what was asked is done, and the asker never hears."""

import asyncio
from contextlib import suppress
from typing import Self


class LosingRelay:
    """Listens on a free port and passes bytes to `far_port` of this host and back.

    While `lose` is more than 0, an answer of the server is dropped, and with it both connections.
    """

    def __init__(self, far_port: int) -> None:
        self._far_port = far_port
        self.lose = 0
        self.lost = 0
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

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
        self.connections += 1
        self._writers.add(near)
        with suppress(ConnectionError):
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._far_port)
            self._writers.add(far)
            there = asyncio.ensure_future(_pump(near_reader, far))
            with suppress(ConnectionError):
                while answer := await far_reader.read(65536):
                    if self.lose > 0:
                        self.lose -= 1
                        self.lost += 1
                        break
                    near.write(answer)
            there.cancel()
            far.transport.abort()
        near.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
