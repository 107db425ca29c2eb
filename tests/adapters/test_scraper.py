"""Scraping one replica: what is asked, what is read, and what each failure is called."""

import asyncio
import errno
import gzip
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from envoy_ext.adapters import scraper as scraper_module
from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.engines import parse_dcgm, parse_trtllm, parse_vllm
from envoy_ext.adapters.scraper import Scraper, _read_failure
from envoy_ext.domain.sample import Sample, ScrapeFailure, ScrapeTarget
from envoy_ext.ports import ScrapeSource
from envoy_ext.sim.engine import SimEngine, SimOptions
from tests.adapters.engines.pages import load_page
from tests.support.raw_http import RawExchange, RawServer, build_response

PAGE = load_page("vllm_metrics_busy")
JSON = Path(__file__).parents[1] / "data" / "json"


@pytest_asyncio.fixture
async def scraper() -> AsyncIterator[Scraper]:
    scraper = Scraper(SystemClock(), timeout_s=20, completion_timeout_s=20)
    yield scraper
    await scraper.close()


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for what comes beside a page, however busy the machine is."""
    monkeypatch.setattr(scraper_module, "BESIDE_S", 20.0)


async def scrape(scraper: Scraper, answer: bytes, engine: str = "vllm") -> Sample | ScrapeFailure:
    async with RawServer(answer) as server:
        return await scraper.scrape(ScrapeTarget(server.url, engine=engine))


async def fail(scraper: Scraper, answer: bytes, engine: str = "vllm") -> str:
    found = await scrape(scraper, answer, engine)
    assert isinstance(found, ScrapeFailure)
    return found.reason


def test_the_scraper_is_a_scrape_source(scraper: Scraper) -> None:
    source: ScrapeSource = scraper
    assert source is scraper


async def test_a_page_becomes_the_sample_that_its_engines_parser_makes_of_it(scraper: Scraper) -> None:
    before = SystemClock().now()
    sample = await scrape(scraper, build_response(PAGE))
    assert isinstance(sample, Sample)
    assert before <= sample.at <= SystemClock().now()
    assert sample == parse_vllm(PAGE, sample.at)
    assert sample.running == 4.0


async def test_plain_text_is_asked_for_where_the_engine_has_it(scraper: Scraper) -> None:
    page = b"trtllm_num_requests_running 3\n"
    async with RawServer(build_response(page)) as server:
        sample = await scraper.scrape(ScrapeTarget(server.url, engine="trtllm"))
    (exchange,) = server.exchanges
    assert exchange.line == "GET /prometheus/metrics HTTP/1.1"
    assert exchange.headers["accept"].startswith("text/plain")
    assert exchange.headers["accept-encoding"] == "identity"
    assert isinstance(sample, Sample)
    assert sample == parse_trtllm(page, sample.at)


async def test_a_metrics_url_of_the_config_is_asked_as_it_is(scraper: Scraper) -> None:
    async with RawServer(build_response(PAGE)) as server:
        target = ScrapeTarget("http://127.0.0.1:1", "vllm", metrics_url=f"{server.url}/m?model=a&x=%20")
        assert isinstance(await scraper.scrape(target), Sample)
    assert server.exchanges[0].line == "GET /m?model=a&x=%20 HTTP/1.1"


async def test_a_connection_is_kept_but_not_where_it_would_hold_a_thread(
    scraper: Scraper,
) -> None:
    for engine, connections in (("vllm", 1), ("llamacpp", 3)):
        async with RawServer(build_response(b"")) as server:
            for _ in range(3):
                assert isinstance(await scraper.scrape(ScrapeTarget(server.url, engine)), Sample)
            assert server.accepted == connections, engine


async def look_beside_health(scraper: Scraper, health: bytes, engine: str) -> tuple[object, list[str]]:
    """One look at a server with a good page; what came of it, and which paths were asked for."""

    async def answer(exchange: RawExchange) -> None:
        asked_health = exchange.line == "GET /health HTTP/1.1"
        await exchange.send(health if asked_health else build_response(PAGE))

    async with RawServer(answer) as server:
        found = await scraper.scrape(ScrapeTarget(server.url, engine))
    return found, [exchange.line.split()[1] for exchange in server.exchanges]


@pytest.mark.usefixtures("_patient")
async def test_an_idle_page_of_a_vllm_whose_engine_is_dead_is_no_sample(scraper: Scraper) -> None:
    # A real vLLM 0.32 whose EngineCore was killed: /metrics 200 with its last figures, /health 503, empty.
    found, asked = await look_beside_health(scraper, build_response(b"", status=503), "vllm")
    assert isinstance(found, ScrapeFailure)
    assert (found.reason, found.detail) == ("engine_dead", "answered 503")
    assert asked == ["/metrics", "/health"]


@pytest.mark.usefixtures("_patient")
async def test_only_a_vllm_that_stands_still_is_asked_whether_it_is_dead(scraper: Scraper) -> None:
    tokens = iter((10, 20, 20, 30, 5))

    async def answer(exchange: RawExchange) -> None:
        if exchange.line == "GET /health HTTP/1.1":
            await exchange.send(build_response(b"", status=503))
        else:
            await exchange.send(build_response(b"vllm:generation_tokens_total %d\n" % next(tokens)))

    async with RawServer(answer) as server:
        target = ScrapeTarget(server.url, "vllm")
        found = [isinstance(await scraper.scrape(target), Sample) for _ in range(5)]
    # The first look has nothing to compare; the last one sees another process.
    assert found == [False, True, False, True, False]


@pytest.mark.parametrize("status", [200, 404, 401, 500, 502])
async def test_a_health_page_that_does_not_say_dead_says_nothing_against_a_vllm(
    scraper: Scraper, status: int
) -> None:
    found, _ = await look_beside_health(scraper, build_response(b"", status=status), "vllm")
    assert isinstance(found, Sample)


async def test_a_health_page_that_hangs_holds_no_sample_up(scraper: Scraper) -> None:
    async def answer(exchange: RawExchange) -> None:
        if exchange.line == "GET /health HTTP/1.1":
            await asyncio.Event().wait()
        await exchange.send(build_response(PAGE))

    async with RawServer(answer) as server, asyncio.timeout(15):  # the scraper's own limit is 20 s
        found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    assert isinstance(found, Sample)


async def test_an_engine_that_computes_in_its_server_is_not_asked_twice(scraper: Scraper) -> None:
    found, asked = await look_beside_health(scraper, build_response(b"", status=503), "llamacpp")
    assert isinstance(found, Sample)
    assert asked == ["/metrics"]


async def test_the_content_type_plays_no_part(scraper: Scraper) -> None:
    found = await scrape(scraper, build_response(PAGE, content_type="application/json"))
    assert isinstance(found, Sample)
    assert await fail(scraper, build_response(b"<html>busy</html>")) == "not_metrics"


@pytest.mark.parametrize("body", [b"<!DOCTYPE html><p>hello", b"[]", b'{"a": 1}', b"Hello"])
async def test_a_body_that_is_no_page_is_named_so(scraper: Scraper, body: bytes) -> None:
    assert await fail(scraper, build_response(body, content_type="text/html")) == "not_metrics"


async def test_an_empty_page_is_a_sample_that_knows_nothing(scraper: Scraper) -> None:
    found = await scrape(scraper, build_response(b""))
    assert isinstance(found, Sample)
    assert found == Sample(at=found.at)


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (501, (JSON / "llamacpp_metrics_disabled_501.json").read_bytes(), "unsupported"),
        (503, (JSON / "llamacpp_loading_503.json").read_bytes(), "loading"),
        (404, b"", "unsupported"),
        (503, b"", "bad_status"),
        (500, PAGE, "bad_status"),
        (401, b"", "bad_status"),
        (204, b"", "bad_status"),
        (500, b"x" * 100_000, "bad_status"),
    ],
)
async def test_every_status_but_200_is_a_failure_with_its_meaning(
    scraper: Scraper, status: int, body: bytes, reason: str
) -> None:
    found = await scrape(scraper, build_response(body, status=status), "llamacpp")
    assert isinstance(found, ScrapeFailure)
    assert (found.reason, found.detail) == (reason, f"answered {status}")


async def test_a_redirect_is_not_followed(scraper: Scraper) -> None:
    async with RawServer(build_response(PAGE)) as other:
        moved = build_response(b"", f"location: {other.url}/metrics", status=302)
        assert await fail(scraper, moved) == "bad_status"
        assert other.accepted == 0


async def test_a_closed_port_is_refused(scraper: Scraper) -> None:
    async with RawServer(b"") as server:
        url = server.url
    for address in (url, url.replace("127.0.0.1", "localhost")):
        found = await scraper.scrape(ScrapeTarget(address, "vllm"))
        assert isinstance(found, ScrapeFailure)
        assert found.reason == "refused"
        assert address not in found.detail


async def test_an_address_without_a_way_to_it_is_unreachable(scraper: Scraper) -> None:
    found = await scraper.scrape(ScrapeTarget("http://255.255.255.255:8000", "vllm"))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "unreachable"


async def test_a_reset_and_an_end_before_the_answer_are_resets(scraper: Scraper) -> None:
    async def reset(exchange: RawExchange) -> None:
        exchange.reset()

    async def reset_in_the_body(exchange: RawExchange) -> None:
        await exchange.send(build_response(PAGE)[:1000])
        exchange.reset()

    for answer in (reset, reset_in_the_body):
        async with RawServer(answer) as server:
            found = await scraper.scrape(ScrapeTarget(server.url, "generic"))
        assert isinstance(found, ScrapeFailure)
        assert found.reason == "reset", answer
    assert await fail(scraper, b"", "generic") == "reset"


@pytest.mark.parametrize(
    "answer",
    [
        build_response(PAGE)[:-1],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nload \r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\nload 1\n\r\n",
    ],
)
async def test_a_body_that_breaks_off_is_no_page(scraper: Scraper, answer: bytes) -> None:
    assert await fail(scraper, answer, "generic") == "reset"


async def test_the_last_line_counts_only_when_the_bodys_end_is_its_end(scraper: Scraper) -> None:
    page = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 12"
    framed = await scrape(scraper, build_response(page), "generic")
    assert isinstance(framed, Sample)
    assert framed.waiting == 12.0
    unframed = await scrape(scraper, b"HTTP/1.1 200 OK\r\n\r\n" + page, "generic")
    assert isinstance(unframed, Sample)
    assert (unframed.running, unframed.waiting) == (3.0, None)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP"])
async def test_a_packed_page_is_unpacked(scraper: Scraper, coding: str) -> None:
    found = await scrape(scraper, build_response(gzip.compress(PAGE), f"content-encoding: {coding}"))
    assert isinstance(found, Sample)
    assert found == parse_vllm(PAGE, found.at)


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(PAGE)[:-9], "gzip"),
        (gzip.compress(PAGE) + b"x", "gzip"),
        (PAGE, "gzip"),
        (b"", "gzip"),
        (PAGE, "br"),
        (PAGE, "zstd"),
        (gzip.compress(gzip.compress(PAGE)), "gzip"),
    ],
)
async def test_what_cannot_be_unpacked_is_no_page(scraper: Scraper, body: bytes, coding: str) -> None:
    assert await fail(scraper, build_response(body, f"content-encoding: {coding}")) == "not_metrics"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ECONNREFUSED, "refused"), "refused"),
        (OSError(errno.ECONNRESET, "reset"), "reset"),
        (OSError(errno.EPIPE, "pipe"), "reset"),
        (OSError(errno.ETIMEDOUT, "the system's own time ran out"), "timeout"),
        (OSError(errno.EHOSTUNREACH, "no route"), "unreachable"),
        (OSError(errno.ENETUNREACH, "no net"), "unreachable"),
        (OSError(errno.EMFILE, "too many open files"), "unreachable"),
        (OSError("without a number"), "unreachable"),
        (ValueError("a host name of 300 characters"), "unreachable"),
    ],
)
def test_what_the_system_says_becomes_a_reason(error: Exception, reason: str) -> None:
    assert _read_failure(error) == reason
    if isinstance(error, OSError) and error.errno:
        key = aiohttp.client_reqrep.ConnectionKey("h", 1, False, True, None, None, None)
        assert _read_failure(aiohttp.ClientConnectorError(key, error)) == reason


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    key = aiohttp.client_reqrep.ConnectionKey("h", 1, False, True, None, None, None)
    error = socket.gaierror(socket.EAI_NONAME, "not known")
    assert _read_failure(aiohttp.ClientConnectorDNSError(key, error)) == "unreachable"


GPU_PAGE = load_page("dcgm_healthy_h100x2")


@pytest.mark.usefixtures("_patient")
async def test_the_gpus_of_a_replica_come_with_its_sample(scraper: Scraper) -> None:
    async with RawServer(build_response(PAGE)) as engine, RawServer(build_response(GPU_PAGE)) as exporter:
        target = ScrapeTarget(engine.url, "vllm", dcgm_url=f"{exporter.url}/gpu", gpus=(1,))
        sample = await scraper.scrape(target)
    assert isinstance(sample, Sample)
    assert sample == replace(parse_vllm(PAGE, sample.at), gpus=parse_dcgm(GPU_PAGE, (1,)))
    assert exporter.exchanges[0].line == "GET /gpu HTTP/1.1"


@pytest.mark.parametrize("answer", [build_response(b"", status=500), build_response(b"<html>"), b""])
async def test_an_exporter_that_fails_leaves_the_gpus_unknown_and_the_sample_whole(
    scraper: Scraper, answer: bytes
) -> None:
    async with RawServer(build_response(PAGE)) as engine, RawServer(answer) as exporter:
        sample = await scraper.scrape(ScrapeTarget(engine.url, "vllm", dcgm_url=exporter.url))
    assert isinstance(sample, Sample)
    assert sample == parse_vllm(PAGE, sample.at)


async def test_an_exporter_that_hangs_is_left_behind(scraper: Scraper) -> None:
    async def hang(exchange: RawExchange) -> None:
        await exchange.wait_closed_by_peer()

    async with RawServer(build_response(PAGE)) as engine, RawServer(hang) as exporter:
        async with asyncio.timeout(15):  # below the scraper's own 20 s
            sample = await scraper.scrape(ScrapeTarget(engine.url, "vllm", dcgm_url=exporter.url))
    assert isinstance(sample, Sample)
    assert sample.running == 4.0
    assert sample.gpus == ()


async def test_the_failure_of_an_engine_does_not_wait_for_its_exporter(scraper: Scraper) -> None:
    async def hang(exchange: RawExchange) -> None:
        await exchange.wait_closed_by_peer()

    async with RawServer(build_response(b"", status=500)) as engine, RawServer(hang) as exporter:
        async with asyncio.timeout(15):
            found = await scraper.scrape(ScrapeTarget(engine.url, "vllm", dcgm_url=exporter.url))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "bad_status"


async def test_a_simulated_engine_is_read_at_work_and_after_its_end(scraper: Scraper) -> None:
    async with SimEngine(SimOptions(prefill_s=0, token_s=30)) as engine, aiohttp.ClientSession() as http:
        target = ScrapeTarget(engine.url, "vllm")
        idle = await scraper.scrape(target)
        assert isinstance(idle, Sample)
        assert (idle.running, idle.waiting, idle.kv_cache_usage, idle.sleeping) == (0.0, 0.0, 0.0, False)
        assert idle.process_started_at is not None
        question = {"model": "sim", "messages": [{"role": "user", "content": "a b c"}], "stream": True}
        async with http.post(f"{engine.url}/v1/chat/completions", json=question) as answer:
            await answer.content.readany()
            busy = await scraper.scrape(target)
            answer.close()
        assert isinstance(busy, Sample)
        assert busy.running == 1.0
        assert busy.kv_cache_usage is not None
        assert busy.kv_cache_usage > 0
    gone = await scraper.scrape(target)
    assert isinstance(gone, ScrapeFailure)
    assert gone.reason == "refused"


async def test_a_failure_says_nothing_of_what_the_replica_sent(scraper: Scraper) -> None:
    secret = b"sk-very-secret"
    for answer in (
        build_response(secret),
        build_response(json.dumps({"error": {"message": "Loading " + secret.decode()}}).encode(), status=503),
        build_response(PAGE, "content-encoding: " + secret.decode()),
        b"HTTP/1.1 200 OK\r\n" + secret + b"\r\n\r\n",
        secret + b"\r\n\r\n",
    ):
        found = await scrape(scraper, answer, "generic")
        assert isinstance(found, ScrapeFailure)
        assert secret.decode() not in repr(found)
