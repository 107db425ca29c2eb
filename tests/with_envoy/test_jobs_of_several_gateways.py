"""Two gateways and one store: one is killed while it runs jobs; the other finishes them all, each once."""

import asyncio
import itertools
import signal

from tests.with_envoy.asking import CHAT, build_body, mint_request_id
from tests.with_envoy.pair import WAIT_S, Edge, Pair, run_pair

JOBS = 12


async def test_what_a_killed_gateway_ran_and_had_waiting_is_finished_by_the_other() -> None:
    async with run_pair("sqlite", sections={"jobs": {"concurrency": 2}}) as pair:
        await check_that_one_finishes_what_the_other_leaves(pair)


async def check_that_one_finishes_what_the_other_leaves(pair: Pair) -> None:
    for engine in pair.engines:
        engine.faults.arm("hang", 4)
    names = [mint_request_id() for _ in range(JOBS)]
    places = [await submit(pair.a, name) for name in names]
    async with asyncio.timeout(WAIT_S):
        while sum(bool(pair.count_asked(name)) for name in names) < 4:  # two at each gateway
            await asyncio.sleep(0.01)
    for engine in pair.engines:
        engine.faults.clear()
    await pair.a.serving.end(signal.SIGKILL)
    for engine in pair.engines:
        for record in engine.find_requests():
            if record.ended is None and record.request_id in names:
                engine.cut(record.request_id)  # those of the one that lives too: it runs them again

    for name, place in zip(names, places, strict=True):
        await wait_whole(pair.b, place)
        asked = sorted(
            (one for engine in pair.engines for one in engine.find_requests(name)),
            key=lambda one: one.started_at,
        )
        assert sum(one.ended == "done" for one in asked) == 1
        assert len(asked) <= 2
        for before, after in itertools.pairwise(asked):
            assert before.finished_at is not None
            assert before.finished_at <= after.started_at


async def submit(edge: Edge, name: str) -> str:
    headers = {"prefer": "respond-async", "x-request-id": name}
    async with edge.http.post(edge.url + CHAT, json=build_body(stream=False), headers=headers) as answer:
        assert answer.status == 202
        return answer.headers["location"]


async def wait_whole(edge: Edge, place: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            async with edge.http.get(f"{edge.url}{place}/result") as answer:
                status, body = answer.status, await answer.json()
            if status != 202:
                break
            await asyncio.sleep(0.05)
    assert (status, body["choices"][0]["finish_reason"]) == (200, "stop"), body
