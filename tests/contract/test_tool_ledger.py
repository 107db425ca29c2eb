"""What every store promises about tool calls and kept answers."""

from dataclasses import replace

import pytest

from envoy_ext.domain.errors import ImpossibleEvent, JournalUnavailable
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.tool_calls import (
    CallAnswered,
    CallEnd,
    CallGranted,
    CallId,
    CallRefusal,
    CallRefused,
    CallState,
    NewCall,
    ToolCall,
)
from envoy_ext.ports import Store
from tests.contract.conftest import Store as Place
from tests.support.journals import keep
from tests.support.records import START, attempt_ended, attempt_started, begun, ended

OPERATION = OperationId("op_1")
RESULT = KeptAnswer(200, (("content-type", "application/json"),), b'{"sent":true}\x00\xff')


def wanted(attempt: str = "att_1", what: str = "mail", operation: str = "op_1", **changes: object) -> NewCall:
    call = NewCall(
        operation_id=OperationId(operation),
        attempt_id=AttemptId(attempt),
        at=START + 0.5,
        tool="mail",
        fingerprint=what,
        arguments_sha256=f"of {what}",
        keyed=False,
        idempotent=False,
    )
    return replace(call, **changes)  # type: ignore[arg-type]


async def granted(store: Store, call: NewCall) -> ToolCall:
    claim = await store.begin_call(call)
    assert isinstance(claim, CallGranted)
    return claim.call


async def second_attempt(store: Store) -> None:
    await store.append([attempt_ended(), attempt_started("op_1", "att_2", 2)], FIRST_TOKEN)


@pytest.fixture
async def running(journal: Store) -> Store:
    """A store in which the first attempt of an operation runs."""
    await keep(journal, [begun(), attempt_started()])
    return journal


async def test_a_recorded_call_is_answered_to_the_next_attempt_and_after_a_reopen(
    store: Place, running: Store
) -> None:
    call = await granted(running, wanted())
    end = CallEnd(call.call_id, call.grants, START + 0.7, CallState.RECORDED, 200)
    assert await running.end_call(OPERATION, end, RESULT)
    await second_attempt(running)
    if store.survives_process_death:
        await running.close()
        running = await store.open()
    claim = await running.begin_call(wanted("att_2"))
    assert isinstance(claim, CallAnswered)
    assert claim.call.attempts == ("att_1", "att_2")
    assert await running.read_calls(OPERATION) == (claim.call,)
    assert await running.read_result(OPERATION, call.call_id) == RESULT


async def test_a_call_without_an_end_is_not_made_twice(running: Store) -> None:
    call = await granted(running, wanted())
    await second_attempt(running)
    refused = CallRefused(CallRefusal.OUTCOME_UNKNOWN, call.call_id)
    assert await running.begin_call(wanted("att_2")) == refused
    assert await running.read_calls(OPERATION) == (call,), "a refusal writes nothing"
    assert await running.read_result(OPERATION, call.call_id) is None


async def test_only_the_attempt_that_acts_may_begin_calls(running: Store) -> None:
    fenced = CallRefused(CallRefusal.FENCED)
    assert await running.begin_call(wanted("att_9")) == fenced
    assert await running.begin_call(wanted(operation="op_9")) == fenced
    await second_attempt(running)
    assert await running.begin_call(wanted("att_1")) == fenced
    await granted(running, wanted("att_2"))
    await running.append([ended()], FIRST_TOKEN)
    assert await running.begin_call(wanted("att_2", "other")) == fenced


async def test_the_first_end_of_a_calls_maker_counts_and_may_come_late(running: Store) -> None:
    call = await granted(running, wanted())
    await second_attempt(running)
    lost = CallEnd(call.call_id, call.grants + 1, START + 1, CallState.UNKNOWN)
    assert not await running.end_call(OPERATION, lost), "of a later time, which there is not"
    told = CallEnd(call.call_id, call.grants, START + 1, CallState.RECORDED, 200)
    assert await running.end_call(OPERATION, told, RESULT)
    assert not await running.end_call(OPERATION, replace(told, state=CallState.UNKNOWN, status=None))
    assert not await running.end_call(OperationId("op_9"), told, RESULT)
    (kept,) = await running.read_calls(OPERATION)
    assert (kept.state, kept.status, kept.ended_at) == (CallState.RECORDED, 200, START + 1)


