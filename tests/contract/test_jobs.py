"""What every store promises about jobs."""

from dataclasses import replace

import pytest

from envoy_ext.domain.errors import ImpossibleEvent, JournalUnavailable, NotOwner, RunNotOver, SeatLost
from envoy_ext.domain.ids import FencingToken, OperationId, PoolName, SeatId
from envoy_ext.domain.job import ENDED, UNFINISHED, Job, JobBounds, JobsFull, JobState
from envoy_ext.domain.operation import Operation
from envoy_ext.ports import Store
from tests.contract.conftest import Store as Place
from tests.support.jobs import (
    BODY,
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
from tests.support.journals import ANSWER, ended_job, keep, leave
from tests.support.records import START, begun

JOB = OperationId("op_1")
EVERY = UNFINISHED | ENDED


@pytest.fixture
async def seat(journal: Store) -> SeatId:
    return await journal.take_seat("gw")


async def ids(store: Store, *states: JobState) -> list[str]:
    return [job.job_id for job in await store.list_jobs(frozenset(states) or EVERY, 100)]


async def test_a_job_and_its_request_are_there_after_a_reopen(store: Place, journal: Store) -> None:
    job = await submit(journal)
    if store.survives_process_death:
        await journal.close()
        journal = await store.open()
    assert await journal.read_job(JOB) == job == queued_job()
    assert await journal.read_job_request(JOB) == REQUEST


async def test_a_whole_life_is_there_after_a_reopen(store: Place, journal: Store, seat: SeatId) -> None:
    done = await ended_job(journal, seat)
    if store.survives_process_death:
        await journal.close()
        journal = await store.open()
    assert await journal.read_job(JOB) == done
    assert (done.state, done.owner, done.token, done.run_ids) == (JobState.SUCCEEDED, seat, 1, (JOB,))
    assert done.end == job_end()
    assert await journal.read_answer(JOB) == ANSWER
    assert await journal.read_job_request(JOB) is None, "its request has gone with its end"


async def test_a_submission_whose_answer_was_lost_is_no_second_one(journal: Store, seat: SeatId) -> None:
    job = await submit(journal)
    assert await submit(journal) == job
    running = await claim(journal, job, seat)
    assert await submit(journal) == running
    assert (await journal.count_jobs()).unfinished == 1


async def test_under_one_key_there_is_one_job_whatever_became_of_it(journal: Store, seat: SeatId) -> None:
    first = await submit(journal, key_hash="key")
    assert await journal.submit_job(new_job("op_2", key_hash="key"), REQUEST, ROOM) == first
    done = await journal.finish_job(first.job_id, first.token, job_end(JobState.FAILED))
    assert await journal.submit_job(new_job("op_3", key_hash="key"), REQUEST, ROOM) == done
    assert await journal.find_job(*NAMED, "key") == done
    for other in ({"caller": "else"}, {"path": "/v1/completions"}, {"key_hash": "key-2"}):
        await submit(journal, f"op_of_{other}", **{"key_hash": "key"} | other)
    assert await journal.find_job(*NAMED, "key-3") is None


async def test_a_key_that_was_used_at_once_is_one_operation_too(journal: Store, seat: SeatId) -> None:
    await keep(journal, [begun("op_0", key_hash="key")], seat)
    held = await journal.submit_job(new_job(key_hash="key"), REQUEST, ROOM)
    assert isinstance(held, Operation)
    assert held.operation_id == "op_0"
    assert await journal.read_job(JOB) is None
    after = OperationId("op_0")
    taken = await journal.submit_job(new_job(key_hash="key", ledger_id=after), REQUEST, ROOM, after)
    assert isinstance(taken, Job)
    assert (taken.job_id, taken.ledger_id) == (JOB, after)
    later = begun("op_2", key_hash="key", ledger_id=after)
    assert await journal.begin(later, seat, after) == taken, "nothing else begins under the key of a job"
    assert await journal.get(OperationId("op_2")) is None


async def test_there_are_no_more_and_no_larger_jobs_than_may_be(journal: Store, seat: SeatId) -> None:
    two = JobBounds(max_jobs=2, max_bytes=2**20)
    first = await submit(journal, key_hash="key")
    await submit(journal, "op_2", pool=PoolName("other"))
    running = await claim(journal, first, seat)
    full = await journal.submit_job(new_job("op_3"), REQUEST, two)
    assert isinstance(full, JobsFull)
    assert (full.counts.queued, full.counts.running) == ({"other": 1}, {"chat": 1})
    assert full.counts == await journal.count_jobs()
    assert full.counts.request_bytes == 2 * len(BODY)
    assert await journal.read_job(OperationId("op_3")) is None
    assert await journal.read_job_request(OperationId("op_3")) is None
    repeat = await journal.submit_job(new_job("op_4", key_hash="key"), REQUEST, two)
    assert repeat == running, "a repeat needs no room"
    await journal.finish_job(running.job_id, running.token, job_end())
    narrow = JobBounds(max_jobs=9, max_bytes=2 * len(BODY) - 1)
    assert isinstance(await journal.submit_job(new_job("op_5"), REQUEST, narrow), JobsFull)
    wide = JobBounds(max_jobs=2, max_bytes=2 * len(BODY))
    assert isinstance(await journal.submit_job(new_job("op_6"), REQUEST, wide), Job)


async def test_one_claim_wins(journal: Store, seat: SeatId) -> None:
    other = await journal.take_seat("gw")
    job = await submit(journal)
    running = await claim(journal, job, seat)
    assert (running.state, running.owner, running.token, running.run_id) == (
        JobState.RUNNING,
        seat,
        job.token + 1,
        JOB,
    )
    with pytest.raises(NotOwner):
        await claim(journal, job, other)
    with pytest.raises(NotOwner):
        await claim(journal, running, other)
    with pytest.raises(NotOwner):
        await claim(journal, job, seat, "op_9")
    assert await claim(journal, job, seat) == running, "a claim whose answer was lost"
    assert await journal.read_job(JOB) == running


async def test_a_gateway_without_a_seat_claims_nothing(journal: Store, seat: SeatId) -> None:
    job = await submit(journal)
    await leave(journal, seat)
    with pytest.raises(SeatLost):
        await claim(journal, job, seat)
    other = await journal.take_seat("gw")
    running = await claim(journal, job, other)
    await leave(journal, other)
    with pytest.raises(SeatLost):
        await journal.take_over_job(JOB, running.token, seat)
    assert await journal.read_job(JOB) == running


async def test_a_job_that_is_not_there_is_nobodys(journal: Store, seat: SeatId) -> None:
    gone, token = OperationId("op_9"), FencingToken(0)
    for work in (
        journal.claim_job(gone, token, seat, gone),
        journal.take_over_job(gone, token, seat),
        journal.release_job(gone, token, START),
        journal.finish_job(gone, token, job_end()),
    ):
        with pytest.raises(NotOwner):
            await work
    assert await journal.cancel_job(gone, START) is None
    assert await journal.read_job(gone) is None
    assert await journal.read_job_request(gone) is None


async def test_only_the_newest_run_of_a_running_job_begins(journal: Store, seat: SeatId) -> None:
    other = await journal.take_seat("gw")
    job = await submit(journal)

    async def begins(run: str, in_seat: SeatId) -> bool:
        try:
            assert await journal.begin(begun(run, job_id=JOB), in_seat) is None
        except NotOwner:
            assert await journal.get(OperationId(run)) is None
            return False
        return True

    assert not await begins("op_1", seat), "nobody has claimed it"
    running = await claim(journal, job, seat)
    assert not await begins("op_1", other)
    assert not await begins("op_9", seat)
    released = await journal.release_job(JOB, running.token, START)
    assert not await begins("op_1", seat), "it was given back before it had begun"
    again = await claim(journal, released, other, "op_2")
    assert not await begins("op_1", other)
    assert await begins("op_2", other)
    assert await begins("op_2", other), "a begin whose answer was lost"
    await end_run(journal, again)
    await journal.finish_job(JOB, again.token, job_end())
    assert not await begins("op_3", other)


async def test_after_an_end_nothing_begins(journal: Store, seat: SeatId) -> None:
    running = await claim(journal, await submit(journal), seat)
    done = await journal.finish_job(JOB, running.token, job_end(JobState.EXPIRED))
    assert done.run_ids == (), "a run that never began is none"
    with pytest.raises(NotOwner):
        await journal.begin(begun(job_id=JOB), seat)
    with pytest.raises(NotOwner):
        await journal.begin(begun("op_2", job_id=OperationId("op_7")), seat)


async def test_a_job_goes_back_only_when_its_run_is_over(journal: Store, seat: SeatId) -> None:
    running = await claim(journal, await submit(journal), seat)
    await begin_run(journal, running, seat)
    with pytest.raises(RunNotOver):
        await journal.release_job(JOB, running.token, START)
    assert await journal.read_job(JOB) == running
    await end_run(journal, running)
    with pytest.raises(NotOwner):
        await journal.release_job(JOB, FencingToken(7), START)
    released = await journal.release_job(JOB, running.token, START)
    assert (released.state, released.run_ids) == (JobState.QUEUED, (JOB,))
    assert await journal.release_job(JOB, running.token, START) == released, "an answer that was lost"
    assert await journal.read_job_request(JOB) == REQUEST
    with pytest.raises(ImpossibleEvent):
        await claim(journal, released, seat)
    again = await claim(journal, released, seat, "op_2")
    assert again.run_ids == (JOB, "op_2")
    with pytest.raises(NotOwner):
        await journal.release_job(JOB, running.token, START)


async def test_a_job_of_a_gateway_that_is_gone_is_taken_over(journal: Store, seat: SeatId) -> None:
    other = await journal.take_seat("gw")
    running = await claim(journal, await submit(journal), seat)
    await begin_run(journal, running, seat)
    await submit(journal, "op_2")
    with pytest.raises(NotOwner):
        await journal.take_over_job(JOB, running.token, other)
    assert await journal.list_orphaned_jobs(9) == []
    await leave(journal, seat)
    assert await journal.list_orphaned_jobs(9) == [running]
    assert await journal.list_orphaned_jobs(0) == []
    taken = await journal.take_over_job(JOB, running.token, other)
    assert (taken.owner, taken.token, taken.run_ids) == (other, running.token + 1, running.run_ids)
    assert await journal.take_over_job(JOB, running.token, other) == taken, "an answer that was lost"
    assert await journal.list_orphaned_jobs(9) == []
    with pytest.raises(NotOwner):
        await journal.finish_job(JOB, running.token, job_end())
    with pytest.raises(NotOwner):
        await journal.release_job(JOB, running.token, START)
    with pytest.raises(NotOwner):
        await journal.take_over_job(OperationId("op_2"), FencingToken(0), other)
    with pytest.raises(RunNotOver):
        await journal.release_job(JOB, taken.token, START)


async def test_what_an_owner_had_not_begun_never_begins(journal: Store, seat: SeatId) -> None:
    """Its request is on its way still, and its gateway back with another seat."""
    running = await claim(journal, await submit(journal), seat)
    await leave(journal, seat)
    back, other = await journal.take_seat("gw"), await journal.take_seat("gw")
    with pytest.raises(NotOwner):
        await journal.begin(begun(job_id=JOB), back)
    taken = await journal.take_over_job(JOB, running.token, other)
    with pytest.raises(NotOwner):
        await journal.begin(begun(job_id=JOB), back)
    released = await journal.release_job(JOB, taken.token, START)
    assert released.run_ids == ()
    await claim(journal, released, other, "op_2")
    with pytest.raises(NotOwner):
        await journal.begin(begun(job_id=JOB), other)


async def test_the_first_end_stays(journal: Store, seat: SeatId) -> None:
    running = await claim(journal, await submit(journal), seat)
    await begin_run(journal, running, seat)
    with pytest.raises(NotOwner):
        await journal.finish_job(JOB, FencingToken(0), job_end())
    done = await journal.finish_job(JOB, running.token, job_end())
    assert await journal.finish_job(JOB, running.token, job_end(JobState.FAILED)) == done
    assert await journal.cancel_job(JOB, START + 9) == done
    assert await journal.release_job(JOB, running.token, START) == done
    with pytest.raises(NotOwner):
        await claim(journal, done, seat, "op_2")
    await leave(journal, seat)
    other = await journal.take_seat("gw")
    with pytest.raises(NotOwner):
        await journal.take_over_job(JOB, running.token, other)
    assert await journal.read_job(JOB) == done
    assert await journal.list_orphaned_jobs(9) == []


async def test_a_cancelled_job_never_runs(journal: Store, seat: SeatId) -> None:
    job = await submit(journal)
    cancelled = await journal.cancel_job(JOB, START + 3)
    assert cancelled is not None
    assert (cancelled.state, cancelled.end) == (
        JobState.CANCELLED,
        job_end(JobState.CANCELLED, at=START + 3),
    )
    assert await journal.cancel_job(JOB, START + 4) == cancelled
    assert await journal.read_job_request(JOB) is None
    with pytest.raises(NotOwner):
        await claim(journal, job, seat)


async def test_a_running_job_is_cancelled_by_its_owner(journal: Store, seat: SeatId) -> None:
    running = await claim(journal, await submit(journal), seat)
    asked = await journal.cancel_job(JOB, START + 3)
    assert asked == replace(running, cancel_requested_at=START + 3)
    assert await journal.cancel_job(JOB, START + 4) == asked
    assert await journal.read_job_request(JOB) == REQUEST
    released = await journal.release_job(JOB, running.token, START + 5)
    assert released.end == job_end(JobState.CANCELLED, at=START + 5)
    assert await journal.read_job_request(JOB) is None


async def test_whoever_claims_a_job_is_faster_than_who_finds_it_too_old(journal: Store, seat: SeatId) -> None:
    first, second = await submit(journal), await submit(journal, "op_2")
    expired = await journal.finish_job(JOB, first.token, job_end(JobState.EXPIRED))
    assert expired.state is JobState.EXPIRED
    running = await claim(journal, second, seat)
    with pytest.raises(NotOwner):
        await journal.finish_job(second.job_id, second.token, job_end(JobState.EXPIRED))
    assert await journal.read_job(second.job_id) == running


async def test_jobs_are_listed_in_the_order_of_their_submission(journal: Store, seat: SeatId) -> None:
    # Ids are minted by several gateways, whose clocks may differ.
    jobs = [await submit(journal, job, submitted_at=START - at) for at, job in enumerate(("c", "a", "b"))]
    running = await claim(journal, jobs[0], seat)
    assert await ids(journal) == ["c", "a", "b"]
    assert await ids(journal, JobState.QUEUED) == ["a", "b"]
    assert await ids(journal, JobState.RUNNING, JobState.CANCELLED) == ["c"]
    await journal.release_job(jobs[0].job_id, running.token, START)
    assert await ids(journal, JobState.QUEUED) == ["c", "a", "b"], "it has its place still"
    page = await journal.list_jobs(EVERY, 1)
    assert [job.job_id for job in page] == ["c"]
    rest = await journal.list_jobs(EVERY, 9, page[0].number)
    assert [job.job_id for job in rest] == ["a", "b"]
    assert await journal.list_jobs(EVERY, 0) == []
    assert await journal.list_jobs(EVERY, -1) == []
    assert await journal.list_jobs(frozenset(), 9) == []


async def test_odd_text_comes_back_as_it_was(journal: Store, seat: SeatId) -> None:
    odd = "caf\udce9\x00\U0001f600"
    request = replace(REQUEST, path=odd, headers=((odd, odd), ("a", "1"), ("a", "2")), body=b"")
    new = new_job(odd, caller=odd, path=odd, key_hash=odd, pool=PoolName(odd), model=odd, data_class=odd)
    job = await journal.submit_job(new, request, ROOM)
    assert isinstance(job, Job)
    assert await journal.read_job(OperationId(odd)) == job
    assert await journal.find_job(odd, odd, odd) == job
    assert await journal.read_job_request(job.job_id) == request
    assert (await journal.count_jobs()).queued == {odd: 1}
    assert await journal.list_jobs(EVERY, 9) == [job]
    running = await claim(journal, job, seat)
    end = job_end(JobState.FAILED, error_code=odd, tool_call_id=odd)
    done = await journal.finish_job(job.job_id, running.token, end)
    assert await journal.read_job(job.job_id) == done
    assert await journal.forget(START + 1000, 9) == 1


async def test_what_nobody_could_write_down_is_refused_before_anything_is_written(journal: Store) -> None:
    for changes in ({"submitted_at": float("nan")}, {"expires_at": float("inf")}):
        with pytest.raises(ValueError, match=r"(?i)float"):
            await journal.submit_job(new_job(**changes), REQUEST, ROOM)
    assert await journal.read_job(JOB) is None
    assert await journal.read_job_request(JOB) is None
    job = await submit(journal)
    odd = float("-inf")
    for work in (
        journal.finish_job(JOB, job.token, job_end(at=odd)),
        journal.cancel_job(JOB, odd),
        journal.release_job(JOB, job.token, odd),
    ):
        with pytest.raises(ValueError, match=r"(?i)float"):
            await work
    assert await journal.read_job(JOB) == job


async def test_a_closed_store_has_no_jobs(journal: Store, seat: SeatId) -> None:
    await submit(journal)
    await journal.close()
    for work in (
        journal.submit_job(new_job("op_2"), REQUEST, ROOM),
        journal.read_job(JOB),
        journal.find_job(*NAMED, "key"),
        journal.read_job_request(JOB),
        journal.list_jobs(EVERY, 9),
        journal.list_orphaned_jobs(9),
        journal.claim_job(JOB, FencingToken(0), seat, JOB),
        journal.take_over_job(JOB, FencingToken(0), seat),
        journal.release_job(JOB, FencingToken(0), START),
        journal.finish_job(JOB, FencingToken(0), job_end()),
        journal.cancel_job(JOB, START),
        journal.count_jobs(),
        journal.forget_results(START, 9),
    ):
        with pytest.raises(JournalUnavailable, match="closed"):
            await work
