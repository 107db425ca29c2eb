"""What every store promises about what has been: how much there is, how it is listed, and how it goes."""

import asyncio
from dataclasses import replace

import pytest

from envoy_ext import ports
from envoy_ext.domain.errors import JournalUnavailable, NotOwner
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.tool_calls import CallEnd, CallGranted, CallId, CallState, NewCall
from tests.contract.conftest import Store as Place
from tests.support.journals import keep, leave
from tests.support.records import START, attempt_ended, attempt_started, begun, ended, whole_life

EVER = START + 1e6
PATH = "/v1/chat/completions"
ANSWER = KeptAnswer(200, (("content-type", "application/json"),), b'{"id":"chatcmpl-1"}')


async def end_all(journal: ports.Store, *ids: str, **begun_changes: object) -> None:
    """Operations that begin in this order, and end one second apart in this order."""
    for number, operation_id in enumerate(ids):
        await keep(journal, whole_life(operation_id, **begun_changes)[:-1])
        await journal.append([ended(operation_id, at=START + number)], FIRST_TOKEN)


async def list_ids(journal: ports.Store) -> list[str]:
    return [operation.operation_id for operation in await journal.list_recent(1_000)]


async def since(archive: ports.Archive, at: float, limit: int = 100, after: str = "") -> list[str]:
    found = await archive.list_since(at, limit, OperationId(after))
    return [operation.operation_id for operation in found]


async def call_a_tool(journal: ports.Store, operation: str, attempt: str) -> CallId:
    """A call of the running attempt, and its result, which is kept."""
    wanted = NewCall(OperationId(operation), AttemptId(attempt), START, "mail", "fp", "ab", False, False)
    claim = await journal.begin_call(wanted)
    assert isinstance(claim, CallGranted)
    end = CallEnd(claim.call.call_id, claim.call.grants, START, CallState.RECORDED, 200)
    assert await journal.end_call(OperationId(operation), end, ANSWER)
    return claim.call.call_id


# --- what goes, and in which order --------------------------------------------------------------


async def test_those_that_ended_before_a_time_go_and_the_first_that_ended_first(
    journal: ports.Store, archive: ports.Archive
) -> None:
    await keep(journal, [begun(operation_id) for operation_id in ("op_2", "op_4", "op_1", "op_5")])
    for number, operation_id in enumerate(("op_5", "op_1", "op_4", "op_2")):
        await journal.append([ended(operation_id, at=START + number)], FIRST_TOKEN)
    assert await archive.forget(START, 10) == 0, "none ended before"
    assert await archive.forget(START + 2, 1) == 1
    assert await list_ids(journal) == ["op_1", "op_4", "op_2"]
    assert await archive.forget(START + 2, 10) == 1
    assert await archive.forget(START + 2, 10) == 0
    assert await list_ids(journal) == ["op_4", "op_2"]


async def test_of_those_that_ended_at_once_the_one_that_began_first_goes_first(
    journal: ports.Store, archive: ports.Archive
) -> None:
    for operation_id in ("op_2", "op_3", "op_1"):
        await keep(journal, whole_life(operation_id))
    assert await archive.forget(EVER, 2) == 2
    assert await list_ids(journal) == ["op_1"]


async def test_one_that_has_not_ended_never_goes_however_old(
    journal: ports.Store, archive: ports.Archive
) -> None:
    seat = await keep(journal, [begun("op_1", at=1.0), attempt_started("op_1"), attempt_ended("op_1")])
    assert await archive.forget(EVER, 10) == 0
    await leave(journal, seat)
    assert await archive.forget(EVER, 10) == 0, "an orphan is still to be ended by somebody"
    assert [operation.operation_id async for operation in journal.orphaned()] == ["op_1"]


async def test_it_is_the_first_end_that_counts(journal: ports.Store, archive: ports.Archive) -> None:
    await end_all(journal, "op_1")
    await journal.append([ended("op_1", at=EVER)], FIRST_TOKEN)
    assert await archive.forget(START + 1, 10) == 1


@pytest.mark.parametrize("limit", [0, -1, -(2**70)])
async def test_a_limit_below_one_removes_nothing(
    journal: ports.Store, archive: ports.Archive, limit: int
) -> None:
    await end_all(journal, "op_1")
    assert await archive.forget(EVER, limit) == 0
    assert await list_ids(journal) == ["op_1"]


async def test_a_limit_above_every_number_removes_all(journal: ports.Store, archive: ports.Archive) -> None:
    await end_all(journal, *(f"op_{number}" for number in range(20)))
    assert await archive.forget(EVER, 2**70) == 20
    assert await list_ids(journal) == []


# --- it goes as a whole -----------------------------------------------------------------------


