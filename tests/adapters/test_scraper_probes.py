"""The control call and the health page: what counts as a token, and what as an answer."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from envoy_ext.adapters import scraper as scraper_module
from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.scraper import Scraper
from envoy_ext.domain.sample import ScrapeFailure, ScrapeTarget
from envoy_ext.sim.engine import SimEngine, SimOptions
from tests.support.raw_http import RawExchange, RawServer, build_response

LOADING = (Path(__file__).parents[1] / "data" / "json" / "llamacpp_loading_503.json").read_bytes()
NO_MODEL = (
    b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}'
)
NO_MODEL_BARE = (
    b'{"object":"error","message":"The model `m` does not exist.","type":"NotFoundError","code":404}'
)
NO_COMPLETIONS = (
    b'{"error":{"message":"The model does not support Completions API","type":"BadRequestError","code":400}}'
)
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
COMPLETIONS = "/v1/completions"


@pytest_asyncio.fixture
async def scraper() -> AsyncIterator[Scraper]:
    scraper = Scraper(SystemClock(), timeout_s=20, completion_timeout_s=20)
    yield scraper
    await scraper.close()


async def probe(scraper: Scraper, answer: bytes, path: str = CHAT) -> bool | ScrapeFailure:
    async with RawServer(answer) as server:
        return await scraper.probe_model(ScrapeTarget(server.url), "m", path)


def as_json(answer: Any) -> bytes:
    return build_response(json.dumps(answer).encode(), content_type="application/json")


def choice(finish_reason: object, **more: object) -> dict[str, object]:
    return {"index": 0, "finish_reason": finish_reason, **more}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_simulated_engine_gives_its_token(scraper: Scraper, path: str) -> None:
    async with SimEngine(SimOptions(prefill_s=0, token_s=0)) as engine:
        assert await scraper.probe_model(ScrapeTarget(engine.url, "vllm"), "sim", path) is True
        assert await scraper.probe_health(ScrapeTarget(engine.url, "vllm")) is True


@pytest.mark.parametrize(
    ("path", "prompt"),
    [(CHAT, {"messages": [{"role": "user", "content": "ping"}]}), (COMPLETIONS, {"prompt": "ping"})],
)
async def test_one_token_is_asked_for_in_the_form_of_the_api(
    scraper: Scraper, path: str, prompt: dict[str, object]
) -> None:
    async with RawServer(as_json({"choices": [choice("length")]})) as server:
        assert await scraper.probe_model(ScrapeTarget(server.url + "/"), "m/1", path) is True
    (exchange,) = server.exchanges
    assert exchange.line == f"POST {path} HTTP/1.1"
    assert exchange.headers["content-type"] == "application/json"
    assert json.loads(exchange.body) == {
        "model": "m/1",
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        **prompt,
    }


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [choice("length", message={"role": "assistant", "content": "a"})]},
        {"choices": [choice("stop", message={"role": "assistant", "content": ""})]},
        {"choices": [choice("stop", text="")]},
        {"choices": [choice("tool_calls")]},
        {"choices": [choice("length"), choice("stop")]},
        {"choices": [choice("length")], "error": None},
    ],
)
async def test_an_answer_that_came_to_its_end_is_a_token_also_without_text(
    scraper: Scraper, answer: object
) -> None:
    assert await probe(scraper, as_json(answer)) is True


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "engine died", "code": 500}},
        {"object": "error", "message": "engine died", "code": 500},
        {"choices": [choice("length")], "error": {"message": "engine died"}},
        {"choices": []},
        {"choices": None},
        {"choices": {"0": choice("stop")}},
        {"choices": ["stop"]},
        {"choices": [choice(None)]},
        {"choices": [choice("")]},
        {"choices": [choice("abort")]},
        {"choices": [choice("error")]},
        {"choices": [choice("stop"), choice(None)]},
        {"choices": [choice(["stop"])]},
        [],
        "choices",
        None,
    ],
)
async def test_a_200_with_anything_else_is_no_token(scraper: Scraper, answer: object) -> None:
    assert await probe(scraper, as_json(answer)) is False


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 5000, b"<html>", b'data: {"choices":[]}\n\n'])
async def test_a_200_that_is_no_json_is_no_token(scraper: Scraper, body: bytes) -> None:
    assert await probe(scraper, build_response(body)) is False


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (build_response(LOADING, status=503), "loading"),
        (build_response(b"", status=503), "bad_status"),
        (build_response(b"", status=500), "bad_status"),
        (build_response(b"", status=401), "denied"),
        (build_response(b"", status=403), "denied"),
        (build_response(b"", status=404), "unsupported"),
        (build_response(b'{"detail":"Not Found"}', status=404), "unsupported"),
        (build_response(NO_MODEL, status=404), "model_unknown"),
        (build_response(NO_MODEL_BARE, status=404), "model_unknown"),
        (
            build_response(b'{"error":"model \'m\' not found, try pulling it first"}', status=404),
            "model_unknown",
        ),
        (build_response(b"", status=405), "unsupported"),
        (build_response(NO_COMPLETIONS, status=400), "declined"),
        (build_response(b"", status=422), "declined"),
        (build_response(b"", status=501), "unsupported"),
        (build_response(b'{"error":"Model is overloaded"}', status=429), "busy"),
        (build_response(b"", "location: http://127.0.0.1:1/", status=307), "bad_status"),
        (build_response(b"x" * 2_000_000), "too_large"),
        (b"", "reset"),
    ],
)
async def test_a_failed_control_call_says_why(scraper: Scraper, answer: bytes, reason: str) -> None:
    found = await probe(scraper, answer)
    assert isinstance(found, ScrapeFailure)
    assert found.reason == reason


@pytest.mark.parametrize("figures", [[0.25] * 8192, [1], "AACAPg=="])
async def test_an_embedding_is_asked_for_in_its_own_form_and_counts_when_it_has_figures(
    scraper: Scraper, figures: object
) -> None:
    async with RawServer(as_json({"data": [{"index": 0, "embedding": figures}]})) as server:
        assert await scraper.probe_model(ScrapeTarget(server.url), "m", EMBEDDINGS) is True
    (exchange,) = server.exchanges
    assert exchange.line == f"POST {EMBEDDINGS} HTTP/1.1"
    assert json.loads(exchange.body) == {"model": "m", "input": "ping"}


@pytest.mark.parametrize(
    "answer",
    [
        {"data": []},
        {"data": [{"embedding": []}]},
        {"data": [{"embedding": ""}]},
        {"data": [{"embedding": None}]},
        {"data": [{"embedding": [1]}, {}]},
        {"data": [{"embedding": [1]}], "error": {"message": "engine died"}},
        {"choices": [choice("stop")]},
        [],
    ],
)
async def test_an_embedding_without_figures_is_none(scraper: Scraper, answer: object) -> None:
    assert await probe(scraper, as_json(answer), EMBEDDINGS) is False


async def test_a_simulated_engine_gives_its_embedding(scraper: Scraper) -> None:
    async with SimEngine(SimOptions(prefill_s=0)) as engine:
        assert await scraper.probe_model(ScrapeTarget(engine.url, "vllm"), "sim", EMBEDDINGS) is True


async def test_a_control_call_has_its_own_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraper_module, "LATE_S", 60.0)  # a busy machine wakes this process late

    async def hang(exchange: RawExchange) -> None:
        await exchange.wait_closed_by_peer()

    scraper = Scraper(SystemClock(), timeout_s=20, completion_timeout_s=0.1)
    async with RawServer(hang) as server:
        found = await scraper.probe_model(ScrapeTarget(server.url), "m", CHAT)
    await scraper.close()
    assert isinstance(found, ScrapeFailure)
    assert found.reason == "timeout"


async def test_a_closed_port_refuses_both_probes(scraper: Scraper) -> None:
    async with RawServer(b"") as server:
        target = ScrapeTarget(server.url)
    for found in (await scraper.probe_health(target), await scraper.probe_model(target, "m", CHAT)):
        assert isinstance(found, ScrapeFailure)
        assert found.reason == "refused"


@pytest.mark.parametrize(
    ("engine", "line"),
    [("vllm", "GET /health HTTP/1.1"), ("triton", "GET /v2/health/ready HTTP/1.1")],
)
async def test_health_is_asked_where_the_engine_has_it_and_any_200_is_alive(
    scraper: Scraper, engine: str, line: str
) -> None:
    async with RawServer(build_response(b'{"status":"ok"}')) as server:
        assert await scraper.probe_health(ScrapeTarget(server.url, engine)) is True
    assert server.exchanges[0].line == line
    assert server.exchanges[0].headers["connection"] == "close"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (build_response(LOADING, status=503), "loading"),
        (build_response(b"", status=503), "bad_status"),
        (build_response(b"", status=404), "unsupported"),
        (build_response(b"", status=401), "denied"),
    ],
)
async def test_a_health_page_that_says_no_says_why(scraper: Scraper, answer: bytes, reason: str) -> None:
    async with RawServer(answer) as server:
        found = await scraper.probe_health(ScrapeTarget(server.url, "llamacpp"))
    assert isinstance(found, ScrapeFailure)
    assert found.reason == reason
