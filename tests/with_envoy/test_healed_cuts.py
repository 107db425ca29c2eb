"""A network that is cut during a prefill, with its engine alive, and heals in every phase of what follows.

Each scene has a link of its own, and all play at once: the waits are the test. The engines' own logs say
what was sent and when; they and the test read one monotonic clock.
"""

import asyncio
import json
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from envoy_ext.domain.exchange import Exchange
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.places import CONNECT_S
from envoy_ext.domain.silent_loss import (
    GIVEN_UP_S,
    KEEPALIVE_EVERY_S,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_PROBES,
)
from envoy_ext.drills.cut_network import Link, find_obstacle, make_links
from tests.support.logged_engine import LoggedEngine
from tests.with_envoy.asking import mint_request_id, read_part
from tests.with_envoy.gateway import Gateway, run_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARGIN_S = 0.5
TTL_S = {
    "alone": 2.0,
    "short": 2.0,  # a worker whose lease ends before the cut is missed
    "worker": 9.0,  # and one that may believe in its lease for longer than that takes
    "restarted": 9.0,  # alone, and its pages are read
}
LEASED = ("short", "worker")
NEAR = {"alone": "127.0.0.1", "short": "127.0.0.2", "worker": "127.0.0.3", "restarted": "127.0.0.1"}
"""Where the near engine is reached: it has a worker for each address that has leases."""
LAST_PROBE_S = KEEPALIVE_IDLE_S + KEEPALIVE_EVERY_S * (KEEPALIVE_PROBES - 1)


@dataclass
class Scene:
    """One request, its pool of a far and a near replica, and the far one's link."""

    running: Gateway | None
    kind: str
    name: str
    link: Link
    far: LoggedEngine
    near: LoggedEngine
    near_address: str
    request_id: str = field(default_factory=mint_request_id)
    parts: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    status: int = 0
    silent_since: float = 0.0
    """When the far replica was heard last, or before."""

    @property
    def gateway(self) -> Gateway:
        assert self.running is not None
        return self.running

    async def begin(self, **far: Any) -> asyncio.Task[None]:
        """Send the request, with its first attempt at the far replica."""
        with self.turned_to_the_far():
            task = asyncio.get_running_loop().create_task(self._ask(far))
            self.silent_since = (await self.far.wait(self.request_id, "start"))["time"]
        return task

    def turned_to_the_far(self) -> "_Drained":
        return _Drained(self.gateway, ReplicaId(f"near-{self.name}"))

    async def _ask(self, far: dict[str, Any]) -> None:
        near = {"headers": "early", "prefill_s": 0.5, "tokens": 8, "token_s": 0.1}
        plan = {"headers": "early", "prefill_s": None, "tokens": 8, "token_s": 0.1} | far
        headers = {"x-request-id": self.request_id, "x-far": json.dumps(plan), "x-near": json.dumps(near)}
        body = {"model": self.name, "stream": True, "messages": [{"role": "user", "content": "x"}]}
        url = self.gateway.url + "/v1/chat/completions"
        async with self.gateway.http.post(url, json=body, headers=headers) as answer:
            self.status = answer.status
            async for line in answer.content:
                data = line.removeprefix(b"data:").strip().decode()
                if line.startswith(b"data:") and data != "[DONE]" and read_part(json.loads(data)):
                    self.parts.append(read_part(json.loads(data)))
                elif data:
                    self.rest.append(data)

    async def wait_parts(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.parts) < count:
                await asyncio.sleep(0.01)

    async def wait_fence(self) -> Exchange:
        """Until a replay waits for the far attempt's end."""
        exchanges = self.gateway.stack.app.exchanges
        async with asyncio.timeout(30):
            while True:
                for live in exchanges._live.values():
                    exchange = live.exchange
                    if exchange.waits_for_fence and exchange.identity.request_id == self.request_id:
                        return exchange
                await asyncio.sleep(0.01)

    async def wait_page(self, at: float) -> None:
        """Until a page of the far replica was read at this time or later."""
        async with asyncio.timeout(30):
            while True:
                pool = self.gateway.stack.app.fleet.view.find(PoolName(self.name))
                replicas = () if pool is None else pool.replicas
                samples = [one.status.sample for one in replicas if one.id == f"far-{self.name}"]
                if samples and samples[0] is not None and samples[0].at >= at:
                    return
                await asyncio.sleep(0.05)

    async def heal_and_go(self) -> None:
        """Whole again; and the far engine has the rest of its answer to send."""
        await self.link.heal()
        await self.far.go(self.link.address, self.request_id)


