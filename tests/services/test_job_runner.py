"""What the runner does with a job: claims it once, sends it once, and ends it by what the journal has."""

import asyncio
from dataclasses import replace

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.events import DeliveryClosed, LogCause
from envoy_ext.domain.exchange_shared import ExchangePolicy
from envoy_ext.domain.ids import FencingToken, OperationId, PoolName
from envoy_ext.domain.job import Job, JobBounds, JobRequest, JobsFull, JobState, NewJob
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.notes import JobEnded, JobSubmitted
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.records import FirstDeltaSent, OperationEnded, Record
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.domain.step import GiveAnswer
from envoy_ext.services import job_ends
from tests.support.job_sidecar import JobSidecar
from tests.support.journals import leave
from tests.support.keyed import WHOLE, let_tasks_run
from tests.support.outages import FailingJournal
from tests.support.sidecar import Sent, Sidecar

POLICY = ExchangePolicy(settle_s=0.05, failover=FailoverPolicy(fence_s=0.05), lease=LeasePolicy())


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_ends, "LOOK_AGAIN_S", 0.01)


def build(journal: MemoryJournal | None = None, **options: object) -> JobSidecar:
    options = {"policy": POLICY, "replicas": ("a",), "concurrency": 1, **options}
    return JobSidecar(Sidecar(journal=journal or MemoryJournal(), **options))  # type: ignore[arg-type]


async def result(gateway: JobSidecar) -> GiveAnswer | step.AcceptJob | ClientError:
    return await gateway.jobs.read_result(await gateway.read(), "req-2")


async def test_a_job_is_claimed_sent_and_ended_with_its_answer() -> None:
    gateway = build()
    await gateway.submit()
    await gateway.look()
    (run,) = gateway.envoy.took
    assert b'"stream":false' in run.body
    assert run.name == "op_j1.1"
    assert (await gateway.read()).state is JobState.RUNNING
    await run.be_answered()
    await gateway.wait_idle()
    told = await result(gateway)
    assert isinstance(told, GiveAnswer)
    assert (told.answer.body, told.answer.status, told.repeated) == (WHOLE, 200, False)
    kinds = [
        type(note) for note in gateway.sidecar.watcher.notes if isinstance(note, JobSubmitted | JobEnded)
    ]
    assert kinds == [JobSubmitted, JobEnded]
    assert gateway.sidecar.queues.idle
    assert gateway.sidecar.watcher.bugs == []


async def test_no_job_is_run_where_somebody_waits_or_has_the_slot() -> None:
    gateway = build()
    holds = gateway.sidecar.arrivals.arrive(gateway.sidecar.build_arrival(), Sent())
    await let_tasks_run()
    await gateway.submit()
    await gateway.look()
    assert gateway.envoy.took == []
    assert (await gateway.read()).state is JobState.QUEUED
    assert gateway.counts.queued == {PoolName("chat"): 1}
    gateway.sidecar.queues.leave(PoolName("chat"), holds.live.exchange.identity.operation_id)  # type: ignore[union-attr]
    await gateway.look()
    assert len(gateway.envoy.took) == 1
    await gateway.submit("op_j2")
    await gateway.look()
    assert len(gateway.envoy.took) == 1  # the slot is the first one's
    await gateway.runner.stop(0.0)


@pytest.mark.parametrize("refused", [(OperationEnded,), (FirstDeltaSent, OperationEnded)])
async def test_an_end_that_the_store_does_not_take_waits_with_its_answer(
    refused: tuple[type[Record], ...],
) -> None:
    """Also where it went down between the question and the first byte: that goes to no client."""
    journal = FailingJournal(*refused)
    gateway = build(journal)
    await gateway.submit()
    await gateway.look()
    await gateway.envoy.took[0].be_answered()
    await asyncio.sleep(0.05)
    assert (await gateway.read()).state is JobState.RUNNING
    journal.mend()
    await gateway.wait_idle()
    told = await result(gateway)
    assert isinstance(told, GiveAnswer)
    assert told.answer.body == WHOLE
    assert len(gateway.envoy.took) == 1


async def test_what_a_gateway_had_answered_when_it_died_is_ended_by_another_without_a_run() -> None:
    journal = MemoryJournal(exclusive=False)
    dead = build(journal, name="dead")
    await dead.submit()
    await dead.look()

    async def die() -> None:
        raise asyncio.CancelledError

    dead.runner._ends.settle = lambda job: die()  # type: ignore[assignment,method-assign,return-value]
    await dead.envoy.took[0].be_answered()
    await let_tasks_run()
    assert (await dead.read()).state is JobState.RUNNING
    other = build(journal, name="other")
    await other.look()
    assert (await other.read()).state is JobState.RUNNING  # its owner may be there
    await leave(journal, dead.sidecar.keeper.seat)
    await other.look()
    await other.wait_idle()
    assert (await other.read()).state is JobState.SUCCEEDED
    assert other.envoy.took == []
    assert isinstance(await result(other), GiveAnswer)


