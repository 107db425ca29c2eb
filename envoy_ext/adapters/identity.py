"""Asks engines what they serve: a few small pages, read within bounds of time and size.

Whatever cannot be read is not known, and that is all that comes of it: no failure here says anything
of a replica's health.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp
from aiohttp import hdrs

from envoy_ext import __version__
from envoy_ext.adapters.engines import get_engine
from envoy_ext.adapters.engines.identity import IDENTITIES, METRICS
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.sample import ScrapeTarget
from envoy_ext.services.replica_keys import ReadKey

TIMEOUT_S: Final = 3.0
"""For all pages of one replica, which gets no work before they were asked for: shorter than a look's own."""
MAX_PAGE_BYTES: Final = 1024 * 1024
"""A list of models with a thousand adapters has 600 KB; a real vLLM's metrics have 53 KB for each engine."""

_HEADERS: Final[dict[str, str]] = {
    hdrs.USER_AGENT: f"envoy-ext/{__version__}",
    hdrs.ACCEPT_ENCODING: "identity",
    # Asked once a minute at most: a connection kept open would cost llama.cpp a thread for nothing.
    hdrs.CONNECTION: "close",
}


class IdentityReader:
    """`ports.IdentitySource` with one HTTP client. `close` it once, when no call is under way."""

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        max_page_bytes: int = MAX_PAGE_BYTES,
        read_key: ReadKey = lambda pool: None,
    ) -> None:
        """`read_key`: what a pool's replicas are shown at their own address."""
        self._read_key = read_key
        self._timeout_s = timeout_s
        self._max_page_bytes = max_page_bytes
        self._session: aiohttp.ClientSession | None = None

    async def read_identity(self, target: ScrapeTarget, pool: PoolName) -> Fingerprint:
        """What the engine tells of itself; the fields of pages that did not come are None."""
        engine = IDENTITIES[target.engine]
        pages: dict[str, bytes] = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(*(self._read_first(target, group, pages) for group in engine.pages))
        except TimeoutError:
            pass  # what has come by then is read
        # A page may be large, and the loop has streams to serve.
        return await asyncio.to_thread(engine.read, pages, pool)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _read_first(self, target: ScrapeTarget, paths: Sequence[str], pages: dict[str, bytes]) -> None:
        """Read the first page that answers: engines rename them."""
        for path in paths:
            elsewhere = path == METRICS and target.metrics_url is not None
            key = None if elsewhere else self._read_key(target.pool)
            shown: dict[str, str] = {} if key is None else {hdrs.AUTHORIZATION: f"Bearer {key}"}
            page = await self._fetch(_build_url(target, path), shown)
            if page is not None:
                pages[path] = page
                return

    async def _fetch(self, url: str, shown: dict[str, str]) -> bytes | None:
        """The body of a 200 within its bound, None for everything else."""
        try:
            async with self._http().get(url, headers=_HEADERS | shown, allow_redirects=False) as answer:
                if answer.status != 200 or (answer.content_length or 0) > self._max_page_bytes:
                    answer.close()
                    return None
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > self._max_page_bytes:
                        answer.close()
                        return None
                return bytes(body)
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        return self._session


def _build_url(target: ScrapeTarget, path: str) -> str:
    if path == METRICS:
        return target.metrics_url or get_engine(target.engine).build_metrics_url(target.url)
    return target.url.rstrip("/") + path