class _Drained:
    """A replica that is out for as long as this lasts."""

    def __init__(self, gateway: Gateway, replica: ReplicaId) -> None:
        self._fleet, self._replica = gateway.stack.app.fleet, replica

    def __enter__(self) -> None:
        self._fleet.drain(self._replica, 600)

    def __exit__(self, *_: object) -> None:
        self._fleet.undrain(self._replica)


# --- the phases in which it heals -------------------------------------------------------------------


async def before_it_is_missed(scene: Scene) -> None:
    task = await scene.begin()
    await scene.link.cut()
    await asyncio.sleep(1.0)  # less than any lease lasts
    await scene.heal_and_go()
    await task
    await assert_answered_by_the_far(scene)


async def when_nobody_asks_any_more_and_nobody_has_missed_it(scene: Scene) -> None:
    """Between the last probe of a silent connection and the kernel's giving it up: its port accepts."""
    task = await scene.begin()
    await scene.link.cut()
    await asyncio.sleep(max(0.0, scene.silent_since + LAST_PROBE_S + 0.3 - time.monotonic()))
    await scene.heal_and_go()
    await task
    if scene.parts[0].startswith("far"):  # the machine was slow, and a probe came through
        await assert_answered_by_the_far(scene)
    else:
        await assert_replayed_behind_the_fence(scene)


async def while_the_fence_is_waited_for(scene: Scene) -> None:
    task = await scene.begin(headers="late")
    await scene.link.cut()
    await scene.wait_fence()
    await scene.heal_and_go()
    await task
    await assert_replayed_behind_the_fence(scene)


async def after_the_replay_has_started(scene: Scene) -> None:
    task = await scene.begin(headers="late")
    await scene.link.cut()
    await scene.near.wait(scene.request_id, "start")
    await scene.heal_and_go()
    await task
    await assert_replayed_behind_the_fence(scene)


async def after_the_replays_first_delta(scene: Scene) -> None:
    task = await scene.begin()
    await scene.link.cut()
    await scene.wait_parts(1)
    await scene.heal_and_go()
    await task
    await assert_replayed_behind_the_fence(scene)


async def after_the_end(scene: Scene) -> None:
    task = await scene.begin()
    await scene.link.cut()
    await task
    await scene.heal_and_go()
    await assert_replayed_behind_the_fence(scene)


async def after_its_stream_was_ended_for_it(scene: Scene) -> None:
    """A delta had gone out: there is no second attempt, whenever it heals."""
    task = await scene.begin(prefill_s=0.0, tokens=300)
    await scene.wait_parts(2)
    await scene.link.cut()
    await task
    await scene.link.heal()
    await scene.far.wait(scene.request_id, "end")
    (last,) = [json.loads(one)["error"] for one in scene.rest if "error" in one]
    assert (last["code"], last["reason"]) == ("upstream_decode_interrupted", "network_partition")
    assert "[DONE]" not in scene.rest
    assert {part[:3] for part in scene.parts} == {"far"}
    assert await read_history(scene) == [("far", "network_partition")]
    assert_no_chunk_behind_its_lease(scene)


