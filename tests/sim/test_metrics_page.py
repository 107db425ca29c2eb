"""The metrics page: readable by Prometheus' own parser, with vLLM's names, and true."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from envoy_ext.sim.engine import SimEngine
from tests.sim.conftest import StartEngine
from tests.sim.wire import CHAT, Connection, ask, build_request

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def read_samples(engine: SimEngine) -> Samples:
    page = await ask(engine, "/metrics", method="GET")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, model: str = "sim", **labels: str) -> float:
    return samples[name, frozenset(({"engine": "0", "model_name": model} | labels).items())]


async def test_an_idle_engine_shows_zeros_under_vllms_names(start_engine: StartEngine) -> None:
    samples = await read_samples(await start_engine(models=("org/one", "two")))
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
    ):
        assert value(samples, name, model="org/one") == 0.0
    for reason in ("stop", "length", "abort", "error"):
        assert value(samples, "vllm:request_success_total", model="org/one", finished_reason=reason) == 0.0


async def test_running_waiting_and_cache_follow_the_requests(start_engine: StartEngine) -> None:
    engine = await start_engine(max_running=2, kv_capacity_tokens=1000)
    async with asyncio.timeout(20):
        connections = []
        for _ in range(3):
            connections.append(await Connection.open(engine.port))
            body = b'{"stream": true, "prompt": "' + b"x" * 1172 + b'"}'
            connections[-1].writer.write(build_request(CHAT, body, {"x-sim-fault": "hang"}))
        await engine.state.wait_until(lambda: engine.state.waiting == 1 and engine.state.running == 2)
        samples = await read_samples(engine)
        for connection in connections:
            await connection.close()
    assert value(samples, "vllm:num_requests_running") == 2
    assert value(samples, "vllm:num_requests_waiting") == 1
    assert value(samples, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
    assert value(samples, "vllm:kv_cache_usage_perc") == 0.6


async def test_the_cache_is_never_more_than_full(start_engine: StartEngine) -> None:
    engine = await start_engine(kv_capacity_tokens=1)
    async with asyncio.timeout(20):
        connection = await Connection.open(engine.port)
        connection.writer.write(build_request(CHAT, {"stream": True}, {"x-sim-fault": "hang"}))
        await engine.state.wait_until(lambda: engine.state.running == 1)
        samples = await read_samples(engine)
        await connection.close()
    assert value(samples, "vllm:kv_cache_usage_perc") == 1.0


async def test_counters_count_tokens_and_ends(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=3)
    await ask(engine)
    await ask(engine, body={"stream": True, "max_tokens": 2})
    await ask(engine, fault="die_after=1")
    await ask(engine, fault="abort")
    samples = await read_samples(engine)
    assert value(samples, "vllm:generation_tokens_total") == 3 + 2 + 1 + 3
    assert value(samples, "vllm:prompt_tokens_total") > 0
    ends = {
        reason: value(samples, "vllm:request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "abort", "error")
    }
    assert ends == {"stop": 1, "length": 1, "abort": 1, "error": 1}
    assert value(samples, "vllm:time_to_first_token_seconds_count") == 4


async def test_a_client_that_left_counts_as_abort(start_engine: StartEngine) -> None:
    engine = await start_engine()
    async with asyncio.timeout(20):
        connection = await Connection.open(engine.port)
        connection.writer.write(build_request(CHAT, {"stream": True}, {"x-sim-fault": "hang_after=1"}))
        await connection.read_until(b"a.1.0")
        await connection.close()
        await engine.state.wait_until(lambda: engine.state.cancelled == 1)
    samples = await read_samples(engine)
    assert value(samples, "vllm:request_success_total", finished_reason="abort") == 1


async def test_two_engines_in_one_process_share_nothing(start_engine: StartEngine) -> None:
    first, second = await start_engine(name="a"), await start_engine(name="b")
    await ask(first)
    assert value(await read_samples(first), "vllm:generation_tokens_total") == 3
    assert value(await read_samples(second), "vllm:generation_tokens_total") == 0
    assert (first.state.generations, second.state.generations) == (1, 0)


async def test_a_restarted_engine_shows_another_start_time(start_engine: StartEngine) -> None:
    first, second = await start_engine(), await start_engine()
    times = [
        (await read_samples(engine))["process_start_time_seconds", frozenset()] for engine in (first, second)
    ]
    assert times[0] < times[1]


async def test_iteration_tokens_is_a_histogram_despite_its_name(start_engine: StartEngine) -> None:
    page = (await ask(await start_engine(), "/metrics", method="GET")).body
    assert b"# TYPE vllm:iteration_tokens_total histogram" in page