async def test_what_is_forgotten_is_as_if_it_had_never_been(
    journal: ports.Store, archive: ports.Archive
) -> None:
    seat = await keep(journal, whole_life("op_1", key_hash="key"))
    await journal.append([ended("op_1")], FIRST_TOKEN, ANSWER)
    await keep(journal, [begun("op_2")], seat)
    assert await archive.forget(EVER, 10) == 1
    gone = OperationId("op_1")
    assert await journal.get(gone) is None
    assert await journal.read_answer(gone) is None
    assert await journal.find_by_key("caller-hash", PATH, "key") is None
    assert await journal.list_recent(10, before=gone) == []
    assert await since(archive, 0) == ["op_2"]
    with pytest.raises(NotOwner):
        await journal.append([attempt_ended("op_1")], FIRST_TOKEN)
    with pytest.raises(NotOwner):
        await journal.take_over(gone, FIRST_TOKEN, seat, START)


async def test_its_key_begins_another_operation(journal: ports.Store, archive: ports.Archive) -> None:
    seat = await keep(journal, whole_life("op_1", key_hash="key"))
    await archive.forget(EVER, 10)
    assert await journal.begin(begun("op_2", key_hash="key"), seat) is None
    found = await journal.find_by_key("caller-hash", PATH, "key")
    assert found is not None
    assert found.operation_id == "op_2"


async def test_a_newer_operation_under_the_key_stays_when_an_older_one_goes(
    journal: ports.Store, archive: ports.Archive
) -> None:
    await end_all(journal, "op_1", "op_2", "op_3", key_hash="key")
    assert await archive.forget(START + 2, 10) == 2
    found = await journal.find_by_key("caller-hash", PATH, "key")
    assert found is not None
    assert found.operation_id == "op_3"


async def test_where_a_clock_went_back_the_older_operation_of_a_key_is_found_again(
    journal: ports.Store, archive: ports.Archive
) -> None:
    await keep(journal, [begun("op_1", key_hash="key"), ended("op_1", at=START + 100)])
    await keep(journal, [begun("op_2", key_hash="key"), ended("op_2", at=START - 100)])
    assert await archive.forget(START, 10) == 1
    found = await journal.find_by_key("caller-hash", PATH, "key")
    assert found is not None
    assert found.operation_id == "op_1"
    seat = await journal.take_seat("gw")
    assert await journal.begin(begun("op_3", key_hash="key"), seat, found.operation_id) is None


async def test_a_ledger_goes_with_the_last_operation_that_has_it(
    journal: ports.Store, archive: ports.Archive
) -> None:
    first, ledger = OperationId("op_1"), OperationId("op_1")
    await keep(journal, [begun("op_1"), attempt_started("op_1", "att_1")])
    call_id = await call_a_tool(journal, "op_1", "att_1")
    await journal.append([ended("op_1", at=START + 1)], FIRST_TOKEN, ANSWER)
    again = [begun("op_2", ledger_id=ledger), attempt_started("op_2", "att_2"), ended("op_2", at=START + 2)]
    await keep(journal, again)
    assert await archive.forget(START + 2, 10) == 1
    assert await journal.get(first) is None
    assert await journal.read_answer(first) is None
    assert [call.call_id for call in await journal.read_calls(ledger)] == [call_id]
    assert await journal.read_result(ledger, call_id) == ANSWER
    assert await archive.forget(EVER, 10) == 1
    assert await journal.read_calls(ledger) == ()
    assert await journal.read_result(ledger, call_id) is None


async def test_the_ledger_of_one_that_runs_stays_when_all_the_others_go(
    journal: ports.Store, archive: ports.Archive
) -> None:
    ledger = OperationId("op_1")
    await keep(journal, [begun("op_1"), attempt_started("op_1", "att_1")])
    call_id = await call_a_tool(journal, "op_1", "att_1")
    await keep(journal, [ended("op_1"), begun("op_2", ledger_id=ledger), ended("op_2")])
    await keep(journal, [begun("op_3", ledger_id=ledger), attempt_started("op_3", "att_3")])
    assert await archive.forget(EVER, 10) == 2
    assert [call.call_id for call in await journal.read_calls(ledger)] == [call_id]
    await journal.append([ended("op_3")], FIRST_TOKEN)
    assert await archive.forget(EVER, 10) == 1
    assert await journal.read_calls(ledger) == ()


async def test_a_ledger_stays_with_the_operation_it_is_named_after(
    journal: ports.Store, archive: ports.Archive
) -> None:
    """Where the clock went back, the one that runs it again is forgotten first."""
    ledger = OperationId("op_1")
    await keep(journal, [begun("op_1"), attempt_started("op_1", "att_1")])
    call_id = await call_a_tool(journal, "op_1", "att_1")
    await keep(journal, [ended("op_1", at=START + 9), begun("op_2", ledger_id=ledger), ended("op_2")])
    assert await archive.forget(START + 9, 10) == 1
    assert [call.call_id for call in await journal.read_calls(ledger)] == [call_id]
    assert await archive.forget(EVER, 10) == 1
    assert await journal.read_calls(ledger) == ()