async def after_a_request_was_sent_into_it(scene: Scene) -> None:
    """Nothing of it was confirmed: the silence of keepalive does not begin."""
    warm = replace(scene, request_id=mint_request_id(), parts=[], rest=[])
    first = await warm.begin(prefill_s=0.0, tokens=1)
    await first
    with scene.turned_to_the_far():
        await scene.link.cut()
        scene.silent_since = time.monotonic()
        task = asyncio.get_running_loop().create_task(scene._ask({}))
        operation = await wait_attempt(scene)
    assert operation["attempts"][0]["replica"] == f"far-{scene.name}"
    await task
    await scene.link.heal()
    assert scene.far.read(scene.request_id, "start") == []
    await assert_replayed_behind_the_fence(scene)


async def after_its_lease_has_ended_by_itself(scene: Scene) -> None:
    """The worker says so, as soon as it can be heard."""
    task = await scene.begin(headers="late")
    await scene.link.cut()
    await scene.far.wait(scene.request_id, "end")
    await scene.heal_and_go()
    await task
    assert_one_whole_answer(scene, "near")
    assert await read_history(scene) == [("far", "overloaded"), ("near", "completed")]
    assert_no_chunk_behind_its_lease(scene)


async def with_another_process_at_its_end(scene: Scene) -> None:
    """The one that computed has died behind the cut. The port accepts; its page tells by its start time."""
    task = await scene.begin()
    await scene.wait_page(scene.silent_since + CONNECT_S)
    await scene.link.cut()
    await scene.far.kill()
    await scene.far.start()
    exchange = await scene.wait_fence()
    await scene.link.heal()
    await task
    assert_one_whole_answer(scene, "near")
    assert await read_history(scene) == [("far", "network_partition"), ("near", "completed")]
    lease = exchange._attempts.attempts[0].lease
    assert lease is not None
    assert lease.proof is FenceProof.DEATH


Phase = Callable[[Scene], Awaitable[None]]
EVERYWHERE: tuple[Phase, ...] = (
    before_it_is_missed,
    when_nobody_asks_any_more_and_nobody_has_missed_it,
    while_the_fence_is_waited_for,
    after_the_replay_has_started,
    after_the_replays_first_delta,
    after_the_end,
    after_its_stream_was_ended_for_it,
)
SCENES: tuple[tuple[str, Phase], ...] = (
    *(("alone", phase) for phase in EVERYWHERE),
    ("alone", after_a_request_was_sent_into_it),
    *(("worker", phase) for phase in EVERYWHERE),
    ("short", after_its_lease_has_ended_by_itself),
    ("restarted", with_another_process_at_its_end),
)


# --- what must be so --------------------------------------------------------------------------------


def assert_one_whole_answer(scene: Scene, role: str) -> None:
    assert scene.status == 200
    assert scene.parts == [f"{role}{number} " for number in range(8)]
    assert scene.rest[-1] == "[DONE]"
    assert not any("error" in one for one in scene.rest)


async def assert_answered_by_the_far(scene: Scene) -> None:
    assert_one_whole_answer(scene, "far")
    assert await read_history(scene) == [("far", "completed")]
    assert_no_chunk_behind_its_lease(scene)


async def assert_replayed_behind_the_fence(scene: Scene) -> None:
    assert_one_whole_answer(scene, "near")
    assert await read_history(scene) == [("far", "network_partition"), ("near", "completed")]
    (replayed,) = scene.near.read(scene.request_id, "start")
    if scene.kind == "alone":
        # Nobody says when the far one has stopped: a lease's time, from when its connection was given up.
        assert replayed["time"] >= scene.silent_since + GIVEN_UP_S + TTL_S["alone"] + MARGIN_S
        return
    # Its worker's word, or the end of the last lease that its worker can believe in.
    ended = await scene.far.wait(scene.request_id, "end")
    assert replayed["time"] > ended["time"] or replayed["time"] > ended["until"]
    assert scene.far.read(scene.request_id, "chunk") == []