async def test_an_operation_that_is_run_again_has_the_ledger_of_the_first(running: Store) -> None:
    call = await granted(running, wanted())
    end = CallEnd(call.call_id, call.grants, START + 0.7, CallState.RECORDED, 200)
    await running.end_call(OPERATION, end, RESULT)
    await running.append([attempt_ended(), ended()], FIRST_TOKEN)
    await keep(running, [begun("op_2", ledger_id=OPERATION), attempt_started("op_2", "att_3")])
    claim = await running.begin_call(wanted("att_3", operation="op_2"))
    assert isinstance(claim, CallAnswered)
    assert (claim.call.call_id, claim.call.operation_id) == (call.call_id, "op_2")
    assert await running.read_calls(OperationId("op_2")) == ()


async def test_calls_are_listed_in_the_order_in_which_they_were_begun(running: Store) -> None:
    made = [await granted(running, wanted(what=what)) for what in ("c", "a", "b", "a")]
    assert await running.read_calls(OPERATION) == tuple(made)
    assert [call.ordinal for call in made] == [1, 1, 1, 2]


async def test_an_answer_is_kept_with_the_end_and_the_first_one_stays(store: Place, running: Store) -> None:
    assert await running.read_answer(OPERATION) is None
    await running.append([ended()], FIRST_TOKEN, RESULT)
    await running.append([ended()], FIRST_TOKEN, replace(RESULT, body=b"another"))
    if store.survives_process_death:
        await running.close()
        running = await store.open()
    assert await running.read_answer(OPERATION) == RESULT


async def test_a_repeated_end_is_none_of_the_time_after_it(running: Store) -> None:
    """A store whose answer was lost is told again; by then the call may have been let through once more."""
    call = await granted(running, wanted())
    not_sent = CallEnd(call.call_id, call.grants, START + 0.6, CallState.NOT_SENT)
    assert await running.end_call(OPERATION, not_sent)
    again = await granted(running, wanted())
    assert (again.call_id, again.grants) == (call.call_id, 2)
    assert not await running.end_call(OPERATION, not_sent)
    assert await running.read_calls(OPERATION) == (again,)


@pytest.mark.parametrize("unknown", ["", "answer", "call_\x00", "call_\udcff", "' OR 1=1 --"])
async def test_a_call_that_is_not_there_has_no_end_and_no_result(running: Store, unknown: str) -> None:
    await granted(running, wanted())
    await running.append([ended()], FIRST_TOKEN, RESULT)
    end = CallEnd(CallId(unknown), 1, START + 1, CallState.UNKNOWN)
    assert not await running.end_call(OPERATION, end)
    assert await running.read_result(OPERATION, CallId(unknown)) is None


async def test_what_nobody_could_write_down_is_refused_before_anything_is_written(running: Store) -> None:
    with pytest.raises(ValueError, match=r"(?i)float"):
        await running.begin_call(wanted(at=float("nan")))
    assert await running.read_calls(OPERATION) == ()
    call = await granted(running, wanted())
    with pytest.raises(ValueError, match=r"(?i)float"):
        await running.end_call(OPERATION, CallEnd(call.call_id, 1, float("inf"), CallState.UNKNOWN))
    for state, result in ((CallState.RECORDED, None), (CallState.UNKNOWN, RESULT)):
        with pytest.raises(ImpossibleEvent):
            await running.end_call(OPERATION, CallEnd(call.call_id, 1, START + 1, state), result)
    assert await running.read_calls(OPERATION) == (call,)


async def test_odd_text_comes_back_as_it_was(running: Store) -> None:
    odd = "caf\udce9\x00\U0001f600"
    call = await granted(running, wanted(tool=odd, fingerprint=odd, arguments_sha256=odd))
    result = KeptAnswer(299, ((odd, odd), ("set-cookie", "a"), ("set-cookie", "b")), b"")
    end = CallEnd(call.call_id, 1, START + 1, CallState.RECORDED, 299)
    assert await running.end_call(OPERATION, end, result)
    assert [one.tool for one in await running.read_calls(OPERATION)] == [odd]
    assert await running.read_result(OPERATION, call.call_id) == result


async def test_a_closed_store_has_no_ledger(running: Store) -> None:
    await running.close()
    end = CallEnd(CallId("call_1"), 1, START, CallState.UNKNOWN)
    for work in (
        running.begin_call(wanted()),
        running.end_call(OPERATION, end),
        running.read_calls(OPERATION),
        running.read_result(OPERATION, CallId("call_1")),
        running.read_answer(OPERATION),
    ):
        with pytest.raises(JournalUnavailable, match="closed"):
            await work
