"""A pool of unequal replicas: a replay goes to an equal of the first attempt's replica, or nowhere."""

import asyncio
from pathlib import Path
from typing import Any

from envoy_ext.domain.incarnation import START_JITTER_S
from envoy_ext.operations_client import fetch_replicas
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import Reply, ask, build_body
from tests.with_envoy.gateway import MODEL, WAIT_S, Gateway, run_gateway

SECTIONS: dict[str, Any] = {
    "envoy": {"concurrency": 1, "admin": {"port": 0}, "endpoints": "xds"},
    # The hold is longer than a test: failures that are asked for take nobody out.
    "readiness": {"watch": True, "scrape": "200ms", "stale": "2s", "hold": "60s"},
    "on_upstream_failure": {"before_first_delta": {"max_attempts": 3}},
    "retry_budget": {"min_concurrency": 100},
}
AWQ, FP8 = {"root": "org/sim-awq"}, {"root": "org/sim-fp8"}
"""Two quantisations of one model, as vLLM tells them apart: by where it was told to find its weights."""


async def read_replicas(gateway: Gateway) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in await fetch_replicas(gateway.stack.operations_url)}


async def wait_known(gateway: Gateway, **models: str) -> None:
    """Until every replica serves, and these have told what they serve."""
    async with asyncio.timeout(WAIT_S):
        while True:
            replicas = await read_replicas(gateway)
            told = {name: replicas[name]["fingerprint"].get("model") for name in models}
            if told == models and all(replica["ready"] for replica in replicas.values()):
                return
            await asyncio.sleep(0.05)


async def read_mix(gateway: Gateway) -> list[str]:
    async with gateway.http.get(f"{gateway.stack.operations_url}/v1/pools") as answer:
        return (await answer.json())["pools"][0]["mix"]  # type: ignore[no-any-return]


def list_tried(gateway: Gateway, reply: Reply) -> list[str]:
    """The replicas that a request reached, in order."""
    found = [
        (record.started_at, name)
        for name, engine in gateway.engines.items()
        for record in engine.find_requests(reply.request_id)
    ]
    return [name for _, name in sorted(found)]


async def read_replica_weights(gateway: Gateway) -> dict[str, int]:
    return {name: one["weight"] for name, one in (await read_replicas(gateway)).items()}


async def ask_until_first_at(gateway: Gateway, names: str, fault: str) -> list[Reply]:
    """Ask, with a fault, until each of these replicas was the first to be tried once; all the replies."""
    replies: list[Reply] = []
    seen: set[str] = set()
    async with asyncio.timeout(WAIT_S):
        while not seen >= set(names):
            replies.append(await ask(gateway, fault=fault))
            seen.add(list_tried(gateway, replies[-1])[0])
    return replies


async def test_replays_stay_among_replicas_of_one_fingerprint_and_end_in_an_honest_refusal(
    tmp_path: Path,
) -> None:
    unequal = {"a": AWQ, "b": AWQ, "c": FP8}
    async with run_gateway(tmp_path, "abc", unequal=unequal, **SECTIONS) as gateway:
        await wait_known(gateway, a="sim-awq", b="sim-awq", c="sim-fp8")
        assert await read_mix(gateway) == ["model: sim-awq on a, b; sim-fp8 on c"]
        for reply in await ask_until_first_at(gateway, "abc", fault="#1:die_after_role"):
            tried = list_tried(gateway, reply)
            if tried[0] == "c":
                assert tried == ["c"], "the only one of its kind has no equal"
                assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unavailable")
                assert reply.headers["retry-after"].isdigit()
            else:
                assert sorted(tried) == ["a", "b"]
                assert reply.status == 200


async def test_a_third_attempt_finds_no_equal_left_and_is_refused(tmp_path: Path) -> None:
    unequal = {"a": AWQ, "b": AWQ, "c": FP8}
    async with run_gateway(tmp_path, "abc", unequal=unequal, **SECTIONS) as gateway:
        await wait_known(gateway, a="sim-awq", b="sim-awq", c="sim-fp8")
        for reply in await ask_until_first_at(gateway, "ab", fault="die_after_role"):
            tried = list_tried(gateway, reply)
            assert sorted(tried) in (["a", "b"], ["c"])
            assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unavailable")


