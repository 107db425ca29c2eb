"""Looks at replicas over HTTP: their metrics, their GPUs', their health, and one real token.

Every look is bounded three ways: in time, in bytes, and in what it may cost the event loop that
the clients' streams run on. What a replica does to break a bound costs that replica its sample and
nobody else anything. Who is looked at, and when, is the service's business.
"""

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp import hdrs

from envoy_ext import __version__
from envoy_ext.adapters.engines import (
    Engine,
    NotMetrics,
    drop_unfinished_line,
    get_engine,
    parse_dcgm,
    read_decline,
    read_refusal,
)
from envoy_ext.adapters.engines.coding import TooLarge, unpack
from envoy_ext.adapters.engines.completion import build_question, is_answer
from envoy_ext.adapters.engines.refusal import ENGINE_DEAD, read_health_refusal
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.sample import GpuSample, Sample, ScrapeFailure, ScrapeTarget
from envoy_ext.ports import Clock
from envoy_ext.services.replica_keys import ReadKey

TIMEOUT_S: Final = 5.0
"""For a whole look. Engines answer /metrics from the loop that also serves requests, so seconds are normal
under load (ggml-org/llama.cpp#24866); two such looks fit into the ten seconds after which data is stale."""
COMPLETION_TIMEOUT_S: Final = 30.0
"""For one token: the first one after a start may compile kernels."""
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Of a metrics page, unpacked. A real vLLM has 53 KB for each engine of a replica, so 64 of them fit; a page
of 17 MB, seen in the field, is labels gone wild, and reading it each second would be the larger fault."""
INLINE_BYTES: Final = 64 * 1024
"""Pages up to this size are parsed on the event loop: a real vLLM's, in 0.3 ms. Larger ones go to a thread,
where each step that holds the interpreter is one substring search: about 5 ms for the largest page."""
BESIDE_S: Final = 0.5
"""How much later than the engine's page the page of its GPUs may come and still be part of the sample, and
how long its health page is waited for."""
ABORT_TIMEOUT_S: Final = 2.0
"""For the call that ends one request: after so long SGLang has looked for a closed connection by itself."""
LATE_S: Final = 0.25
"""A timeout that fires this much too late says that this process did not run, and nothing of the replica."""

_ERROR_BYTES: Final = 4096
_ANSWER_BYTES: Final = 1024 * 1024
"""An embedding of 8,192 figures has about 180 KB."""
_REMEMBERED_TARGETS: Final = 16_384
"""URLs that are taken apart once and not at each look: more than any fleet that is measured."""
_IDLE_S: Final = 4.0
"""Uvicorn, under most engines, closes idle connections after 5 s; a request sent just then would be lost."""
_HEADERS: Final[dict[str, str]] = {
    hdrs.USER_AGENT: f"envoy-ext/{__version__}",
    # Packing costs the engine's event loop more than the bytes cost a local network. What comes
    # packed all the same is unpacked.
    hdrs.ACCEPT_ENCODING: "identity",
}
_ACCEPT_TEXT: Final[dict[str, str]] = {hdrs.ACCEPT: "text/plain;version=0.0.4"}
_CLOSE: Final[dict[str, str]] = {hdrs.CONNECTION: "close"}

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class _Body:
    """What a 200 carried. `coding` is empty when the bytes are as they are."""

    raw: bytes
    read_at: float
    coding: str
    framed: bool
    """Its length was known, so its end is the end."""


class Scraper:
    """`ports.ScrapeSource` with one HTTP client for all replicas, on the event loop that first uses it.

    `close` it once, when no call is under way.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float = TIMEOUT_S,
        completion_timeout_s: float = COMPLETION_TIMEOUT_S,
        max_page_bytes: int = MAX_PAGE_BYTES,
        read_key: ReadKey = lambda pool: None,
    ) -> None:
        """`read_key`: what a pool's replicas are shown at their own address, and nobody elsewhere."""
        self._read_key = read_key
        self._clock = clock
        self._timeout_s = timeout_s
        self._completion_timeout_s = completion_timeout_s
        self._max_page_bytes = max_page_bytes
        self._session: aiohttp.ClientSession | None = None
        self._progress: dict[ScrapeTarget, float | None] = {}
        """Of engines that are asked whether they are dead, at the last look."""
        # Its own thread: the loop's default ones may all wait for a slow name server. And one only,
        # because several would take turns at the interpreter before the loop gets one.
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parse-metrics")

    async def scrape(self, target: ScrapeTarget) -> Sample | ScrapeFailure:
        """The engine's sample, with its GPUs when their page came in time.

        A page whose server says right after it that its engine is dead is none: its figures are old. That is
        not asked where counters have moved since the last look: it would be a second request at each look,
        in a busy fleet, and only an engine that lives moves them.
        """
        engine = get_engine(target.engine)
        looked = await self._scrape_pages(target, engine)
        if isinstance(looked, ScrapeFailure) or not engine.health_beside_metrics:
            return looked
        if self._has_moved(target, looked.progress):
            return looked
        return await self._read_death(_find_health(target), self._build_keyed(target)) or looked

    async def _scrape_pages(self, target: ScrapeTarget, engine: Engine) -> Sample | ScrapeFailure:
        url, headers = _find_metrics(target)
        if target.metrics_url is None:
            headers = self._build_keyed(target, headers)
        if target.dcgm_url is None:
            return await self._read_metrics(url, headers, engine.parse)
        gpus = asyncio.create_task(self._read_gpus(target.dcgm_url, target.gpus))
        try:
            sample = await self._read_metrics(url, headers, engine.parse)
            if isinstance(sample, ScrapeFailure):
                return sample
            await asyncio.wait({gpus}, timeout=BESIDE_S)
            return replace(sample, gpus=gpus.result()) if gpus.done() else sample
        finally:
            gpus.cancel()
            await asyncio.wait({gpus})

    async def probe_health(self, target: ScrapeTarget) -> bool | ScrapeFailure:
        """True when the engine's health page answers 200."""
        url = get_engine(target.engine).build_health_url(target.url)
        body = await self._fetch(
            hdrs.METH_GET,
            url,
            self._build_keyed(target, _CLOSE),
            self._timeout_s,
            _ANSWER_BYTES,
            read_reason=read_decline,
        )
        return body if isinstance(body, ScrapeFailure) else True

    async def probe_model(self, target: ScrapeTarget, model: str, api_path: str) -> bool | ScrapeFailure:
        """Ask for one token, or one embedding. True when it came, False when a 200 held anything else."""
        url = target.url.rstrip("/") + api_path
        question = build_question(model, api_path)
        body = await self._fetch(
            hdrs.METH_POST,
            url,
            self._build_keyed(target, _CLOSE),
            self._completion_timeout_s,
            _ANSWER_BYTES,
            question,
            read_reason=read_decline,
        )
        if isinstance(body, ScrapeFailure):
            return body
        try:
            return is_answer(unpack(body.raw, body.coding, _ANSWER_BYTES), api_path)
        except (NotMetrics, TooLarge):
            return False

    async def abort(self, target: ScrapeTarget, attempt_id: AttemptId) -> ScrapeFailure | None:
        """Post the engine's abort call for one attempt."""
        call = get_engine(target.engine).abort
        if call is None:
            return self._failure("unsupported", "the engine has no such call")
        body = await self._fetch(
            hdrs.METH_POST,
            target.url.rstrip("/") + call.path,
            self._build_keyed(target, _CLOSE),
            ABORT_TIMEOUT_S,
            _ANSWER_BYTES,
            call.build_body(attempt_id),
            read_reason=read_decline,
        )
        return body if isinstance(body, ScrapeFailure) else None

    async def close(self) -> None:
        """Close the connections and end the thread."""
        if self._session is not None:
            await self._session.close()
        self._parser.shutdown(wait=True, cancel_futures=True)

    def _has_moved(self, target: ScrapeTarget, progress: float | None) -> bool:
        before = self._progress.get(target)
        if len(self._progress) >= _REMEMBERED_TARGETS:
            self._progress.clear()  # replicas come and go; who is forgotten is asked once more
        self._progress[target] = progress
        return before is not None and progress is not None and progress > before

    def _build_keyed(self, target: ScrapeTarget, headers: dict[str, str] | None = None) -> dict[str, str]:
        key = self._read_key(target.pool)
        headers = {} if headers is None else headers
        return headers if key is None else {**headers, hdrs.AUTHORIZATION: f"Bearer {key}"}

    async def _read_death(self, url: str, headers: dict[str, str]) -> ScrapeFailure | None:
        """The failure when a health page says that the engine is dead; whatever else it says is no news."""
        body = await self._fetch(
            hdrs.METH_GET, url, headers, BESIDE_S, _ANSWER_BYTES, read_reason=read_health_refusal
        )
        return body if isinstance(body, ScrapeFailure) and body.reason == ENGINE_DEAD else None

    async def _read_gpus(self, url: str, gpus: tuple[int, ...]) -> tuple[GpuSample, ...]:
        """The GPUs, none when their exporter fails: it is no part of the engine."""
        found = await self._read_metrics(url, _ACCEPT_TEXT, lambda page, _: parse_dcgm(page, gpus))
        return () if isinstance(found, ScrapeFailure) else found

    async def _read_metrics(
        self, url: str, headers: dict[str, str], parse: Callable[[bytes, float], _Read]
    ) -> _Read | ScrapeFailure:
        body = await self._fetch(hdrs.METH_GET, url, headers, self._timeout_s, self._max_page_bytes)
        if isinstance(body, ScrapeFailure):
            return body
        try:
            if len(body.raw) <= INLINE_BYTES and not body.coding:
                return _read_page(body, self._max_page_bytes, parse)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._parser, _read_page, body, self._max_page_bytes, parse)
        except NotMetrics as error:
            return self._failure("not_metrics", str(error))
        except TooLarge:
            return self._failure("too_large", f"over {self._max_page_bytes} bytes unpacked")

    async def _fetch(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        timeout_s: float,
        max_bytes: int,
        question: dict[str, Any] | None = None,
        read_reason: Callable[[int, bytes], str] = read_refusal,
    ) -> _Body | ScrapeFailure:
        """The body of a 200 within both bounds; every other outcome as its failure."""
        started = self._clock.now()
        phase = "before an answer"
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http().request(
                    method, url, headers=headers, json=question, allow_redirects=False
                ) as answer,
            ):
                phase = "while the body came"
                raw = await _read_body(answer, max_bytes if answer.status == 200 else _ERROR_BYTES)
                if answer.status != 200:
                    reason = read_reason(answer.status, raw or b"")
                    return self._failure(reason, f"answered {answer.status}")
                if raw is None:
                    return self._failure("too_large", f"over {max_bytes} bytes")
                return _Body(raw, self._clock.now(), _read_coding(answer), _is_framed(answer))
        except TimeoutError:
            late_s = self._clock.now() - started - timeout_s
            if late_s > LATE_S:
                return self._failure("starved", f"this process was {late_s:.1f} s late")
            return self._failure("timeout", f"after {timeout_s:g} s, {phase}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = _read_failure(error)
            return self._failure(reason, f"{type(error).__name__} {phase}")

    def _failure(self, reason: str, detail: str) -> ScrapeFailure:
        return ScrapeFailure(at=self._clock.now(), reason=reason, detail=detail)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # No limit on connections: with one, a hundred hanging replicas would stop the rest.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
                headers=_HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        return self._session


@lru_cache(_REMEMBERED_TARGETS)
def _find_health(target: ScrapeTarget) -> str:
    return get_engine(target.engine).build_health_url(target.url)


@lru_cache(_REMEMBERED_TARGETS)
def _find_metrics(target: ScrapeTarget) -> tuple[str, dict[str, str]]:
    """Where a target's metrics are, and how they are asked for."""
    engine = get_engine(target.engine)
    url = target.metrics_url or engine.build_metrics_url(target.url)
    return url, _ACCEPT_TEXT if engine.keep_alive else _ACCEPT_TEXT | _CLOSE


async def _read_body(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """The whole body as it came, or None as soon as it is over the bound; then the connection is closed."""
    if (answer.content_length or 0) > max_bytes:
        answer.close()
        return None
    raw = bytearray()
    async for chunk in answer.content.iter_any():
        raw += chunk
        if len(raw) > max_bytes:
            answer.close()
            return None
    return bytes(raw)


def _read_coding(answer: aiohttp.ClientResponse) -> str:
    coding = answer.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    return "" if coding == "identity" else coding


def _is_framed(answer: aiohttp.ClientResponse) -> bool:
    return hdrs.CONTENT_LENGTH in answer.headers or hdrs.TRANSFER_ENCODING in answer.headers


def _read_page(body: _Body, max_bytes: int, parse: Callable[[bytes, float], _Read]) -> _Read:
    """Runs on the loop or in a thread. The content type plays no part: engines are careless with it."""
    page = unpack(body.raw, body.coding, max_bytes)
    return parse(page if body.framed else drop_unfinished_line(page), body.read_at)


def _read_failure(error: Exception) -> str:
    """The reason for what the HTTP client raised, most specific first."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "unreachable"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | ConnectionResetError():
            return "reset"
        case aiohttp.ClientResponseError() | aiohttp.http_exceptions.BadHttpMessage():
            # Headers over their limit, or no HTTP at all.
            return "not_metrics"
        case OSError(errno=errno.ECONNREFUSED):
            return "refused"
        case OSError(errno=errno.ECONNRESET | errno.EPIPE):
            return "reset"
        case OSError(errno=errno.ETIMEDOUT):
            return "timeout"
        case _:
            return "unreachable"
