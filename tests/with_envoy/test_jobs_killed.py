"""A sidecar is killed in every phase of a job: each is finished, each result is whole, no two runs overlap.

One generation of each is finished, but of the one whose answer was on its way when the sidecar died: nobody
has that, so it is made again, after the first.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

from envoy_ext.config import load_config
from envoy_ext.domain.ids import OperationId, PoolName
from envoy_ext.domain.job import Job, JobBounds, JobRequest, JobState, NewJob
from envoy_ext.ports import Store
from envoy_ext.sim.state import RequestRecord
from envoy_ext.sim.tool_server import SimTool
from envoy_ext.wiring.journal import open_journal
from tests.with_envoy.apart import Apart, run_apart
from tests.with_envoy.asking import CHAT, build_body, mint_request_id

WAIT_S = 30.0
ENGINE = {"tokens": 6, "token_s": 0.01, "prefill_s": 0.02}
SECTIONS: dict[str, Any] = {
    "engine": ENGINE,
    "pool": {"capacity": {"concurrency": 2}},
    "journal": {"shared": True},
    "jobs": {"concurrency": 2},
    "data_classes": {"public": {"boundaries": ["local"]}},
    "lease": {"ttl": "1s", "renew": "200ms", "margin": "200ms"},
}


class Client:
    """Jobs by the name that each has in its request id."""

    def __init__(self, apart: Apart, store: Store) -> None:
        self.apart = apart
        self.store = store
        self.places: dict[str, str] = {}

    async def submit(self, name: str, data_class: str = "default", **fields: Any) -> None:
        """And read the 202."""
        async with self.post(name, data_class, **fields) as answer:
            assert answer.status == 202, await answer.text()
            self.places[name] = answer.headers["location"]

    def post(self, name: str, data_class: str = "default", **fields: Any) -> Any:
        headers = {"prefer": "respond-async", "x-request-id": name, "idempotency-key": name}
        headers["x-data-class"] = data_class
        body = build_body(stream=False, **fields)
        return self.apart.http.post(self.apart.url + CHAT, json=body, headers=headers)

    async def fetch(self, name: str) -> tuple[int, Any]:
        async with self.apart.http.get(f"{self.apart.url}{self.places[name]}/result") as answer:
            return answer.status, await answer.json()

    async def wait_result(self, name: str) -> None:
        """Until the job has one, which must be whole."""
        async with asyncio.timeout(WAIT_S):
            while (told := await self.fetch(name))[0] in (202, 503):
                await asyncio.sleep(0.05)
        status, body = told
        assert (status, body["choices"][0]["finish_reason"]) == (200, "stop"), (name, told)

    async def wait_code(self, name: str) -> str:
        """Until the job has failed; with this code."""
        async with asyncio.timeout(WAIT_S):
            while (job := await self.read(name)).end is None:
                await asyncio.sleep(0.05)
        status, body = await self.fetch(name)
        assert (job.state, status) == (JobState.FAILED, 403)
        return str(body["error"]["code"])

    async def read(self, name: str) -> Job:
        job = await self.store.read_job(OperationId(self.places[name].rpartition("/")[2]))
        assert job is not None
        return job

    def list_asked(self, name: str) -> list[RequestRecord]:
        """What reached an engine of a job, in order."""
        asked = [one for engine in self.apart.engines for one in engine.find_requests(name)]
        return sorted(asked, key=lambda one: one.started_at)

    async def wait_asked(self, name: str, ended: str | None = None, status: int | None = None) -> None:
        async with asyncio.timeout(WAIT_S):
            while not any(
                one.ended == ended and (status is None or one.status == status)
                for one in self.list_asked(name)
            ):
                await asyncio.sleep(0.01)

    def arm(self, fault: str | None) -> None:
        """What whichever engine is asked next does; None: nothing odd any more."""
        for engine in self.apart.engines:
            engine.faults.clear()
            if fault is not None:
                engine.faults.arm(fault, 1)

    def assert_one_after_the_other(self, name: str, finished: int = 1) -> None:
        asked = self.list_asked(name)
        assert sum(one.ended == "done" for one in asked) == finished, (name, asked)
        for before, after in itertools.pairwise(asked):
            assert before.finished_at is not None
            assert before.finished_at <= after.started_at, (name, asked)


@contextlib.asynccontextmanager
async def open_client(apart: Apart) -> AsyncIterator[Client]:
    store = await open_journal(load_config(apart.config))
    try:
        yield Client(apart, store)
    finally:
        await store.close()


async def test_a_job_outlives_its_sidecar_in_every_phase() -> None:
    async with SimTool() as tool:
        tools = {"listener": {"port": 0}, "routes": [{"name": "mail", "prefix": "/mail", "url": tool.url}]}
        async with run_apart(**SECTIONS, tools=tools) as apart, open_client(apart) as client:
            await kill_with_jobs_at_rest_and_at_engines(client, await apart.envoy.find_listener("tools"))
            names = ["ended", "first_byte", "middle", "queued", "unread"]
            reach_no_local_pool(apart, "public")
            async with apart.sidecar() as (serving, _):
                async with client.post("unread") as again:
                    assert again.status == 202
                    assert client.places["unread"] == again.headers["location"]
                for name in names:
                    await client.wait_result(name)
                    client.assert_one_after_the_other(name)
                    assert (await client.read(name)).state is JobState.SUCCEEDED
                assert await client.wait_code("outside") == "data_class_forbidden"
                assert client.list_asked("outside") == []
                assert len(tool.executions) == 1
                assert [len(client.list_asked(name)) for name in names] == [1, 2, 2, 1, 1]

                await have_one_claimed_and_one_computed_behind_an_envoy_that_stands(client)
                await serving.end(signal.SIGKILL)
                os.kill(apart.envoy.pid, signal.SIGCONT)
            async with apart.sidecar() as (serving, _):
                await client.wait_result("claimed")
                client.assert_one_after_the_other("claimed")
                assert len(client.list_asked("claimed")) == 1
                await client.wait_result("computed")
                client.assert_one_after_the_other("computed", finished=2)
                assert await serving.end(signal.SIGTERM) == 0


def reach_no_local_pool(apart: Apart, data_class: str) -> None:
    """A configuration that was changed while no sidecar ran."""
    changed = json.loads(apart.config.read_text())
    changed["data_classes"][data_class] = {"boundaries": ["site"]}
    apart.config.write_text(json.dumps(changed))


async def kill_with_jobs_at_rest_and_at_engines(client: Client, tools: str) -> None:
    """One has ended, and its result is being fetched; one is at its engine before its first byte, one in the
    middle of its answer, behind a tool's call; two are queued; of one the store knows, and not its client."""
    apart = client.apart
    async with apart.sidecar() as (serving, _):
        await client.submit("ended")
        await client.wait_result("ended")
        client.arm("hang")
        await client.submit("first_byte")
        await client.wait_asked("first_byte")
        client.arm("hang_mid_body")
        await client.submit("middle", sim_tool={"url": f"http://{tools}/mail", "arguments": {"to": "a"}})
        await client.wait_asked("middle", status=200)
        client.arm(None)
        await client.submit("queued")
        await client.submit("outside", data_class="public")
        unread = asyncio.ensure_future(client.post("unread").__aenter__())
        client.places["unread"] = await wait_stored(client, "unread")
        unread.cancel()

        serving.process.send_signal(signal.SIGSTOP)
        fetching = asyncio.ensure_future(client.fetch("ended"))
        await asyncio.sleep(0.1)  # long enough to reach a sidecar that says nothing
        assert not fetching.done()
        await serving.end(signal.SIGKILL)
        assert (await fetching)[0] == 503
    for name in ("first_byte", "middle"):
        await client.wait_asked(name, "client_disconnected")
    for name in ("queued", "unread", "outside"):
        assert client.list_asked(name) == []
        assert (await client.read(name)).state is JobState.QUEUED


