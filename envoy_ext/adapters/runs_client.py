"""The runs of jobs as HTTP requests: a client of one socket, behind which Envoy's jobs listener is.

What is answered is kept by the run's exchange, which sees every byte before this client does. Here it is
read, so that it moves, and let go.
"""

import contextlib
import io
from collections.abc import Sequence
from typing import Final

import aiohttp
from yarl import URL

from envoy_ext.adapters import headers as h
from envoy_ext.domain import names

_ORIGIN: Final = "http://jobs"
"""Of the listener, which needs no name; replicas see it as their `host`."""
_CHUNK_BYTES: Final = 64 << 10


class RunsClient:
    """`ports.RunSender` over a Unix socket. Opened with the first run; each has a connection of its own."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        name: str,
        request_id: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
    ) -> None:
        """Send one request and read its answer to the end, or to its cut. Nothing is sent twice.

        Cancelled, it closes the connection, by which Envoy ends what it has asked a replica for.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._socket, limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            )
        named = [*headers, (h.REQUEST_ID, request_id), (names.RUN, name)]
        # As a file: aiohttp would write large bytes in one go, and say so.
        payload = io.BytesIO(body)
        # As it stands: written anew, a query would mean the same to few and something else to some.
        url = URL(_ORIGIN + path, encoded=True)
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with self._session.post(url, data=payload, headers=named, allow_redirects=False) as answer:
                async for _ in answer.content.iter_chunked(_CHUNK_BYTES):
                    pass

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()
