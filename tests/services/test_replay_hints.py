"""From a request to the hints that its replay could use: hashes of its prompt, where it was computed."""

import json
from dataclasses import replace
from typing import Any

import pytest

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.domain import step
from envoy_ext.domain.api import ApiFamily, parse_request
from envoy_ext.domain.events import AttemptAnswered, AttemptArrived, AttemptBody, AttemptUnanswered, LogCause
from envoy_ext.domain.exchange_shared import ExchangePolicy, Tried
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.services.exchange_replicas import ExchangeReplicas, hash_prompt
from tests.support.sidecar import DELTA, MODEL, POOL, SSE, Sent, Sidecar

LONG = "Once upon a time there was a very long system prompt. " * 100


def body(text: str, **more: object) -> bytes:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "hello"}]
    return json.dumps({"model": MODEL, "stream": True, "messages": messages, **more}).encode()


async def begin(sidecar: Sidecar, content: bytes, number: int) -> tuple[Any, Any, Sent]:
    """A request whose first attempt has been let go."""
    client, hop = Sent(), Sent()
    arrival = replace(sidecar.build_arrival(request_id=f"req-{number}"), body=content)
    sidecar.arrivals.arrive(arrival, client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    joined = sidecar.exchanges.join(forward.exchange_id, hop)
    assert joined is not None
    live, attempt_id = joined
    sidecar.exchanges.arrive_attempt(live, attempt_id)
    await sidecar.settle()
    return live, attempt_id, hop


async def compute(sidecar: Sidecar, content: bytes, replica: str, number: int = 1) -> None:
    """Let a replica compute a prompt up to its first delta."""
    live, attempt_id, _ = await begin(sidecar, content, number)
    live.receive(AttemptAnswered(attempt_id, 200, SSE, "", ReplicaId(replica), end=False))
    live.receive(AttemptBody(attempt_id, DELTA, end=False))
    await sidecar.settle()


async def replay(sidecar: Sidecar, content: bytes, lost: str, number: int = 2) -> str:
    """Where the replay of a request goes whose first attempt was lost at a replica."""
    live, attempt_id, _ = await begin(sidecar, content, number)
    live.receive(AttemptUnanswered(attempt_id, LogCause.UPSTREAM_RESET, ReplicaId(lost), ""))
    hop = Sent()
    joined = sidecar.exchanges.join(live.exchange.identity.exchange_id, hop)
    assert joined is not None
    live.receive(AttemptArrived(joined[1]))
    await sidecar.settle()
    (start,) = hop.replies
    assert isinstance(start, step.StartAttempt)
    assert start.target is not None
    return str(start.target.replica)


async def test_a_replay_goes_where_the_same_beginning_was_computed() -> None:
    sidecar = Sidecar(replicas=("a", "b", "c", "d"))
    await compute(sidecar, body(LONG), "d")
    assert await replay(sidecar, body(LONG, temperature=0.3), "a") == "d"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(body("Another beginning. " * 300), id="another beginning"),
        pytest.param(body("short"), id="nothing worth to look for"),
        pytest.param(body(LONG, tools=[{"name": "x" * 5000}]), id="other tools before it"),
    ],
)
async def test_another_prompt_is_nobody_s(other: bytes) -> None:
    sidecar = Sidecar(replicas=("a", "b", "c", "d"))
    await compute(sidecar, body(LONG), "d")
    assert await replay(sidecar, other, "a") != "d"


@pytest.mark.parametrize(
    ("failover", "first"),
    [
        (FailoverPolicy(), "d"),
        (FailoverPolicy(replay=False), "a"),
        (FailoverPolicy(max_replay_prompt_tokens=10), "a"),
    ],
)
async def test_what_may_not_be_replayed_is_not_hashed(failover: FailoverPolicy, first: str) -> None:
    sidecar = Sidecar(replicas=("a", "b", "c", "d"), policy=ExchangePolicy(failover=failover))
    await compute(sidecar, body(LONG), "d")
    prefixes = hash_prompt(sidecar.fleet, POOL, parse_request(ApiFamily.CHAT, body(LONG)))
    assert prefixes
    replicas = ExchangeReplicas(sidecar.fleet, POOL, SystemClock(), prefixes)
    targets = replicas.find_targets(Tried(None, 0.0, frozenset()))
    assert targets[0].replica == first


def test_two_processes_hash_one_prompt_to_different_values() -> None:
    read = parse_request(ApiFamily.CHAT, body(LONG))
    one, other = (hash_prompt(Sidecar().fleet, POOL, read) for _ in range(2))
    assert len(one) == len(other) == len(LONG) // 1024
    assert not set(one) & set(other)


def test_where_there_is_no_choice_nothing_is_hashed() -> None:
    read = parse_request(ApiFamily.CHAT, body(LONG))
    assert hash_prompt(Sidecar(replicas=("a",)).fleet, POOL, read) == ()