async def test_what_stays_is_as_it_was(store: Place, journal: ports.Store, archive: ports.Archive) -> None:
    await end_all(journal, "op_1", "op_2", "op_3", key_hash="key")
    await journal.append([ended("op_3")], FIRST_TOKEN, ANSWER)
    before = await journal.get(OperationId("op_3"))
    assert await archive.forget(START + 2, 10) == 2
    if store.survives_process_death:
        await journal.close()
        journal = await store.open()
    assert await journal.get(OperationId("op_3")) == before
    assert await journal.read_answer(OperationId("op_3")) == ANSWER
    await keep(journal, whole_life("op_4"))
    assert await list_ids(journal) == ["op_4", "op_3"]


async def test_many_that_forget_at_once_remove_each_operation_once(
    store: Place, journal: ports.Store, archive: ports.Archive
) -> None:
    ids = [f"op_{number:03}" for number in range(120)]
    await end_all(journal, *ids)
    other = await store.open() if store.shared else journal
    counts = await asyncio.gather(*(one.forget(START + 100, 30) for one in (archive, other) * 4))
    assert sum(counts) == 100
    assert await list_ids(journal) == ids[:99:-1]


# --- how much there is ------------------------------------------------------------------------


async def test_operations_are_counted_whether_or_not_they_have_ended(
    journal: ports.Store, archive: ports.Archive
) -> None:
    assert (await archive.measure()).operations == 0
    await end_all(journal, "op_1", "op_2")
    await keep(journal, [begun("op_3")])
    assert (await archive.measure()).operations == 3
    await archive.forget(EVER, 1)
    assert (await archive.measure()).operations == 2


async def test_what_is_forgotten_takes_no_room(journal: ports.Store, archive: ports.Archive) -> None:
    if (await archive.measure()).bytes is None:
        pytest.skip("this store does not tell how much room it takes")
    # The room a store needs for the first ones, which it keeps for later ones.
    await end_all(journal, *(f"op_first_{number}" for number in range(50)))
    await archive.forget(EVER, 100)
    empty = (await archive.measure()).bytes
    large = replace(ANSWER, body=bytes(100_000))
    for number in range(50):
        operation_id = f"op_{number}"
        *life, end = whole_life(operation_id)
        await keep(journal, life)
        await journal.append([end], FIRST_TOKEN, large)
    full = (await archive.measure()).bytes
    while await archive.forget(EVER, 100):
        pass
    left = (await archive.measure()).bytes
    assert empty is not None
    assert full is not None
    assert left is not None
    assert full > 50 * 100_000
    assert left - empty < 100_000


# --- listing ----------------------------------------------------------------------------------


async def test_listing_since_is_oldest_first_by_the_time_of_the_begin(
    journal: ports.Store, archive: ports.Archive
) -> None:
    for operation_id, at in (("op_3", 30.0), ("op_1", 10.0), ("op_2", 20.0), ("op_2b", 20.0), ("op_4", 40.5)):
        await keep(journal, [begun(operation_id, at=at)])
    assert await since(archive, 0) == ["op_1", "op_2", "op_2b", "op_3", "op_4"]
    assert await since(archive, 20.0) == ["op_2", "op_2b", "op_3", "op_4"]
    assert await since(archive, 20.0, limit=1) == ["op_2"]
    assert await since(archive, 20.0, limit=2, after="op_2") == ["op_2b", "op_3"]
    assert await since(archive, 40.5, after="op_4") == []
    assert await since(archive, 1e12) == []
    for limit in (0, -1, -(2**70)):
        assert await since(archive, 0, limit=limit) == []
    assert len(await since(archive, 0, limit=2**70)) == 5


async def test_a_listing_goes_on_where_its_last_operation_is_forgotten(
    journal: ports.Store, archive: ports.Archive
) -> None:
    ids = [f"op_{number}" for number in range(6)]
    for number, operation_id in enumerate(ids):
        await keep(journal, whole_life(operation_id, at=START - 10 + number))
    seen: list[str] = []
    page = await archive.list_since(0.0, 2)
    while page:
        seen += [operation.operation_id for operation in page]
        await archive.forget(EVER, 2)
        page = await archive.list_since(page[-1].created_at, 2, page[-1].operation_id)
    assert seen == ids


async def test_a_closed_store_tells_nothing_of_what_has_been(
    journal: ports.Store, archive: ports.Archive
) -> None:
    await journal.close()
    for work in (archive.forget(EVER, 1), archive.measure(), archive.list_since(0.0, 1)):
        with pytest.raises(JournalUnavailable, match="closed"):
            await work
