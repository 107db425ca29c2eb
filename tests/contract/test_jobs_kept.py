"""How long every store keeps jobs, their results, and what they need."""

import pytest

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, SeatId
from envoy_ext.domain.tool_calls import CallEnd, CallGranted, CallState, NewCall
from envoy_ext.ports import Store
from tests.support.jobs import (
    NAMED,
    REQUEST,
    ROOM,
    begin_run,
    claim,
    end_run,
    job_end,
    new_job,
    queued_job,
    submit,
)
from tests.support.journals import ANSWER, ended_job, keep
from tests.support.records import START, attempt_started, begun, ended

JOB = OperationId("op_1")


@pytest.fixture
async def seat(journal: Store) -> SeatId:
    return await journal.take_seat("gw")


async def test_ended_jobs_count_no_more(journal: Store, seat: SeatId) -> None:
    await ended_job(journal, seat)
    await submit(journal, "op_2")
    await journal.cancel_job(OperationId("op_2"), START)
    counts = await journal.count_jobs()
    assert (counts.unfinished, counts.request_bytes) == (0, 0)
    assert counts.queued == counts.running == {}


async def test_what_a_job_needs_stays_until_it_has_ended(journal: Store, seat: SeatId) -> None:
    running = await claim(journal, await submit(journal), seat)
    await begin_run(journal, running, seat)
    await end_run(journal, running)
    assert await journal.forget(START + 1000, 9) == 0
    released = await journal.release_job(JOB, running.token, START + 2)
    assert await journal.forget(START + 1000, 9) == 0
    again = await claim(journal, released, seat, "op_2")
    await begin_run(journal, again, seat)
    assert await journal.forget(START + 1000, 9) == 0
    await journal.finish_job(JOB, again.token, job_end(at=START + 3))
    await end_run(journal, again, at=START + 4)  # its operation's last word comes after the job's
    assert await journal.forget(START + 3, 9) == 1, "the first run"
    assert await journal.forget(START + 1000, 1) == 1, "the job"
    assert await journal.read_job(JOB) is None
    assert await journal.get(OperationId("op_2")) is not None
    assert await journal.forget(START + 1000, 9) == 1
    assert await journal.get(OperationId("op_2")) is None
    assert await journal.list_recent(9) == []


async def test_a_job_that_never_ran_is_forgotten_and_its_key_is_free(journal: Store, seat: SeatId) -> None:
    await submit(journal, key_hash="key")
    assert await journal.forget(START + 1000, 9) == 0
    await journal.cancel_job(JOB, START + 3)
    assert await journal.forget(START + 3, 9) == 0
    assert await journal.forget(START + 3.5, 9) == 1
    assert await journal.read_job(JOB) is None
    assert await journal.find_job(*NAMED, "key") is None
    assert await journal.forget(START + 1000, 9) == 0
    assert (await submit(journal, "op_2", key_hash="key")).number == 2, "a number is given once"
    later = begun("op_3", key_hash="key-2")
    assert await journal.begin(later, seat) is None


async def test_results_go_before_the_jobs_they_are_of(journal: Store, seat: SeatId) -> None:
    done = await ended_job(journal, seat)
    late = await ended_job(journal, seat, "op_2")
    for job in (done, late):
        assert await journal.read_answer(job.job_id) == ANSWER
    assert await journal.forget_results(START + 5, 9) == 0
    assert await journal.forget_results(START + 6, 1) == 1
    assert await journal.read_answer(done.job_id) is None
    assert await journal.read_answer(late.job_id) == ANSWER
    assert await journal.forget_results(START + 6, 9) == 1
    assert await journal.forget_results(START + 6, 9) == 0
    assert await journal.read_answer(late.job_id) is None
    assert await journal.read_job(JOB) == done
    assert await journal.get(JOB) is not None
    assert await journal.forget(START + 1000, 9) == 4
    assert await journal.forget_results(START + 1000, 9) == 0


async def test_results_of_a_forgotten_job_are_not_looked_for(journal: Store, seat: SeatId) -> None:
    await ended_job(journal, seat)
    await journal.forget(START + 1000, 9)
    await ended_job(journal, seat, "op_2")
    assert await journal.forget_results(START + 1000, 9) == 1
    assert await journal.read_answer(OperationId("op_2")) is None


async def test_a_ledger_stays_as_long_as_a_job_may_need_it(journal: Store, seat: SeatId) -> None:
    """A key whose operation delivered nothing is run as a job: what its tools did must not be done again."""
    await keep(journal, [begun("op_0", key_hash="key"), attempt_started("op_0", "att_0")], seat)
    wanted = NewCall(
        OperationId("op_0"), AttemptId("att_0"), START, "mail", "print", "sha", keyed=False, idempotent=False
    )
    claimed = await journal.begin_call(wanted)
    assert isinstance(claimed, CallGranted)
    end = CallEnd(claimed.call.call_id, 1, START, CallState.RECORDED, 200)
    assert await journal.end_call(OperationId("op_0"), end, ANSWER)
    await journal.append([ended("op_0")], FencingToken(1))
    ledger = OperationId("op_0")
    await journal.submit_job(new_job(key_hash="key", ledger_id=ledger), REQUEST, ROOM, ledger)
    await journal.submit_job(new_job("op_2", ledger_id=ledger), REQUEST, ROOM)
    assert await journal.forget(START + 1000, 9) == 1
    assert await journal.get(ledger) is None
    running = await claim(journal, queued_job(), seat)
    await begin_run(journal, running, seat)
    await end_run(journal, running)
    await journal.finish_job(JOB, running.token, job_end())
    assert await journal.forget(START + 1000, 9) == 2
    assert len(await journal.read_calls(ledger)) == 1, "another job waits that may make them"
    assert await journal.read_result(ledger, claimed.call.call_id) == ANSWER
    await journal.cancel_job(OperationId("op_2"), START)
    assert await journal.read_calls(ledger) == ()
    assert await journal.read_result(ledger, claimed.call.call_id) is None


async def test_a_job_ends_without_the_ledger_that_an_operation_has(journal: Store, seat: SeatId) -> None:
    await keep(journal, [begun("op_0"), attempt_started("op_0", "att_0")], seat)
    wanted = NewCall(
        OperationId("op_0"), AttemptId("att_0"), START, "mail", "print", "sha", keyed=False, idempotent=False
    )
    assert isinstance(await journal.begin_call(wanted), CallGranted)
    await submit(journal, ledger_id=OperationId("op_0"))
    await journal.cancel_job(JOB, START)
    assert len(await journal.read_calls(OperationId("op_0"))) == 1
