"""What a replica can do to break the bounds of time, size and the event loop, and who pays for it."""

import asyncio
import gzip
import io
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio

from envoy_ext.adapters import scraper as scraper_module
from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.engines import Engine, parse_vllm
from envoy_ext.adapters.scraper import INLINE_BYTES, Scraper
from envoy_ext.domain.sample import Sample, ScrapeFailure, ScrapeTarget
from tests.adapters.engines.pages import load_page
from tests.support.raw_http import RawExchange, RawServer, build_response

MIB = 1024 * 1024
CAP = MIB
PAGE = load_page("vllm_metrics_busy")
PADDING = b'vllm:junk_total{model_name="%d"} 1.0\n'


@pytest_asyncio.fixture
async def scraper() -> AsyncIterator[Scraper]:
    scraper = Scraper(SystemClock(), timeout_s=20, max_page_bytes=CAP)
    yield scraper
    await scraper.close()


@pytest.fixture
def _late_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine wakes this process late, which is no timeout of a replica; `LateClock` is about that."""
    monkeypatch.setattr(scraper_module, "LATE_S", 60.0)


@pytest_asyncio.fixture
async def hasty(_late_machine: None) -> AsyncIterator[Scraper]:
    """A scraper that waits for nobody, but until what was sent at once can be there."""
    scraper = Scraper(SystemClock(), timeout_s=0.5, max_page_bytes=CAP)
    yield scraper
    await scraper.close()


@contextmanager
def peak_memory_below(bound: int) -> Iterator[None]:
    """Fails when Python's objects made inside ever take more, beyond what there was."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < bound
    finally:
        tracemalloc.stop()


async def hang(exchange: RawExchange) -> None:
    await exchange.wait_closed_by_peer()


async def hang_in_the_body(exchange: RawExchange) -> None:
    await exchange.send(build_response(PAGE)[:500])
    await exchange.wait_closed_by_peer()


