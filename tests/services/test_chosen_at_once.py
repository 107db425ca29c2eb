"""Attempts that are chosen for before any of them has gone are spread all the same."""

import asyncio
import math
from collections import Counter
from typing import Any

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.fleet_events import DrainRequested
from envoy_ext.domain.ids import ReplicaId
from tests.support.sidecar import Sent, Sidecar

REQUESTS = 12


class Held(MemoryJournal):
    """Takes everything, and answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()

    async def append(self, *args: Any, **more: Any) -> None:
        await self.let.wait()
        await super().append(*args, **more)


async def bring_to_the_gate(sidecar: Sidecar) -> list[Sent]:
    """All attempts of as many requests, in one turn of the loop."""
    clients = [Sent() for _ in range(REQUESTS)]
    for number, client in enumerate(clients):
        sidecar.arrivals.arrive(sidecar.build_arrival(request_id=f"req-{number}"), client)
    await asyncio.sleep(0)
    hops = [Sent() for _ in clients]
    for client, hop in zip(clients, hops, strict=True):
        (forward,) = client.replies
        assert isinstance(forward, step.ForwardRequest)
        joined = sidecar.exchanges.join(forward.exchange_id, hop)
        assert joined is not None
        sidecar.exchanges.arrive_attempt(*joined)
    return hops


@pytest.mark.parametrize("weighed", [False, True])
async def test_they_are_spread_before_one_of_them_has_gone(weighed: bool) -> None:
    journal = Held()
    sidecar = Sidecar(journal=journal, replicas=("a", "b", "c"))
    sidecar.fleet.receive(ReplicaId("b"), DrainRequested(math.inf))
    sidecar.fleet.tick()
    hops = await bring_to_the_gate(sidecar)
    assert not any(hop.replies for hop in hops)
    if weighed:
        sidecar.fleet.streams.note_weighed()
        assert dict(sidecar.fleet.placed) == {"a": REQUESTS // 2, "c": REQUESTS // 2}
    journal.let.set()
    await sidecar.settle()
    starts = [hop.replies[0] for hop in hops]
    targets = [one.target.replica for one in starts if isinstance(one, step.StartAttempt) and one.target]
    assert Counter(targets) == {"a": REQUESTS // 2, "c": REQUESTS // 2}
    assert dict(sidecar.fleet.placed) == {"a": REQUESTS // 2, "c": REQUESTS // 2}
    assert not sidecar.fleet.streams._chosen
