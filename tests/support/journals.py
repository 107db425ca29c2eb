"""Words to fill a journal with, for tests that are not about who owns what."""

from collections.abc import Coroutine, Sequence
from typing import TypeVar

from envoy_ext.domain.ids import AttemptId, OperationId, SeatId
from envoy_ext.domain.job import Job, JobState
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import OperationBegun, Record
from envoy_ext.domain.tool_calls import CallEnd, CallGranted, CallState, NewCall
from envoy_ext.ports import Journal, Store
from tests.support.jobs import NAMED, REQUEST, begin_run, claim, end_run, job_end, submit
from tests.support.records import START, attempt_started, begun, ended

T = TypeVar("T")


async def keep(journal: Journal, records: Sequence[Record], seat: SeatId | None = None) -> SeatId:
    """Write what happens to operations, in the name of whoever owns them; the seat new ones begin in."""
    seat = await journal.take_seat("gw") if seat is None else seat
    for operation_id in dict.fromkeys(record.operation_id for record in records):
        own = [record for record in records if record.operation_id == operation_id]
        begun = next((record for record in own if isinstance(record, OperationBegun)), None)
        if begun is not None:
            earlier = await _find_earlier(journal, begun)
            assert await journal.begin(begun, seat, None if earlier is None else earlier.operation_id) is None
            own.remove(begun)
        known = await journal.get(operation_id)
        assert known is not None
        await journal.append(own, known.token)
    return seat


def run_now(work: Coroutine[object, object, T]) -> T:
    """The result of a call that does not wait, as none of a memory journal does."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


async def _find_earlier(journal: Journal, begun: OperationBegun) -> Operation | None:
    if begun.key_hash is None:
        return None
    return await journal.find_by_key(begun.caller, begun.path, begun.key_hash)


async def leave(journal: Journal, seat: SeatId) -> None:
    """The gateway in this seat is gone."""
    seats = await journal.read_seats()
    assert await journal.remove_seat(seat, seats[seat])


ANSWER = KeptAnswer(200, (("content-type", "text/plain"),), b"hello")


async def use_everything(store: Store, operation: str = "op_1", key: str = "key") -> None:
    """Every call there is."""
    first = await keep(store, [begun(operation, key_hash=key), attempt_started(operation)])
    assert await store.find_by_key("caller-hash", "/v1/chat/completions", key) is not None
    await store.beat(first, 2)
    await leave(store, first)
    (orphan,) = [operation async for operation in store.orphaned()]
    second = await store.take_seat("gw")
    taken = await store.take_over(orphan.operation_id, FIRST_TOKEN, second, START)
    claim = await store.begin_call(
        NewCall(taken.operation_id, AttemptId("att_1"), START, "mail", "print", "sha", False, False)
    )
    assert isinstance(claim, CallGranted)
    end = CallEnd(claim.call.call_id, claim.call.grants, START, CallState.RECORDED, 200)
    assert await store.end_call(taken.operation_id, end, ANSWER)
    assert await store.read_result(taken.operation_id, claim.call.call_id) == ANSWER
    assert len(await store.read_calls(taken.operation_id)) == 1
    await store.append([ended(operation)], taken.token, ANSWER)
    assert await store.read_answer(taken.operation_id) == ANSWER
    assert [one.operation_id for one in await store.list_recent(1)] == [operation]
    assert await store.get(taken.operation_id) is not None


async def use_jobs(store: Store, job: str, key: str = "key of a job") -> None:
    """Every call there is for jobs."""
    first, second = await store.take_seat("gw"), await store.take_seat("gw")
    queued = await submit(store, job, key_hash=key, ledger_id=OperationId("op_of_another"))
    assert await store.find_job(*NAMED, key) == queued
    assert await store.read_job_request(queued.job_id) == REQUEST
    running = await claim(store, queued, first)
    await begin_run(store, running, first)
    await end_run(store, running)
    await leave(store, first)
    assert await store.list_orphaned_jobs(9) == [running]
    taken = await store.take_over_job(queued.job_id, running.token, second)
    released = await store.release_job(queued.job_id, taken.token, START)
    assert await store.list_jobs(frozenset({JobState.QUEUED}), 9) == [released]
    again = await claim(store, released, second, f"{job}_again")
    await begin_run(store, again, second)
    assert (await store.count_jobs()).unfinished == 1
    assert await store.cancel_job(queued.job_id, START) is not None
    done = await store.finish_job(queued.job_id, again.token, job_end())
    await store.append([ended(f"{job}_again")], FIRST_TOKEN, ANSWER)
    assert await store.read_job(queued.job_id) == done
    assert await store.forget_results(START + 1e6, 9) == 1


async def ended_job(store: Store, seat: SeatId, job: str = "op_1", **changes: object) -> Job:
    """One that has run, with an answer that is kept."""
    running = await claim(store, await submit(store, job, **changes), seat)
    await begin_run(store, running, seat)
    await store.append([ended(job)], FIRST_TOKEN, ANSWER)
    return await store.finish_job(running.job_id, running.token, job_end())
