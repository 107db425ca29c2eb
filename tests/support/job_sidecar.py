"""The services with jobs, on a memory journal: runs come to a fake Envoy, which a test plays on."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from envoy_ext.domain import step
from envoy_ext.domain.answer_keeping import KeepingPolicy
from envoy_ext.domain.events import DeliveryClosed, LogCause
from envoy_ext.domain.ids import OperationId, PoolName
from envoy_ext.domain.job import Job, JobBounds, JobCounts
from envoy_ext.services.job_ends import JobEnds
from envoy_ext.services.job_requests import JobsPolicy, Submission
from envoy_ext.services.job_runner import JobRunner
from envoy_ext.services.job_runs import Runs
from envoy_ext.services.jobs import Jobs
from tests.support.keyed import Client, let_tasks_run
from tests.support.sidecar import POOL, Sent, Sidecar


class Run(Client):
    """One run that has come in at the jobs listener; nothing is sent but by the words of a test."""

    def __init__(self, sidecar: Sidecar, runs: Runs, name: str, body: bytes) -> None:
        self.sidecar = sidecar
        self.sent, self.hop = Sent(), Sent()
        self.name, self.body = name, body
        self.over_at_client = asyncio.Event()
        delivery = runs.open(name, self.sent)
        assert delivery is not None
        self.delivery = delivery
        self.live, self.attempt_id = None, None

    async def over(self, cause: LogCause) -> None:
        await super().over(cause)
        self.over_at_client.set()


class FakeEnvoy:
    """`ports.RunSender`: takes each run in, until its test or its sender ends it."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self.runs: Runs | None = None
        self.took: list[Run] = []
        self.there = True

    async def send(
        self, name: str, request_id: str, path: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> None:
        if not self.there:
            return
        assert self.runs is not None
        run = Run(self.sidecar, self.runs, name, body)
        self.took.append(run)
        try:
            await run.over_at_client.wait()
        except asyncio.CancelledError:
            # As Envoy does when its client has gone; nobody waits for it.
            if run.live is None:
                run.delivery.receive(DeliveryClosed())
            else:
                await run.over(LogCause.DOWNSTREAM_GONE)
            raise


class JobSidecar:
    """One gateway."""

    def __init__(self, sidecar: Sidecar, *, max_jobs: int = 100) -> None:
        self.sidecar = sidecar
        numbers = itertools.count(1)
        self.envoy = FakeEnvoy(sidecar)
        sidecar.exchanges._results = KeepingPolicy(refusals=True)
        self.runs = self.envoy.runs = Runs(sidecar.exchanges, sidecar.fleet, sidecar.queues)
        self.counts = JobCounts({}, {}, 0)
        policy = JobsPolicy(JobBounds(max_jobs, 1 << 20), 4, 3600.0, 1 << 20)
        ends = JobEnds(
            store=sidecar.journal,
            exchanges=sidecar.exchanges,
            failover=sidecar.policy.failover,
            classes=sidecar.queues.classes,
            clock=sidecar.clock,
            observer=sidecar.watcher,
        )
        self.runner = JobRunner(
            store=sidecar.journal,
            keeper=sidecar.keeper,
            exchanges=sidecar.exchanges,
            fleet=sidecar.fleet,
            queues=sidecar.queues,
            pools=[POOL],
            admit=sidecar.arrivals.admit,
            runs=self.runs,
            ends=ends,
            sender=self.envoy,
            policy=policy,
            max_attempts=sidecar.policy.failover.max_attempts,
            clock=sidecar.clock,
            observer=sidecar.watcher,
            mint_operation_id=lambda: OperationId(f"op_run{sidecar.name}{next(numbers)}"),
            on_counts=self._count,
        )
        self.jobs = Jobs(
            store=sidecar.journal,
            runner=self.runner,
            policy=policy,
            classes=sidecar.queues.classes,
            draw_full=lambda pool: 7,
            clock=sidecar.clock,
            observer=sidecar.watcher,
        )

    async def submit(self, job: str = "op_j1", pool: str | None = None, **arrival: Any) -> Job:
        """A job that is taken in; `pool`: where its model was served at that time."""
        told = await self.try_submit(job, pool, **arrival)
        assert isinstance(told, step.AcceptJob)
        return told.job

    async def try_submit(self, job: str, pool: str | None = None, **arrival: Any) -> step.AcceptJob | Any:
        built = self.sidecar.build_arrival(**arrival)
        admitted = self.sidecar.arrivals.admit(built)
        if pool is not None:
            admitted = replace(admitted, pool=PoolName(pool))  # type: ignore[type-var]
        return await self.jobs.submit(Submission(built, admitted, OperationId(job), None))  # type: ignore[arg-type]

    async def look(self) -> None:
        """Everything that the runner does by itself at this moment."""
        self.runner._looked_at = float("-inf")
        await self.runner.look()
        await let_tasks_run()

    async def look_soon(self) -> None:
        """What it does when it is woken, in the second in which it has asked the store for all."""
        await self.runner.look()
        await let_tasks_run()

    async def wait_idle(self) -> None:
        async with asyncio.timeout(10):
            while not self.runner.idle:
                await asyncio.sleep(0.005)

    async def read(self, job: str = "op_j1") -> Job:
        found = await self.sidecar.journal.read_job(OperationId(job))
        assert found is not None
        return found

    def _count(self, counts: JobCounts) -> None:
        self.counts = counts
