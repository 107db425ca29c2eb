"""What every journal store promises, whatever it keeps its records in.

A store that cannot do something is left out by a named property of `Store`, with the reason.
"""

import asyncio
from dataclasses import replace

import pytest

from envoy_ext.domain.errors import ImpossibleEvent, JournalUnavailable, NotOwner
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.operation import NO_TOKEN
from envoy_ext.domain.outcomes import AttemptOutcome, Ending
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.ports import Journal
from tests.support.journals import keep, leave
from tests.support.records import (
    START,
    attempt_ended,
    attempt_started,
    begun,
    ended,
    first_delta_sent,
    fold,
    interrupted,
    owned,
    whole_life,
)

PATH = "/v1/chat/completions"


async def list_ids(journal: Journal, limit: int = 100, before: str | None = None) -> list[str]:
    found = await journal.list_recent(limit, None if before is None else OperationId(before))
    return [operation.operation_id for operation in found]


async def orphaned_ids(journal: Journal) -> list[str]:
    return [operation.operation_id async for operation in journal.orphaned()]


async def test_what_is_appended_is_found_as_the_fold_of_its_records(journal: Journal) -> None:
    first, *later = whole_life("op_1")
    seat = await keep(journal, [first])
    told = [first, owned(seat)]
    assert await journal.get(OperationId("op_1")) == fold(*told)
    for record in later:
        await journal.append([record], FIRST_TOKEN)
        told.append(record)
        assert await journal.get(OperationId("op_1")) == fold(*told)


async def test_an_append_of_nothing_is_done_at_once(journal: Journal) -> None:
    await journal.append([], FIRST_TOKEN)
    assert await list_ids(journal) == []


async def test_the_order_of_records_in_a_call_is_kept(journal: Journal) -> None:
    await keep(journal, [begun(), interrupted(at=START + 5), ended(at=START + 6)])
    operation = await journal.get(OperationId("op_1"))
    assert operation is not None
    assert (operation.ending, operation.ended_at) == (Ending.UPSTREAM_BROKE, START + 5)


