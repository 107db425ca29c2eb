"""The engine's own call to end one request: how it is named, and what is asked."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.engines import ENGINES, name_request
from envoy_ext.adapters.scraper import Scraper
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.sample import ScrapeTarget
from tests.support.raw_http import RawServer, build_response

ATTEMPT = AttemptId("att_01")


@pytest_asyncio.fixture
async def scraper() -> AsyncIterator[Scraper]:
    made = Scraper(SystemClock())
    yield made
    await made.close()


def test_only_an_engine_that_can_name_our_request_is_asked() -> None:
    assert [name for name, engine in ENGINES.items() if engine.abort is not None] == ["sglang"]
    call = ENGINES["sglang"].abort
    assert call is not None
    assert call.name_header == "x-override-rid"


def test_names_are_of_one_length_and_tell_nothing_of_the_attempt() -> None:
    """SGLang ends every request whose rid begins with the one given."""
    names = {name_request(AttemptId(f"att_{number}")) for number in range(100)}
    assert len(names) == 100
    assert {len(name) for name in names} == {32}
    assert not any("att_" in name for name in names)


async def test_what_is_posted_names_one_request(scraper: Scraper) -> None:
    async with RawServer(build_response(b"")) as server:
        assert await scraper.abort(ScrapeTarget(server.url + "/", "sglang"), ATTEMPT) is None
    (exchange,) = server.exchanges
    assert exchange.line == "POST /abort_request HTTP/1.1"
    assert json.loads(exchange.body) == {"rid": name_request(ATTEMPT)}


@pytest.mark.parametrize(("status", "reason"), [(401, "denied"), (404, "unsupported")])
async def test_a_call_that_is_not_taken_says_why(scraper: Scraper, status: int, reason: str) -> None:
    async with RawServer(build_response(b"", status=status)) as server:
        failure = await scraper.abort(ScrapeTarget(server.url, "sglang"), ATTEMPT)
    assert failure is not None
    assert failure.reason == reason


async def test_an_engine_without_such_a_call_is_not_asked(scraper: Scraper) -> None:
    async with RawServer(build_response(b"")) as server:
        failure = await scraper.abort(ScrapeTarget(server.url, "vllm"), ATTEMPT)
    assert failure is not None
    assert (failure.reason, server.exchanges) == ("unsupported", [])