async def drip(exchange: RawExchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
    await exchange.send_until_closed(b"#")


async def drip_headers(exchange: RawExchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nx: ")
    await exchange.wait_closed_by_peer()


def pad(page: bytes, size: int) -> bytes:
    """The page behind so much of what nobody wants that it has exactly the size."""
    lines = [PADDING % number for number in range((size - len(page)) // len(PADDING % 10_000_000))]
    padding = b"".join(lines)
    rest = size - len(padding) - len(page)
    return padding + b"#" * (rest - 1) + b"\n" + page


@pytest.mark.parametrize(
    ("answer", "phase"),
    [
        (hang, "before an answer"),
        (drip_headers, "before an answer"),
        (hang_in_the_body, "while the body came"),
    ],
)
async def test_whoever_hangs_costs_its_own_timeout(hasty: Scraper, answer: object, phase: str) -> None:
    async with RawServer(answer) as server:
        found = await hasty.scrape(ScrapeTarget(server.url, "vllm"))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "timeout"
    assert found.detail.endswith(phase)


@pytest.mark.usefixtures("_late_machine")
async def test_a_drop_of_bytes_now_and_then_does_not_push_the_timeout_back() -> None:
    scraper = Scraper(SystemClock(), timeout_s=0.2, max_page_bytes=1024 * MIB)

    async def drip_slowly(exchange: RawExchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(10_000):
            await exchange.send(b"#")
            await asyncio.sleep(0.005)  # the drops' own pace

    async with RawServer(drip_slowly) as server:
        found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    await scraper.close()
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "timeout"


async def test_two_hundred_hanging_replicas_do_not_delay_the_next_one(scraper: Scraper) -> None:
    async with RawServer(hang) as bad, RawServer(build_response(PAGE)) as good:
        hanging = [asyncio.create_task(scraper.scrape(ScrapeTarget(bad.url, "vllm"))) for _ in range(200)]
        await bad.wait_for_requests(200)
        sample = await scraper.scrape(ScrapeTarget(good.url, "vllm"))
        assert isinstance(sample, Sample)
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)


async def test_a_page_of_exactly_the_bound_is_read_to_its_end(scraper: Scraper) -> None:
    page = pad(PAGE, CAP)
    assert len(page) == CAP
    async with RawServer(build_response(page)) as server:
        sample = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    assert isinstance(sample, Sample)
    assert sample == parse_vllm(PAGE, sample.at)


async def test_a_page_one_byte_over_the_bound_is_too_large_whatever_its_frame(scraper: Scraper) -> None:
    page = b"#" + pad(PAGE, CAP)
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        len(page),
        page,
    )
    for answer in (build_response(page), chunked, b"HTTP/1.1 200 OK\r\n\r\n" + page):
        async with RawServer(answer) as server:
            found = await scraper.scrape(ScrapeTarget(server.url, "generic"))
        assert isinstance(found, ScrapeFailure)
        assert found.reason == "too_large"


async def test_a_page_of_17_mb_costs_a_bounded_read_and_bounded_memory(scraper: Scraper) -> None:
    """90,000 series of labels gone wild, and the wanted families at the very end."""
    page = pad(PAGE, 17_463_524)

    async def send(exchange: RawExchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        for start in range(0, len(page), 65536):
            await exchange.send(page[start : start + 65536])

    async with RawServer(send) as server:
        with peak_memory_below(5 * CAP):
            found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "too_large"


async def test_a_length_over_the_bound_is_believed_and_nothing_is_read(scraper: Scraper) -> None:
    async def announce(exchange: RawExchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 17463524\r\n\r\n")
        await exchange.wait_closed_by_peer()

    async with RawServer(announce) as server:
        found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "too_large"


async def test_reading_an_endless_page_stops_and_the_connection_with_it(scraper: Scraper) -> None:
    ended = asyncio.Event()

    async def send_for_ever(exchange: RawExchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await exchange.send_until_closed(b"vllm:junk_total 1.0\n" * 1000)
        ended.set()

    async with RawServer(send_for_ever) as server:
        with peak_memory_below(5 * CAP):
            found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
            async with asyncio.timeout(20):
                await ended.wait()
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "too_large"


@pytest.mark.parametrize("piece", [b"x" * 65536, b"x-header-of-many: 1\r\n" * 1000])
async def test_headers_without_end_are_no_answer(scraper: Scraper, piece: bytes) -> None:
    async def send_headers(exchange: RawExchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n")
        await exchange.send_until_closed(piece)

    async with RawServer(send_headers) as server:
        with peak_memory_below(5 * CAP):
            found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "not_metrics"


async def test_a_small_packed_body_that_swells_is_too_large_and_never_in_memory(scraper: Scraper) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as stream:
        for _ in range(100):
            stream.write(b"#" * MIB)
    body = packed.getvalue()
    assert len(body) < CAP
    async with RawServer(build_response(body, "content-encoding: gzip")) as server:
        with peak_memory_below(6 * CAP):
            found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "too_large"


async def test_the_event_loop_runs_while_a_large_page_is_parsed(
    scraper: Scraper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser waits for the loop: on the loop itself it would wait for ever."""
    loop, started, released = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    parsers = []

    def parse(page: bytes, at: float) -> Sample:
        parsers.append(threading.current_thread())
        loop.call_soon_threadsafe(started.set)
        assert released.wait(20)
        return parse_vllm(page, at)

    monkeypatch.setattr(scraper_module, "get_engine", lambda name: Engine(name, parse))
    page = pad(PAGE, INLINE_BYTES + 1)
    async with RawServer(build_response(page)) as server:
        looking = asyncio.create_task(scraper.scrape(ScrapeTarget(server.url, "vllm")))
        await started.wait()
        assert not looking.done()
        released.set()
        sample = await looking
    assert isinstance(sample, Sample)
    assert sample.running == 4.0
    assert parsers[0] is not threading.main_thread()


async def test_a_page_of_usual_size_is_parsed_without_a_thread(
    scraper: Scraper, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers = []

    def parse(page: bytes, at: float) -> Sample:
        parsers.append(threading.current_thread())
        return Sample(at=at)

    monkeypatch.setattr(scraper_module, "get_engine", lambda name: Engine(name, parse))
    async with RawServer(build_response(PAGE)) as server:
        await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    assert parsers == [threading.main_thread()]


class LateClock:
    """A clock that jumps after its first reading, as for a process that was stopped in between."""

    def __init__(self) -> None:
        self._readings = 0

    def now(self) -> float:
        self._readings += 1
        return 100.0 if self._readings == 1 else 160.0

    def wall(self) -> float:
        return self.now()


async def test_a_timeout_that_fires_far_too_late_is_our_own_starvation() -> None:
    scraper = Scraper(LateClock(), timeout_s=0.05)
    async with RawServer(hang) as server:
        found = await scraper.scrape(ScrapeTarget(server.url, "vllm"))
    await scraper.close()
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "starved"


async def test_a_look_that_is_cancelled_lets_go_of_both_connections(scraper: Scraper) -> None:
    gone = [asyncio.Event(), asyncio.Event()]

    async def hang_at_first(exchange: RawExchange) -> None:
        await exchange.wait_closed_by_peer()
        gone[0].set()

    async def hang_at_second(exchange: RawExchange) -> None:
        await exchange.wait_closed_by_peer()
        gone[1].set()

    async with RawServer(hang_at_first) as engine, RawServer(hang_at_second) as exporter:
        looking = asyncio.create_task(scraper.scrape(ScrapeTarget(engine.url, "vllm", dcgm_url=exporter.url)))
        await engine.wait_for_requests(1)
        await exporter.wait_for_requests(1)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        async with asyncio.timeout(20):
            await asyncio.gather(*(event.wait() for event in gone))


async def test_a_look_that_is_cancelled_while_its_page_is_parsed_ends(
    scraper: Scraper, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, started, released = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def parse(page: bytes, at: float) -> Sample:
        loop.call_soon_threadsafe(started.set)
        assert released.wait(20)
        return Sample(at=at)

    monkeypatch.setattr(scraper_module, "get_engine", lambda name: Engine(name, parse))
    async with RawServer(build_response(pad(PAGE, INLINE_BYTES + 1))) as server:
        looking = asyncio.create_task(scraper.scrape(ScrapeTarget(server.url, "vllm")))
        await started.wait()
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        released.set()


async def test_a_scraper_that_looked_at_nobody_can_be_closed() -> None:
    await Scraper(SystemClock()).close()
