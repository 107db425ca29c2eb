"""Who owns an operation, in every store: of two owners, the one with the older token appends nothing."""

import asyncio

import pytest

from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.operation import NO_TOKEN
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.ports import Journal
from tests.support.journals import keep, leave
from tests.support.records import (
    START,
    attempt_started,
    begun,
    ended,
    first_delta_sent,
    fold,
    owned,
    whole_life,
)

OPERATION = OperationId("op_1")
SECOND = FencingToken(2)
NOBODY = SeatId("gw/4711")


@pytest.fixture
async def other(store, journal: Journal) -> Journal:
    """The store as another gateway has it open."""
    if not store.shared:
        pytest.skip("one process has this file for itself")
    return await store.open()


# --- seats ----------------------------------------------------------------------------------


async def test_no_seat_is_given_out_twice_whoever_asks_and_whatever_was_removed(journal: Journal) -> None:
    first = await journal.take_seat("gw")
    await leave(journal, first)
    second, third = await journal.take_seat("gw"), await journal.take_seat("gw")
    await leave(journal, third)
    fourth = await journal.take_seat("gw")
    assert len({first, second, third, fourth}) == 4
    assert all(seat.startswith("gw/") for seat in (first, second, third, fourth))
    assert await journal.read_seats() == {second: 1, fourth: 1}


