"""Asking a replica what it serves: within bounds, and whatever fails is not known."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from envoy_ext.adapters.identity import IdentityReader
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.sample import ScrapeTarget
from envoy_ext.ports import IdentitySource
from envoy_ext.sim.engine import SimEngine, SimOptions
from tests.support.raw_http import RawExchange, RawServer, build_response

POOL = PoolName("chat")
NOTHING = Fingerprint(POOL)


def path_of(exchange: RawExchange) -> str:
    return exchange.line.split()[1]


LIST = json.dumps({"data": [{"id": "m", "root": "org/m", "parent": None, "owned_by": "vllm"}]}).encode()


@pytest_asyncio.fixture
async def reader() -> AsyncIterator[IdentityReader]:
    reader = IdentityReader(timeout_s=20)
    yield reader
    await reader.close()


async def test_a_whole_engine_is_asked(reader: IdentityReader) -> None:
    source: IdentitySource = reader
    options = SimOptions(
        root="/models/tiny-fp8", cache_dtype="fp8", adapters=("sql",), kv_capacity_tokens=4096
    )
    async with SimEngine(options) as engine:
        told = await source.read_identity(ScrapeTarget(engine.url, engine="vllm"), POOL)
    assert told == Fingerprint(POOL, model="tiny-fp8", kv_dtype="fp8", context="4096", adapters=("sql",))


async def test_an_engine_that_is_not_there_tells_nothing(reader: IdentityReader) -> None:
    async with SimEngine(SimOptions()) as engine:
        url = engine.url
    assert await reader.read_identity(ScrapeTarget(url, engine="vllm"), POOL) == NOTHING


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "tgi", "triton", "trtllm", "generic"])
@pytest.mark.parametrize(
    "answer",
    [
        build_response(b"no", status=404),
        build_response(b"{"),
        b"no http at all",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
    ],
)
async def test_no_answer_of_an_engine_is_an_error(reader: IdentityReader, engine: str, answer: bytes) -> None:
    async with RawServer(answer) as server:
        assert await reader.read_identity(ScrapeTarget(server.url, engine=engine), POOL) == NOTHING


@pytest.mark.parametrize("framed", [True, False])
async def test_a_page_over_the_bound_is_not_read(framed: bool) -> None:
    page = LIST + b" " * 2048
    head = f"content-length: {len(page)}\r\n" if framed else "connection: close\r\n"
    answer = f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + page
    for bound, model in ((1024, None), (4096, "m")):
        reader = IdentityReader(timeout_s=20, max_page_bytes=bound)
        async with RawServer(answer) as server:
            told = await reader.read_identity(ScrapeTarget(server.url, engine="generic"), POOL)
        await reader.close()
        assert told.model == model


async def test_a_page_that_hangs_costs_its_own_fields_and_the_bound_in_time() -> None:
    async def answer(exchange: RawExchange) -> None:
        if path_of(exchange) == "/v1/models":
            await exchange.send(build_response(LIST))
        else:
            await exchange.wait_closed_by_peer()

    reader = IdentityReader(timeout_s=0.5)
    async with RawServer(answer) as server:
        told = await reader.read_identity(ScrapeTarget(server.url, engine="vllm"), POOL)
    await reader.close()
    assert (told.model, told.kv_dtype) == ("m", None)


async def test_a_renamed_page_is_asked_by_both_of_its_names(reader: IdentityReader) -> None:
    asked: list[str] = []

    async def answer(exchange: RawExchange) -> None:
        asked.append(path_of(exchange))
        old = path_of(exchange) == "/get_server_info"
        page = json.dumps({"quantization": "fp8"}).encode()
        await exchange.send(build_response(page) if old else build_response(b"", status=404))

    async with RawServer(answer) as server:
        told = await reader.read_identity(ScrapeTarget(server.url, engine="sglang"), POOL)
    assert told.quantization == "fp8"
    assert asked.index("/server_info") < asked.index("/get_server_info")