async def test_a_call_with_a_record_nobody_can_write_leaves_none_of_its_records(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    with pytest.raises(ValueError, match=r"(?i)float"):
        await journal.begin(begun("op_1", key_hash="key", at=float("nan")), seat)
    assert await list_ids(journal) == []
    assert await journal.begin(begun("op_1", key_hash="key"), seat) is None
    with pytest.raises(ValueError, match=r"(?i)float"):
        await journal.append([attempt_started(), first_delta_sent(at=float("nan"))], FIRST_TOKEN)
    assert await journal.get(OperationId("op_1")) == fold(begun("op_1", key_hash="key"), owned(seat))


async def test_the_records_of_a_call_are_of_one_operation(journal: Journal) -> None:
    await keep(journal, [begun("op_1"), begun("op_2")])
    with pytest.raises(ImpossibleEvent, match="several operations"):
        await journal.append([ended("op_1"), ended("op_2")], FIRST_TOKEN)
    assert {(await journal.get(OperationId(one))).ending for one in ("op_1", "op_2")} == {None}


async def test_records_that_come_again_change_nothing(journal: Journal) -> None:
    records = whole_life("op_1", key_hash="key")
    seat = await keep(journal, records)
    once = await journal.get(OperationId("op_1"))
    await journal.append([*records[1:], interrupted("op_1", at=START + 99)], FIRST_TOKEN)
    assert await journal.begin(replace(records[0], at=START + 99), seat) is None
    assert await journal.get(OperationId("op_1")) == once
    assert await list_ids(journal) == ["op_1"]
    await leave(journal, seat)
    assert await orphaned_ids(journal) == []


async def test_an_end_of_an_attempt_after_the_end_of_its_operation_is_kept(journal: Journal) -> None:
    await keep(journal, [begun(), attempt_started(), first_delta_sent(), interrupted()])
    await keep(journal, [attempt_ended(outcome=AttemptOutcome.REPLICA_DIED)])
    operation = await journal.get(OperationId("op_1"))
    assert operation is not None
    assert operation.attempts[0].outcome is AttemptOutcome.REPLICA_DIED
    assert operation.ending is Ending.UPSTREAM_BROKE


async def test_of_an_operation_that_has_not_begun_nothing_is_taken(journal: Journal) -> None:
    for token in (NO_TOKEN, FIRST_TOKEN):
        with pytest.raises(NotOwner):
            await journal.append([attempt_started(), ended()], token)
    await keep(journal, [begun()])
    operation = await journal.get(OperationId("op_1"))
    assert operation is not None
    assert (operation.attempts, operation.ending) == ((), None)


@pytest.mark.parametrize("unknown", ["op_2", "", "op_1\x00", "op_\udcff", "' OR 1=1 --"])
async def test_an_operation_that_is_not_there_is_none(journal: Journal, unknown: str) -> None:
    await keep(journal, whole_life("op_1"))
    assert await journal.get(OperationId(unknown)) is None
    assert await list_ids(journal, before=unknown) == []


async def test_text_that_is_not_utf_8_comes_back_as_it_was(journal: Journal) -> None:
    odd = "/v1/caf\udce9\x00?\U0001f600"
    record = begun(path=odd, caller=odd, key_hash=odd, model=odd, request_id=odd)
    seat = await keep(journal, [record])
    assert await journal.get(OperationId("op_1")) == fold(record, owned(seat))
    assert await journal.find_by_key(odd, odd, odd) == fold(record, owned(seat))


async def test_a_key_finds_the_newest_operation_begun_under_it(journal: Journal) -> None:
    await keep(journal, [begun("op_1", key_hash="key")])
    # Newest is the last that began in the journal: the wall clock may have gone back between them.
    await keep(journal, [begun("op_2", key_hash="key", at=START - 1000)])
    await keep(journal, whole_life("op_1")[1:])
    found = await journal.find_by_key("caller-hash", PATH, "key")
    assert found is not None
    assert found.operation_id == "op_2"


async def test_a_key_belongs_to_one_caller_and_one_path(journal: Journal) -> None:
    await keep(journal, [begun("op_1", key_hash="key"), begun("op_2", key_hash=None)])
    assert await journal.find_by_key("another-caller", PATH, "key") is None
    assert await journal.find_by_key("caller-hash", "/v1/embeddings", "key") is None
    assert await journal.find_by_key("caller-hash", PATH, "another-key") is None
    assert await journal.find_by_key("caller-hash", PATH, "") is None
    assert await journal.find_by_key("caller-hash", PATH, "key") is not None


async def test_listing_is_newest_first_and_continues_where_it_stopped(journal: Journal) -> None:
    ids = [f"op_{number:02}" for number in range(10)]
    for number, operation_id in enumerate(ids):
        await keep(journal, [begun(operation_id, at=START - number)])
    assert await list_ids(journal) == ids[::-1]
    assert await list_ids(journal, limit=4) == ids[:5:-1]
    assert await list_ids(journal, limit=4, before="op_06") == ["op_05", "op_04", "op_03", "op_02"]
    assert await list_ids(journal, limit=4, before="op_02") == ["op_01", "op_00"]
    assert await list_ids(journal, before="op_00") == []


@pytest.mark.parametrize("limit", [0, -1, -(2**70)])
async def test_a_limit_below_one_lists_nothing(journal: Journal, limit: int) -> None:
    await keep(journal, [begun("op_1")])
    assert await list_ids(journal, limit=limit) == []


async def test_a_limit_above_every_number_lists_all(journal: Journal) -> None:
    await keep(journal, [begun("op_1"), begun("op_2")])
    assert await list_ids(journal, limit=2**70) == ["op_2", "op_1"]


async def test_two_hundred_tasks_append_at_once_and_each_finds_its_records_in_order(journal: Journal) -> None:
    seat = await journal.take_seat("gw")

    async def live(operation_id: str) -> None:
        first, *later = whole_life(operation_id, key_hash=operation_id)
        await keep(journal, [first], seat)
        for record in later:
            await journal.append([record], FIRST_TOKEN)
        expected = fold(first, owned(seat, operation_id), *later)
        assert await journal.get(OperationId(operation_id)) == expected
        assert await journal.find_by_key("caller-hash", PATH, operation_id) == expected

    ids = [f"op_{number}" for number in range(200)]
    await asyncio.gather(*(live(operation_id) for operation_id in ids))
    assert sorted(await list_ids(journal, limit=1_000)) == sorted(ids)
    await leave(journal, seat)
    assert await orphaned_ids(journal) == []


async def test_the_records_of_a_call_are_seen_all_or_none(journal: Journal) -> None:
    ids = [f"op_{number}" for number in range(100)]
    seat = await keep(journal, [begun(operation_id) for operation_id in ids])
    await leave(journal, seat)
    writers = [
        asyncio.create_task(journal.append(whole_life(operation_id)[1:], FIRST_TOKEN)) for operation_id in ids
    ]
    seen = 0
    while not all(writer.done() for writer in writers):
        await asyncio.sleep(0)  # a store in memory answers without ever letting another task run
        listed = await journal.list_recent(200)
        whole = [operation for operation in listed if operation.ending is not None]
        assert [operation for operation in whole if operation.attempts[0].outcome is None] == []
        assert [one for one in listed if one.attempts and one.ending is None] == []
        assert len(whole) >= seen
        seen = len(whole)
    await asyncio.gather(*writers)
    assert await orphaned_ids(journal) == []


async def test_a_closed_journal_refuses_everything_and_may_be_closed_again(journal: Journal) -> None:
    seat = await keep(journal, [begun("op_1")])
    await journal.close()
    await journal.close()
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.begin(begun("op_2"), seat)
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.append([], FIRST_TOKEN)
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.take_over(OperationId("op_1"), FIRST_TOKEN, seat, START)
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.take_seat("gw")
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.beat(seat, 2)
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.read_seats()
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.remove_seat(seat, 1)
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.get(OperationId("op_1"))
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.find_by_key("caller-hash", PATH, "key")
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.list_recent(1)
    with pytest.raises(JournalUnavailable, match="closed"):
        await anext(aiter(journal.orphaned()))


async def test_closing_writes_what_was_accepted(store, journal: Journal) -> None:
    ids = {f"op_{number}" for number in range(50)}
    seat = await journal.take_seat("gw")
    appends = [asyncio.create_task(journal.begin(begun(operation_id), seat)) for operation_id in ids]
    # Every task runs up to its first wait, then one turn later the close overtakes them all.
    await asyncio.sleep(0)
    await journal.close()
    await asyncio.gather(*appends)
    if not store.survives_process_death:
        pytest.skip("what it accepted is gone with the journal; accepting is all that can be seen")
    reopened = await store.open()
    assert set(await list_ids(reopened)) == ids


async def test_a_journal_opened_again_knows_everything_and_goes_on(store, journal: Journal) -> None:
    if not store.survives_process_death:
        pytest.skip("a store in memory ends with its journal")
    seat = await keep(journal, whole_life("op_1", key_hash="key"))
    first = await journal.get(OperationId("op_1"))
    await keep(journal, [begun("op_2", key_hash="key")], seat)
    await journal.close()
    reopened = await store.open()
    assert await reopened.get(OperationId("op_1")) == first
    assert await orphaned_ids(reopened) == ([] if store.shared else ["op_2"])
    await keep(reopened, [ended("op_2"), begun("op_3")])
    assert await list_ids(reopened) == ["op_3", "op_2", "op_1"]
    assert await orphaned_ids(reopened) == []
