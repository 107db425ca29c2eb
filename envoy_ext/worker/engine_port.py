"""An engine in a process of its own, as its worker reaches it: one HTTP port."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

CONNECT_S: Final = 5.0
"""It is on the same host, or next to it."""
LOOK_S: Final = 1.0
ASK_S: Final = 5.0
"""One question of ours: a busy engine answers between two steps of its work."""
MAX_PAGE_BYTES: Final = 4 << 20
MAX_HEADER_BYTES: Final = 64 << 10
"""A header of an answer; Envoy takes 60 KiB of them."""
_SET_BY_THE_CLIENT: Final = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that aiohttp would add where a request has none."""


class Presence(StrEnum):
    """What is at the engine's port."""

    THERE = "there"
    GONE = "gone"
    """Its host refuses: no process listens, so the one that did is dead."""
    UNKNOWN = "unknown"


PageKey = tuple[str, frozenset[tuple[str, str]]]
"""Target and headers of a question."""


@dataclass(slots=True)
class _Page:
    """The questions for one page: one under way, one that waits for its turn."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    next: asyncio.Task[tuple[int, bytes]] | None = None


class EnginePort:
    """Belongs to one event loop.

    Each request has a connection of its own. To the same host one costs a tenth of a millisecond; a closed
    one can mean nothing but its request's end; and an idle one would hold a thread of engines that have one
    for each connection, as llama.cpp has.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._base = url.rstrip("/")
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._session: aiohttp.ClientSession | None = None
        self._looking: asyncio.Task[Presence] | None = None
        self._pages: dict[PageKey, _Page] = {}

    async def look(self) -> Presence:
        """Try a connection. Looks that come together are one."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._connect())
        return await asyncio.shield(self._looking)

    @asynccontextmanager
    async def open(
        self, method: str, target: str, headers: CIMultiDict[str], body: AsyncIterator[bytes] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the answer, with its body still to come. Its connection is closed at the end,
        whatever was read.

        Raises:
            aiohttp.ClientError: there is no connection, or it was lost.
        """
        response = await self._get_session().request(
            method,
            URL(f"{self._base}{target}", encoded=True),
            headers=headers,
            data=body,
            skip_auto_headers=_SET_BY_THE_CLIENT,
            allow_redirects=False,
        )
        try:
            yield response
        finally:
            connection = response.connection
            if connection is not None and connection.transport is not None:
                connection.transport.abort()  # what is still to be sent is not waited for
            response.close()

    async def ask(self, target: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """GET a page of the engine's own: its status, 0 for none, and what it says.

        What is told was true after this call. Questions that come while one is under way are one, the next:
        many that are asked at once must not take the threads of an engine that answers with few.
        """
        key = (target, frozenset(headers.items()))
        page = self._pages.setdefault(key, _Page())
        if page.next is None:
            page.next = asyncio.get_running_loop().create_task(self._ask_in_turn(key, page))
        return await asyncio.shield(page.next)

    async def _ask_in_turn(self, key: PageKey, page: _Page) -> tuple[int, bytes]:
        async with page.turn:
            page.next = None  # who comes from here on wants to know what is true later
            try:
                return await self._get(key[0], CIMultiDict(key[1]))
            finally:
                if page.next is None:
                    self._pages.pop(key, None)

    async def _get(self, target: str, headers: CIMultiDict[str]) -> tuple[int, bytes]:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(ASK_S), self.open("GET", target, headers, None) as page:
                return page.status, await page.content.read(MAX_PAGE_BYTES)
        return 0, b""

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:  # made here: a session belongs to the loop that runs
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        return self._session

    async def _connect(self) -> Presence:
        try:
            async with asyncio.timeout(LOOK_S):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except ConnectionRefusedError:
            return Presence.GONE
        except (OSError, TimeoutError):
            return Presence.UNKNOWN
        writer.transport.abort()
        return Presence.THERE