async def test_jobs_of_a_pool_that_is_gone_are_looked_at_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their requests tell which pool is theirs now. While that one has no slot, few requests are read."""
    gateway = build()
    journal, sidecar = gateway.sidecar.journal, gateway.sidecar
    read: list[OperationId] = []
    reading = journal.read_job_request

    async def read_job_request(job_id: OperationId) -> JobRequest | None:
        read.append(job_id)
        return await reading(job_id)

    monkeypatch.setattr(journal, "read_job_request", read_job_request)
    holds = sidecar.arrivals.arrive(sidecar.build_arrival(), Sent())
    await let_tasks_run()
    for number in range(20):
        await gateway.submit(f"op_j{number}", pool="gone")
    await gateway.look()
    await let_tasks_run()
    assert len(gateway.runner._under_way) == 0
    assert 1 <= len(read) <= 4
    before = len(read)
    await gateway.look()
    assert len(read) == before
    sidecar.queues.leave(PoolName("chat"), holds.live.exchange.identity.operation_id)  # type: ignore[union-attr]
    async with asyncio.timeout(10):
        while not gateway.envoy.took:
            await gateway.look()
            await asyncio.sleep(0.02)
    assert len(gateway.envoy.took) == 1
    await gateway.runner.stop(0.0)


async def test_a_run_that_never_began_costs_nothing_and_is_made_by_another() -> None:
    journal = MemoryJournal(exclusive=False)
    dead = build(journal, name="dead")
    dead.envoy.there = False
    job = await dead.submit()
    await journal.claim_job(job.job_id, job.token, dead.sidecar.keeper.seat, job.job_id)
    await leave(journal, dead.sidecar.keeper.seat)
    other = build(journal, name="other")
    await other.look()
    await other.wait_idle()
    await other.look()
    (run,) = other.envoy.took
    await run.be_answered()
    await other.wait_idle()
    assert (await other.read()).run_ids == ("op_j1",)
    assert isinstance(await result(other), GiveAnswer)


async def test_where_envoy_is_not_there_a_job_goes_back_and_its_pool_has_a_rest() -> None:
    gateway = build()
    gateway.envoy.there = False
    await gateway.submit()
    await gateway.look()
    await gateway.wait_idle()
    assert (await gateway.read()).state is JobState.QUEUED
    gateway.envoy.there = True
    await gateway.look()
    assert gateway.envoy.took == []
    assert gateway.sidecar.queues.idle


async def test_a_gateway_that_stops_starts_nothing_and_gives_back_what_it_ends() -> None:
    gateway = build()
    await gateway.submit()
    await gateway.look()
    (run,) = gateway.envoy.took
    gateway.sidecar.exchanges.start_draining()
    await gateway.submit("op_j2")
    await gateway.look()
    assert len(gateway.envoy.took) == 1
    gateway.sidecar.exchanges.end_all()
    await let_tasks_run()
    run.over_at_client.set()
    run.delivery.receive(DeliveryClosed())
    await gateway.wait_idle()
    job = await gateway.read()
    assert (job.state, len(job.run_ids)) == (JobState.QUEUED, 1)


async def test_a_second_run_has_the_attempts_that_the_first_has_left() -> None:
    """Two in all: the first was lost in mid-answer, so the second may not be replayed."""
    gateway = build(replicas=("a", "b"), concurrency=None)
    await gateway.submit()
    await gateway.look()
    (first,) = gateway.envoy.took
    await first.start()
    await first.begin_answer(WHOLE[:9])
    await first.over(LogCause.UPSTREAM_RESET)
    await gateway.wait_idle()
    await gateway.look()
    second = gateway.envoy.took[1]
    await second.start()
    assert second.live is not None
    begun = await gateway.sidecar.journal.get(second.live.exchange.identity.operation_id)
    assert begun is not None
    assert (begun.max_attempts, begun.job_id, begun.ledger_id) == (1, "op_j1", "op_j1")
    await second.begin_answer(WHOLE)
    await second.end_answer()
    await gateway.wait_idle()
    assert (await gateway.read()).state is JobState.SUCCEEDED


async def test_as_many_wait_as_may_and_the_next_is_told_when_to_come_back() -> None:
    gateway = JobSidecar(Sidecar(policy=POLICY, replicas=("a",)), max_jobs=1)
    await gateway.submit()
    full = await gateway.try_submit("op_j2")
    assert isinstance(full, ClientError)
    assert (full.code, full.retry_after_s) == ("queue_full", 7)


async def test_time_may_be_given_to_a_run_only_by_who_keeps_its_seat_also_behind_its_first_bytes() -> None:
    """Another gateway lets it run again, whatever it has sent, and counts on that."""
    gateway = build()
    await gateway.submit()
    await gateway.look()
    (run,) = gateway.envoy.took
    await run.start()
    await run.begin_answer(WHOLE[:9])
    assert run.live is not None
    assert run.live.exchange.partly_delivered
    assert run.live._recording._may_run_again
    await gateway.runner.stop(0.0)


async def test_a_job_is_not_given_back_while_its_last_attempt_may_still_act() -> None:
    lease = replace(POLICY, failover=replace(POLICY.failover, fence_s=600.0))
    gateway = build(policy=lease, replicas=("a", "b"), concurrency=None)
    await gateway.submit()
    await gateway.look()
    (run,) = gateway.envoy.took
    await run.start()
    await run.begin_answer(WHOLE[:9])
    await run.over(LogCause.UPSTREAM_TIMEOUT)
    operation = await gateway.sidecar.operation()
    assert operation.ending is not None
    await let_tasks_run()
    await gateway.look()
    assert (await gateway.read()).state is JobState.RUNNING
    assert len(gateway.envoy.took) == 1
    await gateway.runner.stop(0.0)


async def test_a_cancel_that_another_gateway_has_taken_is_seen_by_the_one_that_runs_it() -> None:
    gateway = build()
    job = await gateway.submit()
    await gateway.look()
    (run,) = gateway.envoy.took
    await run.start()
    asked = await gateway.sidecar.journal.cancel_job(job.job_id, gateway.sidecar.clock.wall())
    assert asked is not None
    assert asked.state is JobState.RUNNING
    await gateway.look()
    await gateway.wait_idle()
    assert (await gateway.read()).state is JobState.CANCELLED
    assert run.over_at_client.is_set()
    assert gateway.sidecar.queues.idle


async def test_a_job_that_nobody_was_asked_for_rests_and_costs_no_attempt() -> None:
    """Its Envoy has no replica yet: both have just started."""
    gateway = build()
    await gateway.submit()
    for _ in range(2):
        await gateway.look()
        run = gateway.envoy.took[-1]
        await run.start()
        await run.over(LogCause.NO_UPSTREAM)
        await gateway.wait_idle()
        assert (await gateway.read()).state is JobState.QUEUED
        took = len(gateway.envoy.took)
        await gateway.look()
        assert len(gateway.envoy.took) == took
        gateway.runner._resting.clear()  # its second is over
    await gateway.look()
    await gateway.envoy.took[-1].be_answered()
    await gateway.wait_idle()
    assert isinstance(await result(gateway), GiveAnswer)
    assert len(gateway.envoy.took) == 3


async def test_each_end_by_a_cancel_is_told_once_whatever_the_job_was_seen_as() -> None:
    """Two cancels that saw it wait; and one that saw it run, and found it given back."""
    gateway = build()
    seen = await gateway.submit()
    for _ in range(2):
        assert not (await gateway.jobs.cancel(seen)).in_vain
    ran = await gateway.submit("op_j2")
    await gateway.jobs.cancel(replace(ran, state=JobState.RUNNING))
    ended = [note.job_id for note in gateway.sidecar.watcher.notes if isinstance(note, JobEnded)]
    assert ended == ["op_j1", "op_j2"]


class LateWords(MemoryJournal):
    """Does what it is told at once, and says so when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted = asyncio.Event()
        self.released = asyncio.Event()
        self.go_on = asyncio.Event()

    async def submit_job(
        self, new: NewJob, request: JobRequest, bounds: JobBounds, after: OperationId | None = None
    ) -> Job | Operation | JobsFull:
        held = await super().submit_job(new, request, bounds, after)
        self.submitted.set()
        await self.go_on.wait()
        return held

    async def release_job(self, job_id: OperationId, token: FencingToken, at: float) -> Job:
        released = await super().release_job(job_id, token, at)
        self.released.set()
        return released

    async def get(self, operation_id: OperationId) -> Operation | None:
        if self.released.is_set():
            await self.go_on.wait()
        return await super().get(operation_id)