async def test_a_beat_is_seen_and_an_older_one_changes_nothing(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    for number, seen in ((2, 2), (5, 5), (3, 5), (5, 5)):
        await journal.beat(seat, number)
        assert await journal.read_seats() == {seat: seen}


async def test_a_seat_is_removed_only_as_it_was_seen(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    await journal.beat(seat, 2)
    assert not await journal.remove_seat(seat, 1)
    assert await journal.read_seats() == {seat: 2}
    assert await journal.remove_seat(seat, 2)
    assert await journal.remove_seat(seat, 2), "it is gone, whoever has removed it"
    assert await journal.read_seats() == {}


async def test_a_removed_seat_never_comes_back(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    await leave(journal, seat)
    for number in (1, 2, 99):
        with pytest.raises(SeatLost):
            await journal.beat(seat, number)
    assert await journal.read_seats() == {}


# --- beginning ------------------------------------------------------------------------------


async def test_whoever_begins_an_operation_owns_it_with_the_first_token(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    assert await journal.begin(begun(), seat) is None
    operation = await journal.get(OPERATION)
    assert operation == fold(begun(), owned(seat))
    assert operation is not None
    assert (operation.owner, operation.token) == (seat, FIRST_TOKEN)


async def test_a_gateway_without_a_seat_begins_nothing(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    await leave(journal, seat)
    for one in (seat, NOBODY):
        with pytest.raises(SeatLost):
            await journal.begin(begun(), one)
    assert await journal.get(OPERATION) is None


async def test_a_key_that_has_an_operation_begins_no_other_and_names_it(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    await journal.begin(begun("op_1", key_hash="key"), seat)
    for after in (None, OperationId("op_0")):
        holder = await journal.begin(begun("op_2", key_hash="key"), seat, after)
        assert holder == await journal.get(OPERATION)
    assert await journal.get(OperationId("op_2")) is None
    assert await journal.begin(begun("op_2", key_hash="key"), seat, OPERATION) is None
    found = await journal.find_by_key("caller-hash", "/v1/chat/completions", "key")
    assert found is not None
    assert found.operation_id == "op_2"


async def test_a_key_of_another_caller_or_path_is_another_key(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    await journal.begin(begun("op_1", key_hash="key"), seat)
    assert await journal.begin(begun("op_2", key_hash="key", caller="another"), seat) is None
    assert await journal.begin(begun("op_3", key_hash="key", path="/v1/embeddings"), seat) is None
    assert await journal.begin(begun("op_4", key_hash=None), seat) is None


async def test_a_begin_that_comes_again_begins_nothing_new(journal: Journal) -> None:
    seat = await journal.take_seat("gw")
    for _ in range(2):
        assert await journal.begin(begun(key_hash="key"), seat) is None
    assert [operation.operation_id for operation in await journal.list_recent(10)] == ["op_1"]


async def test_a_begin_that_comes_again_after_a_takeover_is_refused(journal: Journal) -> None:
    first = await keep(journal, [begun()])
    await leave(journal, first)
    await journal.take_over(OPERATION, FIRST_TOKEN, await journal.take_seat("gw"), START)
    with pytest.raises(SeatLost):
        await journal.begin(begun(), first)
    with pytest.raises(NotOwner):
        await journal.begin(begun(), await journal.take_seat("gw"))


async def test_of_two_gateways_with_one_key_at_once_one_begins_it(journal: Journal, other: Journal) -> None:
    for number in range(20):
        gateways = [(one, await one.take_seat("gw")) for one in (journal, other)]
        begins = [
            one.begin(begun(f"op_{number}_{seat}", key_hash=f"key-{number}"), seat) for one, seat in gateways
        ]
        answers = await asyncio.gather(*begins)
        (holder,) = [answer for answer in answers if answer is not None]
        assert holder.owner == gateways[answers.index(None)][1]


# --- appending and taking over --------------------------------------------------------------


async def test_after_a_takeover_the_older_owner_appends_nothing(journal: Journal) -> None:
    first = await keep(journal, [begun(), attempt_started()])
    await leave(journal, first)
    second = await journal.take_seat("gw")
    taken = await journal.take_over(OPERATION, FIRST_TOKEN, second, START + 9)
    expected = fold(begun(), owned(first), attempt_started(), owned(second, token=2, at=START + 9))
    assert taken == await journal.get(OPERATION) == expected
    for records in ([first_delta_sent()], [ended()], whole_life()[1:]):
        with pytest.raises(NotOwner):
            await journal.append(records, FIRST_TOKEN)
    assert await journal.get(OPERATION) == expected
    await journal.append([ended()], SECOND)
    operation = await journal.get(OPERATION)
    assert operation is not None
    assert operation.ending is not None


async def test_a_token_that_nobody_has_yet_appends_nothing(journal: Journal) -> None:
    await keep(journal, [begun()])
    for token in (NO_TOKEN, SECOND):
        with pytest.raises(NotOwner):
            await journal.append([ended()], token)


async def test_an_owner_with_a_seat_loses_nothing(journal: Journal) -> None:
    await keep(journal, [begun()])
    second = await journal.take_seat("gw")
    with pytest.raises(NotOwner):
        await journal.take_over(OPERATION, FIRST_TOKEN, second, START)
    await journal.append([ended()], FIRST_TOKEN)


async def test_a_gateway_without_a_seat_takes_nothing_over(journal: Journal) -> None:
    await leave(journal, await keep(journal, [begun()]))
    with pytest.raises(SeatLost):
        await journal.take_over(OPERATION, FIRST_TOKEN, NOBODY, START)
    await journal.append([attempt_started()], FIRST_TOKEN)


async def test_an_orphan_is_taken_over_only_as_it_was_seen(journal: Journal) -> None:
    await leave(journal, await keep(journal, [begun()]))
    second = await journal.take_seat("gw")
    await journal.take_over(OPERATION, FIRST_TOKEN, second, START)
    await leave(journal, second)
    third = await journal.take_seat("gw")
    for seen in (NO_TOKEN, FIRST_TOKEN, FencingToken(3)):
        with pytest.raises(NotOwner):
            await journal.take_over(OPERATION, seen, third, START)
    assert (await journal.take_over(OPERATION, SECOND, third, START)).token == 3


async def test_a_takeover_that_comes_again_changes_nothing_and_another_seat_gets_nothing(
    journal: Journal,
) -> None:
    await leave(journal, await keep(journal, [begun()]))
    second, third = await journal.take_seat("gw"), await journal.take_seat("gw")
    taken = await journal.take_over(OPERATION, FIRST_TOKEN, second, START)
    await journal.append([attempt_started()], SECOND)
    again = await journal.take_over(OPERATION, FIRST_TOKEN, second, START + 9)
    assert again == await journal.get(OPERATION)
    assert (again.token, len(again.attempts)) == (taken.token, 1)
    with pytest.raises(NotOwner):
        await journal.take_over(OPERATION, FIRST_TOKEN, third, START)


async def test_what_has_not_begun_is_not_taken_over(journal: Journal) -> None:
    with pytest.raises(NotOwner):
        await journal.take_over(OPERATION, NO_TOKEN, await journal.take_seat("gw"), START)


async def test_tokens_only_grow_also_when_an_owner_resigns(journal: Journal) -> None:
    seat = await keep(journal, [begun()])
    tokens = [FIRST_TOKEN]
    for _ in range(4):
        await leave(journal, seat)  # as a gateway that stops in good order does
        seat = await journal.take_seat("gw")
        taken = await journal.take_over(OPERATION, tokens[-1], seat, START)
        tokens.append(taken.token)
        for older in tokens[:-1]:
            with pytest.raises(NotOwner):
                await journal.append([ended()], older)
    assert tokens == [1, 2, 3, 4, 5]
    await journal.append([ended()], tokens[-1])


async def test_of_many_that_take_one_operation_over_one_gets_it(journal: Journal, other: Journal) -> None:
    await leave(journal, await keep(journal, [begun()]))
    seats = [await one.take_seat("gw") for one in (journal, other) * 4]
    tries = [
        one.take_over(OPERATION, FIRST_TOKEN, seat, START)
        for one, seat in zip((journal, other) * 4, seats, strict=True)
    ]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(answer) for answer in answers].count(NotOwner) == 7
    operation = await journal.get(OPERATION)
    assert operation is not None
    assert (operation.token, operation.owner) == (SECOND, seats[answers.index(operation)])


async def test_an_append_that_races_a_takeover_is_in_what_the_new_owner_is_given_or_nowhere(
    journal: Journal, other: Journal
) -> None:
    for number in range(20):
        operation_id = f"op_{number}"
        await leave(journal, await keep(journal, [begun(operation_id), attempt_started(operation_id)]))
        seat = await other.take_seat("gw")
        written, taken = await asyncio.gather(
            journal.append([first_delta_sent(operation_id)], FIRST_TOKEN),
            other.take_over(OperationId(operation_id), FIRST_TOKEN, seat, START),
            return_exceptions=True,
        )
        assert not isinstance(taken, BaseException)
        assert taken.first_delta_sent == (written is None)
        assert taken == await journal.get(OperationId(operation_id))
        await other.append([ended(operation_id)], SECOND)


# --- orphans --------------------------------------------------------------------------------


async def orphaned_ids(journal: Journal) -> list[str]:
    return [operation.operation_id async for operation in journal.orphaned()]


async def test_orphaned_are_those_that_began_and_did_not_end_and_whose_owner_is_gone(
    journal: Journal,
) -> None:
    gone = await keep(journal, [begun(f"op_{number}", at=START - number) for number in range(5)])
    await keep(journal, [begun("op_of_another")])
    await keep(journal, [ended("op_2"), ended("op_4")])
    assert await orphaned_ids(journal) == []
    await leave(journal, gone)
    assert await orphaned_ids(journal) == ["op_0", "op_1", "op_3"]
    await journal.take_over(OperationId("op_1"), FIRST_TOKEN, await journal.take_seat("gw"), START)
    assert await orphaned_ids(journal) == ["op_0", "op_3"]


async def test_orphans_may_be_taken_over_while_walking_over_them(journal: Journal) -> None:
    ids = [f"op_{number:03}" for number in range(600)]
    gone = await journal.take_seat("gw")
    await asyncio.gather(*(journal.begin(begun(operation_id), gone) for operation_id in ids))
    await leave(journal, gone)
    seat = await journal.take_seat("gw")
    seen, takeovers = [], []
    async for operation in journal.orphaned():
        seen.append(operation.operation_id)
        take_over = journal.take_over(operation.operation_id, operation.token, seat, START)
        takeovers.append(asyncio.create_task(take_over))
        if len(takeovers) % 100 == 0:
            await asyncio.gather(*takeovers)
    await asyncio.gather(*takeovers)
    assert seen == ids
    assert await orphaned_ids(journal) == []


# --- several at one store -------------------------------------------------------------------


async def test_what_one_writes_the_other_reads(journal: Journal, other: Journal) -> None:
    assert not journal.exclusive
    assert not other.exclusive
    seat = await keep(journal, whole_life("op_1", key_hash="key"))
    assert await other.get(OPERATION) == await journal.get(OPERATION)
    assert await other.read_seats() == {seat: 1}
    await other.beat(seat, 2)
    assert await journal.read_seats() == {seat: 2}


async def test_one_that_closes_leaves_the_other_at_work(store, journal: Journal, other: Journal) -> None:
    if not store.survives_process_death:
        pytest.skip("in memory both are one")
    await keep(journal, whole_life("op_1"))
    await journal.close()
    await keep(other, whole_life("op_2"))
    assert [operation.operation_id for operation in await other.list_recent(5)] == ["op_2", "op_1"]
    with pytest.raises(JournalUnavailable, match="closed"):
        await journal.get(OPERATION)
