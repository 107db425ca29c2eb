"""`on_upstream_failure` and the retry budget, as a client and the replicas feel them."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envoy_ext.operations_client import fetch_operations
from tests.with_envoy.asking import Reply, ask, build_body
from tests.with_envoy.gateway import Gateway, run_gateway


def build_policy(**before_first_delta: Any) -> dict[str, Any]:
    return {"before_first_delta": before_first_delta}


async def assert_refused(gateway: Gateway, reply: Reply, code: str, attempts: list[str]) -> None:
    """An error of ours in place of an answer; the replicas were asked this often and no more."""
    assert (reply.status, reply.json["error"]["code"]) == (503, code)
    error = reply.json["error"]
    operation = await gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == attempts
    assert (operation["state"], operation["ending"]) == ("failed", "upstream_broke")
    assert operation["error"]["code"] == code
    assert operation["first_delta_sent"] is False
    assert (error["partial_output"], error["delivered_output_tokens"], error["retryable"]) == (
        False,
        0,
        False,
    )
    assert error["operation_id"] == reply.headers["x-operation-id"] == operation["operation_id"]
    assert reply.headers["x-attempt-count"] == str(len(attempts))
    assert len(gateway.find_requests(reply.request_id)) == len(attempts)


async def test_a_replay_that_is_too_dear_is_refused_at_once(tmp_path: Path) -> None:
    policy = build_policy(max_replay_prompt_tokens=100)
    async with run_gateway(tmp_path, on_upstream_failure=policy) as gateway:
        body = build_body(messages=[{"role": "user", "content": "word " * 1000}])
        dear = await ask(gateway, body=body, fault="#1:die_before_headers:rst")
        cheap = await ask(gateway, fault="#1:die_before_headers:rst")

        await assert_refused(gateway, dear, "replay_not_allowed", ["replica_died"])
        assert dear.headers["x-should-retry"] == "false"
        assert "retry-after" not in dear.headers
        assert dear.json["error"]["reason"] == "replica_died"
        refused = gateway.read_metric(
            "envoy_ext_replays_refused_total", pool="chat", reason="replay_not_allowed"
        )
        assert refused == 1
        assert cheap.dones == 1


async def test_a_replay_that_would_start_too_late_is_refused(tmp_path: Path) -> None:
    policy = build_policy(max_replay_delay="3s")  # on a busy machine a replay may take a second
    async with run_gateway(tmp_path, on_upstream_failure=policy) as gateway:
        late = await ask(gateway, fault="#1:pings=80@0.05+die_after_role:rst")
        early = await ask(gateway, fault="#1:die_after_role:rst")

        await assert_refused(gateway, late, "replay_not_allowed", ["replica_died"])
        assert late.headers["x-should-retry"] == "false"
        assert early.dones == 1


async def test_without_a_budget_nothing_is_replayed_and_the_client_may_come_back(tmp_path: Path) -> None:
    budget = {"percent": 0, "min_concurrency": 0}
    async with run_gateway(tmp_path, retry_budget=budget) as gateway:
        reset = await ask(gateway, fault="#1:die_before_headers:rst")
        refused = await ask(gateway, fault="#1:error_first=overloaded")

        await assert_refused(gateway, reset, "retry_budget_exhausted", ["replica_died"])
        await assert_refused(gateway, refused, "retry_budget_exhausted", ["overloaded"])
        for reply in (reset, refused):
            assert reply.headers["retry-after"] in ("1", "2", "3")
            assert "x-should-retry" not in reply.headers
        counted = gateway.read_metric(
            "envoy_ext_replays_refused_total", pool="chat", reason="retry_budget_exhausted"
        )
        assert counted == 2


async def test_replays_at_once_are_bound_by_the_budget(tmp_path: Path) -> None:
    """Whatever fails, the replicas are not asked much more often than the clients ask."""
    budget = {"percent": 10, "min_concurrency": 1}
    # Each replay lasts for as long as a busy machine takes to begin them all.
    engine = {"prefill_s": 0.6}
    async with run_gateway(tmp_path, "abc", engine=engine, retry_budget=budget) as gateway:
        replies = await asyncio.gather(*(ask(gateway, fault="#1:die_after_headers:rst") for _ in range(20)))

        asked = sum(len(gateway.find_requests(reply.request_id)) for reply in replies)
        codes = Counter(reply.json["error"]["code"] for reply in replies if reply.status != 200)
        whole = sum(reply.status == 200 and reply.dones == 1 for reply in replies)
        assert set(codes) == {"retry_budget_exhausted"}
        assert whole == 20 - codes.total() >= 1
        assert asked == 20 + whole < 30


async def test_a_policy_that_says_fail_replays_nothing(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, on_upstream_failure=build_policy(action="fail")) as gateway:
        reset = await ask(gateway, fault="#1:die_before_headers:rst")
        held = await ask(gateway, fault="#1:die_after_role:rst")
        error = await ask(gateway, fault="#1:error_first=engine")

        await assert_refused(gateway, reset, "upstream_unavailable", ["replica_died"])
        await assert_refused(gateway, held, "upstream_unavailable", ["replica_died"])
        await assert_refused(gateway, error, "upstream_unavailable", ["engine_error"])


async def test_a_single_replica_is_never_asked_twice(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "a") as gateway:
        for fault, outcome in [
            ("die_before_headers:rst", "replica_died"),
            ("die_after_role:fin", "replica_died"),
            ("error_first=overloaded", "overloaded"),
            ("status=503", "overloaded"),
        ]:
            reply = await ask(gateway, fault=f"#1:{fault}")
            await assert_refused(gateway, reply, "upstream_unavailable", [outcome])
            assert reply.headers["retry-after"] in ("1", "2", "3")


async def test_three_attempts_go_to_three_replicas(tmp_path: Path) -> None:
    policy = build_policy(max_attempts=3)
    async with run_gateway(tmp_path, "abc", on_upstream_failure=policy) as gateway:
        third = await ask(gateway, fault="#1:die_before_headers:rst,#2:error_first=engine")
        assert (third.status, third.errors, third.dones) == (200, [], 1)
        operation = await gateway.wait_operation(third.request_id)
        outcomes = [attempt["outcome"] for attempt in operation["attempts"]]
        assert outcomes == ["replica_died", "engine_error", "completed"]
        assert len({attempt["replica"] for attempt in operation["attempts"]}) == 3

        none = await ask(gateway, fault="status=503")
        await assert_refused(gateway, none, "upstream_unavailable", ["overloaded"] * 3)
        operation = await gateway.wait_operation(none.request_id)
        assert len({attempt["replica"] for attempt in operation["attempts"]}) == 3


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_attempts_are_bound_across_envoy_and_the_sidecar(tmp_path: Path, attempts: int) -> None:
    """Replicas that always say 503 are asked so often altogether, whatever count the client claims."""
    policy = build_policy(max_attempts=attempts)
    async with run_gateway(tmp_path, "abcd", on_upstream_failure=policy) as gateway:
        for claimed in (
            {},
            {"x-envoy-attempt-count": "9"},
            {"x-envoy-max-retries": "9", "x-envoy-retry-on": "5xx"},
        ):
            reply = await ask(gateway, fault="status=503", headers=claimed)
            await assert_refused(gateway, reply, "upstream_unavailable", ["overloaded"] * attempts)
            counts = [record.attempt_count for record in gateway.find_requests(reply.request_id)]
            assert counts == [str(number) for number in range(1, attempts + 1)]


async def test_a_replay_never_goes_back_to_the_replica_that_failed(tmp_path: Path) -> None:
    budget = {"percent": 100, "min_concurrency": 1000}
    engine = {"prefill_s": 0, "token_s": 0, "tokens": 2}
    # Unwatched: a watched one would get no more first attempts after a few failures.
    unwatched = {"watch": False}
    async with run_gateway(
        tmp_path, "ab", engine=engine, retry_budget=budget, readiness=unwatched
    ) as gateway:
        replies = []
        for _ in range(8):
            faults = ["a:die_before_headers:rst", "a:die_after_role:rst"]
            replies += await asyncio.gather(*(ask(gateway, fault=faults[n % 2]) for n in range(25)))

        assert len(replies) == 200
        assert Counter((reply.status, reply.dones, len(reply.errors)) for reply in replies) == {
            (200, 1, 0): 200
        }
        await gateway.wait_idle()
        operations = await fetch_operations(gateway.stack.operations_url, 1000)
        assert {one["request_id"] for one in operations} == {reply.request_id for reply in replies}
        seen = Counter(tuple(attempt["replica"] for attempt in one["attempts"]) for one in operations)
        assert set(seen) == {("a", "b"), ("b",)}
        assert seen["a", "b"] >= 50