async def test_a_replica_that_comes_back_with_another_model_is_shown_and_is_nobody_s_equal(
    tmp_path: Path,
) -> None:
    async with run_gateway(tmp_path, "ab", unequal={"a": AWQ, "b": AWQ}, **SECTIONS) as gateway:
        await wait_known(gateway, a="sim-awq", b="sim-awq")
        assert await read_mix(gateway) == []
        replies = await ask_until_first_at(gateway, "a", fault="#1:die_after_role")
        assert sorted(list_tried(gateway, replies[-1])) == ["a", "b"]
        # Two processes whose start times are closer than exporters' jitter count as one.
        await asyncio.sleep(START_JITTER_S + 0.2)
        await gateway.engines["b"].stop()
        options = SimOptions(
            name="b", models=(MODEL,), port=gateway.engines["b"].port, tokens=6, first_generation=1000, **FP8
        )
        async with SimEngine(options) as gateway.engines["b"]:
            await wait_known(gateway, a="sim-awq", b="sim-fp8")
            assert await read_mix(gateway) == ["model: sim-awq on a; sim-fp8 on b"]
            for reply in await ask_until_first_at(gateway, "ab", fault="#1:die_after_role"):
                assert len(list_tried(gateway, reply)) == 1
                assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unavailable")


async def test_an_operation_tells_what_was_served_where_only_the_engine_s_pages_do(tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    root = f"/hub/models--org--sim/snapshots/{revision}"
    async with run_gateway(tmp_path, "a", unequal={"a": {"root": root}}, **SECTIONS) as gateway:
        await wait_known(gateway, a="sim")
        reply = await ask(gateway, "/v1/messages")
        operation = await gateway.wait_operation(reply.request_id)
        assert (operation["state"], operation["model_revision"]) == ("completed", revision)


async def wait_at_rest(gateway: Gateway) -> None:
    """Until no page tells of load any more: who knows a prompt is not asked when it is much busier."""
    async with asyncio.timeout(WAIT_S):
        while any(one["running"] or one["waiting"] for one in (await read_replicas(gateway)).values()):
            await asyncio.sleep(0.05)


async def test_a_replay_prefers_the_replica_that_has_computed_its_prompt(tmp_path: Path) -> None:
    """Four replicas, and each conversation has one that knows it: chance would find it once in three."""
    names = "abcd"
    async with run_gateway(tmp_path, names, **SECTIONS) as gateway, asyncio.timeout(90):
        await wait_known(gateway, **dict.fromkeys(names, MODEL))
        found = number = 0
        while found < 5:  # until Envoy has sent so many elsewhere first, which it does by chance
            number += 1
            messages = [{"role": "system", "content": f"Conversation {number}. " * 200}]
            first = await ask(gateway, body=build_body(messages=messages))
            holder = first.headers["x-sim-replica"]
            messages.append({"role": "user", "content": "and more"})
            # Whole answers, so that nobody comes last for the failure of an earlier round.
            await asyncio.gather(*(ask(gateway) for _ in range(24)))
            await wait_at_rest(gateway)
            second = await ask(gateway, body=build_body(messages=messages), fault="#1:die_after_role")
            tried = list_tried(gateway, second)
            assert (second.status, len(tried)) == (200, 2)
            if tried[0] != holder:
                assert tried[1] == holder
                found += 1


async def test_a_slow_replica_gets_less_of_the_work_and_keeps_some(tmp_path: Path) -> None:
    unequal = {"b": {"prefill_s": 1.0}}
    async with run_gateway(tmp_path, "ab", unequal=unequal, **SECTIONS) as gateway:
        await wait_known(gateway, a=MODEL, b=MODEL)
        await asyncio.gather(*(ask(gateway) for _ in range(40)))
        await gateway.wait_idle()
        less = 0
        async with asyncio.timeout(WAIT_S):
            while less < 10:  # looks in a row, with nothing in hand: it is the latency and no load
                weights = await read_replica_weights(gateway)
                less = less + 1 if 1 <= weights["b"] <= 0.7 * weights["a"] else 0
                await asyncio.sleep(0.2)
        assert (await read_replicas(gateway))["b"]["ready"]


async def test_a_refused_connection_tells_where_it_was_tried_so_that_its_replay_may_go_elsewhere(
    tmp_path: Path,
) -> None:
    """Envoy knows the list alone, so it goes on trying a replica that is not there."""
    async with run_gateway(tmp_path, "abc", readiness={"watch": False}) as gateway:
        await gateway.engines["b"].stop()
        tried: list[str] = []
        async with asyncio.timeout(WAIT_S):
            while "b" not in tried:
                reply = await ask(gateway)
                operation = await gateway.wait_operation(reply.request_id)
                tried = [attempt["replica"] for attempt in operation["attempts"]]
                assert (reply.status, len(tried)) == (200, 1 + ("b" in tried))
        assert tried[0] == "b"