async def test_a_job_that_runs_before_its_submission_is_answered_is_not_started_again() -> None:
    """The store's answer was slow, or lost and asked for again: a claim made twice by one gateway is one."""
    journal = LateWords()
    gateway = build(journal, replicas=("a", "b"), concurrency=None)
    submission = asyncio.create_task(gateway.submit())
    await journal.submitted.wait()
    await gateway.look()
    (run,) = gateway.envoy.took
    journal.go_on.set()
    await submission
    await gateway.look_soon()
    assert gateway.envoy.took == [run]
    await run.be_answered()
    await gateway.wait_idle()
    assert isinstance(await result(gateway), GiveAnswer)
    assert gateway.sidecar.queues.idle


async def test_a_job_that_is_given_back_is_not_started_before_it_is_out_of_hand() -> None:
    journal = LateWords()
    journal.go_on.set()
    gateway = build(journal, replicas=("a", "b"), concurrency=None)
    await gateway.submit()
    await gateway.look()
    (run,) = gateway.envoy.took
    await run.start()
    journal.go_on.clear()
    await run.over(LogCause.NO_UPSTREAM)
    await journal.released.wait()
    await gateway.look_soon()
    assert gateway.envoy.took == [run]
    journal.go_on.set()
    await gateway.wait_idle()
    await gateway.look_soon()
    assert gateway.envoy.took == [run]  # it rests
    gateway.runner._resting.clear()
    await gateway.look_soon()
    assert len(gateway.envoy.took) == 2
    assert not gateway.runner.idle
    await gateway.envoy.took[-1].be_answered()
    await gateway.wait_idle()
    assert isinstance(await result(gateway), GiveAnswer)