async def wait_stored(client: Client, key: str) -> str:
    """Where the job of a key is, once the store has it."""
    async with asyncio.timeout(WAIT_S):
        while (job := await client.store.find_job("", CHAT, sha256(key.encode()).hexdigest())) is None:
            await asyncio.sleep(0.01)
    return f"/v1/operations/{job.job_id}"


async def have_one_claimed_and_one_computed_behind_an_envoy_that_stands(client: Client) -> None:
    """Of the first the request is on its way, of the second the answer."""
    client.arm("slow=10")
    await client.submit("computed")
    await client.wait_asked("computed")
    os.kill(client.apart.envoy.pid, signal.SIGSTOP)
    client.arm(None)
    await submit_at_the_store(client, "claimed")
    await client.wait_asked("computed", "done")
    async with asyncio.timeout(WAIT_S):
        while (await client.read("claimed")).state is not JobState.RUNNING:
            await asyncio.sleep(0.01)
    assert (await client.read("computed")).state is JobState.RUNNING
    assert client.list_asked("claimed") == []


async def submit_at_the_store(client: Client, name: str) -> None:
    """As another gateway of the same store would."""
    job_id, now = OperationId(f"op_{mint_request_id()}"), asyncio.get_running_loop().time()
    body = json.dumps(build_body(stream=False)).encode()
    new = NewJob(
        job_id=job_id,
        request_id=name,
        caller="",
        path=CHAT,
        key_hash=None,
        body_sha256=sha256(body).hexdigest(),
        body_bytes=len(body),
        pool=PoolName("chat"),
        model="sim",
        request_class="default",
        data_class=None,
        submitted_at=now,
        expires_at=2**40,
    )
    request = JobRequest(CHAT, (("content-type", "application/json"),), body)
    taken = await client.store.submit_job(new, request, JobBounds(1000, 1 << 28))
    assert isinstance(taken, Job)
    client.places[name] = f"/v1/operations/{job_id}"
