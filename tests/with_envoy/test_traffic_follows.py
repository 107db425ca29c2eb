"""Traffic follows readiness: what replicas tell of themselves decides, within looks, who gets requests.

Four replicas under a steady stream of requests, none of which may fail. Nothing here is timed: a change
is due after so many looks of the sidecar at the replica's page, and from the moment that Envoy has taken
it, every new request must land elsewhere.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from envoy_ext.domain.incarnation import START_JITTER_S
from envoy_ext.operations_client import fetch_replicas, order_drain, order_undrain
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from envoy_ext.xds.kinds import Kind
from tests.with_envoy.asking import Reply, ask
from tests.with_envoy.gateway import MODEL, Gateway, run_gateway

WAIT_S = 40.0
CLIENTS = 6
SCRAPE_S, HOLD_S = 0.2, 0.4
READINESS = {"scrape": "200ms", "stale": "4s", "hold": "400ms"}
MOST_LOOKS = round(HOLD_S / SCRAPE_S) + 1 + 2
"""The look that sees it first, the hold, and two more."""


class Changes(logging.Handler):
    """The sidecar's own record of its changes, each with how often the replica's page was read by then."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        self.seen: list[tuple[str, str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "replica_changed":
            facts = vars(record)
            looks = self._gateway.engines[facts["replica"]].looks
            self.seen.append((facts["replica"], facts["after"], looks))


@dataclass
class Traffic:
    """Clients that never stop asking."""

    gateway: Gateway
    changes: Changes
    replies: list[Reply] = field(default_factory=list)
    opened: int = 0

    async def ask_on_and_on(self) -> None:
        while True:
            number, self.opened = self.opened, self.opened + 1
            self.replies.append(await ask(self.gateway, stream=False, request_id=f"traffic-{number}"))

    async def watch_next(self, count: int) -> Counter[str]:
        """Where the next requests are answered that begin from here on."""
        first = self.opened
        async with asyncio.timeout(WAIT_S):
            while True:
                seen = [one for one in self.replies if int(one.request_id.split("-")[1]) >= first]
                if len(seen) >= count:
                    return Counter(one.headers["x-sim-replica"] for one in seen)
                await asyncio.sleep(0.02)

    async def wait_change(self, replica: str, *states: str) -> int:
        """Until a replica is in one of these states, and Envoy knows; how often it had been looked at."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = [
                    looks for name, after, looks in self.changes.seen if name == replica and after in states
                ]
                if found:
                    self.changes.seen.clear()
                    await asyncio.sleep(0.1)  # a picture of a crowd of changes is taken 50 ms later
                    await self.gateway.stack.app.ads.wait_taken(Kind.EDS)
                    return found[0]
                await asyncio.sleep(0.02)

    async def tell(self, replica: str, *states: str, **figures: float) -> None:
        """Let a replica's page say this; the change that follows is due within a few looks."""
        engine = self.gateway.engines[replica]
        self.changes.seen.clear()
        engine.load.tell(figures)
        before = engine.looks
        looks = await self.wait_change(replica, *states) - before
        assert states == BACK or looks <= MOST_LOOKS


BACK = ("ready", "warming")


@contextlib.asynccontextmanager
async def run_traffic(directory: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Traffic]:
    caplog.set_level(logging.INFO, "envoy_ext")
    engine = {"prefill_s": 0.03, "token_s": 0.005, "tokens": 4}
    async with run_gateway(directory, "abcd", engine=engine, readiness=READINESS) as gateway:
        async with asyncio.timeout(WAIT_S):
            while not all(one["ready"] for one in await fetch_replicas(gateway.stack.operations_url)):
                await asyncio.sleep(0.05)
        changes = Changes(gateway)
        logging.getLogger("envoy_ext").addHandler(changes)
        traffic = Traffic(gateway, changes)
        clients = [asyncio.create_task(traffic.ask_on_and_on()) for _ in range(CLIENTS)]
        try:
            yield traffic
            for client in clients:
                assert not client.done()
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            logging.getLogger("envoy_ext").removeHandler(changes)
        assert {(one.status, one.cut) for one in traffic.replies} == {(200, False)}


async def test_traffic_follows_load_orders_and_a_restart_and_no_request_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_traffic(tmp_path, caplog) as traffic:
        first_life = asyncio.create_task(asyncio.sleep(START_JITTER_S + 0.2))
        url = traffic.gateway.stack.operations_url
        assert set(await traffic.watch_next(40)) == set("abcd")

        await traffic.tell("a", "saturated", kv_cache_usage=0.97)
        assert set(await traffic.watch_next(40)) == set("bcd")
        await traffic.tell("b", "saturated", waiting=20)
        assert set(await traffic.watch_next(40)) == set("cd")
        traffic.changes.seen.clear()
        await order_drain(url, "c", 30, None)
        await traffic.wait_change("c", "draining")
        assert set(await traffic.watch_next(20)) == set("d")

        await traffic.tell("a", *BACK)
        assert set(await traffic.watch_next(40)) == set("ad")
        await first_life
        traffic.changes.seen.clear()
        engine = traffic.gateway.engines["d"]
        await engine.stop()  # its answers in flight are replayed: nothing of them was delivered
        await traffic.wait_change("d", "unready")
        assert set(await traffic.watch_next(20)) == set("a")

        again = SimEngine(SimOptions(name="d", models=(MODEL,), port=engine.port, first_generation=10_000))
        traffic.gateway.engines["d"] = again
        async with again:
            await traffic.wait_change("d", *BACK)
            await traffic.tell("b", *BACK)
            traffic.changes.seen.clear()
            await order_undrain(url, "c", None)
            await traffic.wait_change("c", *BACK)
            answered: Counter[str] = Counter()
            async with asyncio.timeout(WAIT_S):
                while set(answered) != set("abcd"):
                    answered += await traffic.watch_next(20)


async def test_weights_move_with_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with run_traffic(tmp_path, caplog) as traffic:
        traffic.gateway.engines["a"].load.tell({"running": 26})
        weights: dict[str, Any] = {}
        async with asyncio.timeout(WAIT_S):
            while not weights or weights["a"] * 2 > min(weights[name] for name in "bcd"):
                await asyncio.sleep(0.05)
                listed = await fetch_replicas(traffic.gateway.stack.operations_url)
                weights = {one["id"]: one["weight"] for one in listed}
        await traffic.gateway.stack.app.ads.wait_taken(Kind.EDS)
        answered = await traffic.watch_next(120)
        assert 0 < answered["a"] < min(answered[name] for name in "bcd")