def assert_no_chunk_behind_its_lease(scene: Scene) -> None:
    if scene.kind not in LEASED:
        return
    chunks = scene.far.read(scene.request_id, "chunk")
    assert all(one["until"] is not None and one["time"] <= one["until"] for one in chunks)


async def read_history(scene: Scene) -> list[tuple[str, str]]:
    operation = await scene.gateway.wait_operation(scene.request_id)
    suffix = f"-{scene.name}"
    return [(one["replica"].removesuffix(suffix), one["outcome"]) for one in operation["attempts"]]


async def wait_attempt(scene: Scene) -> dict[str, Any]:
    """The operation, once its first attempt was let go."""
    async with asyncio.timeout(30):
        while True:
            operation = await scene.gateway.find_operation(scene.request_id)
            if operation is not None and operation["attempts"]:
                return operation
            await asyncio.sleep(0.01)


# --- the stage --------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[tuple[Scene, Phase]]]:
    obstacle = await find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    logs = tmp_path_factory.mktemp("logs")
    async with AsyncExitStack() as opened:
        links = await opened.enter_async_context(make_links(len(SCENES)))
        # One far engine and one near, each under many addresses, and one more that dies.
        far, mortal = (
            LoggedEngine("far", logs / name, "0.0.0.0", links[0].within) for name in ("far", "mortal")
        )
        near = LoggedEngine("near", logs / "near", "0.0.0.0")
        for engine in (far, mortal, near):
            opened.push_async_callback(engine.kill)
        await asyncio.gather(*(engine.start() for engine in (far, mortal, near)))
        stage = [
            Scene(None, kind, f"p{number}", link, mortal if kind == "restarted" else far, near, NEAR[kind])
            for number, ((kind, _), link) in enumerate(zip(SCENES, links, strict=True))
        ]
        for ttl_s in sorted(set(TTL_S.values())):
            played = [scene for scene in stage if TTL_S[scene.kind] == ttl_s]
            gateway = await opened.enter_async_context(
                run_gateway(
                    tmp_path_factory.mktemp("gateway"),
                    "",
                    pools=[build_pool(scene) for scene in played],
                    lease={
                        "http": {"address": "0.0.0.0", "port": 0},
                        "ttl": f"{ttl_s:g}s",
                        "renew": "500ms",
                        "margin": f"{MARGIN_S * 1000:g}ms",
                    },
                    retry_budget={"percent": 100, "min_concurrency": len(SCENES)},
                    envoy={"concurrency": 1, "admin": {"port": 0}, "endpoints": "static"},
                )
            )
            leases = gateway.stack.app.lease_ports["http"]
            for scene in played:
                scene.running = gateway
                if scene.kind in LEASED:
                    link = scene.link
                    await far.renew_at(link.address, f"http://{link.near_address}:{leases}")
                    await near.renew_at(scene.near_address, f"http://127.0.0.1:{leases}")
        yield [(scene, phase) for scene, (_, phase) in zip(stage, SCENES, strict=True)]


def build_pool(scene: Scene) -> dict[str, Any]:
    name = scene.name
    replicas = [
        {"id": f"far-{name}", "url": f"http://{scene.link.address}:{scene.far.port}"},
        {"id": f"near-{name}", "url": f"http://{scene.near_address}:{scene.near.port}"},
    ]
    watched = scene.kind == "restarted"
    readiness = {"warmup": False} if watched else {"watch": False}
    return {
        "name": name,
        "models": [name],
        "engine": "generic" if watched else "vllm",
        "replicas": replicas,
        "readiness": readiness,
    }


async def test_whenever_a_cut_heals_one_attempt_publishes(scenes: list[tuple[Scene, Phase]]) -> None:
    results = await asyncio.gather(*(phase(scene) for scene, phase in scenes), return_exceptions=True)
    failed = []
    for (scene, phase), result in zip(scenes, results, strict=True):
        if result is not None:
            failed.append((scene.kind, phase.__name__))
            traceback.print_exception(result)
    assert failed == []
