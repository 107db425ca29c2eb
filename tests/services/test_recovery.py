"""What a gateway leaves open that is gone is ended with the truth: unknown. And by one other alone."""

import contextlib
from collections.abc import Sequence

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.operation_codec import build_operation_json
from envoy_ext.domain.errors import JournalUnavailable, NotOwner
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import Record
from tests.support.clock import ManualClock
from tests.support.journals import keep, leave
from tests.support.records import (
    attempt_ended,
    attempt_started,
    begun,
    first_delta_sent,
    whole_life,
)
from tests.support.recovering import POLICY, Gateway, recover

GONE_AFTER_S = POLICY.ttl_s + POLICY.margin_s


async def get(journal: MemoryJournal, operation_id: str = "op_1") -> Operation:
    operation = await journal.get(OperationId(operation_id))
    assert operation is not None
    return operation


async def open_of_an_earlier_life(*records: Record) -> MemoryJournal:
    journal = MemoryJournal()
    await leave(journal, await keep(journal, records))
    return journal


# --- after a restart ------------------------------------------------------------------------


async def test_every_open_operation_is_ended_as_unknown_and_told_as_it_ended() -> None:
    journal = await open_of_an_earlier_life(
        begun("op_1"),
        *whole_life("op_2"),
        *(begun("op_3"), attempt_started("op_3"), first_delta_sent("op_3")),
    )
    gateway = await Gateway(journal).start()
    await gateway.recovery.look()
    assert [operation.operation_id for operation in gateway.ended] == ["op_1", "op_3"]
    for operation, phase in zip(gateway.ended, (Phase.QUEUED, Phase.DECODE), strict=True):
        assert operation == await get(journal, operation.operation_id)
        assert (operation.ending, operation.state) == (Ending.UNKNOWN, OperationState.FAILED)
        assert (operation.phase, operation.ended_at) == (phase, gateway.clock.wall())
        assert (operation.owner, operation.token) == (gateway.keeper.seat, 2)
    assert [operation async for operation in journal.orphaned()] == []


async def test_its_open_attempts_are_ended_and_the_others_stay_as_they_are() -> None:
    died = attempt_ended(attempt="att_1", outcome=AttemptOutcome.REPLICA_DIED)
    journal = await open_of_an_earlier_life(
        begun(),
        attempt_started(attempt="att_1"),
        died,
        attempt_started(attempt="att_2", number=2, replica="b"),
    )
    (lost,) = await recover(journal)
    first, second = lost.attempts
    assert (first.outcome, first.detail) == (AttemptOutcome.REPLICA_DIED, "via_upstream")
    assert (second.outcome, second.detail) == (AttemptOutcome.UNKNOWN, "gateway_gone")
    assert (second.replica, second.ended_at) == ("b", lost.ended_at)


async def test_an_operation_that_was_cut_after_its_first_delta_claims_no_count() -> None:
    (lost,) = await recover(await open_of_an_earlier_life(begun(), attempt_started(), first_delta_sent()))
    shown = build_operation_json(lost)
    assert shown["first_delta_sent"] is True
    assert shown["delivered_output_tokens"] is None
    assert (shown["state"], shown["ending"]) == ("failed", "unknown")


async def test_finished_operations_are_not_touched() -> None:
    journal = await open_of_an_earlier_life(*whole_life("op_1"))
    recorded = journal.records
    assert await recover(journal) == []
    assert journal.records == recorded


async def test_recovering_twice_ends_nothing_twice() -> None:
    journal = await open_of_an_earlier_life(begun(), attempt_started())
    assert len(await recover(journal)) == 1
    recorded = journal.records
    assert await recover(journal) == []
    assert journal.records == recorded


@pytest.mark.parametrize("call", ["take_over", "append"])
async def test_a_recovery_that_the_journal_interrupted_is_finished_by_the_next_look(call: str) -> None:
    class FailsOnce(MemoryJournal):
        calls_left = 100

        def count(self, name: str) -> None:
            self.calls_left -= name == call
            if self.calls_left == -1:
                raise JournalUnavailable("disk full")

        async def take_over(
            self, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
        ) -> Operation:
            self.count("take_over")
            return await super().take_over(operation_id, seen, owner, at)

        async def append(
            self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
        ) -> None:
            self.count("append")
            await super().append(records, token, answer)

    journal = FailsOnce()
    await leave(journal, await keep(journal, [begun("op_1"), begun("op_2"), begun("op_3")]))
    gateway = await Gateway(journal).start()
    journal.calls_left = 1
    with pytest.raises(JournalUnavailable):
        await gateway.recovery.look()
    journal.calls_left = 100
    await gateway.recovery.look()
    assert sorted(operation.operation_id for operation in gateway.ended) == ["op_1", "op_2", "op_3"]
    assert {(await get(journal, f"op_{number}")).token for number in (1, 2, 3)} == {2}


async def test_a_takeover_whose_answer_was_lost_is_finished_by_the_next_look() -> None:
    class LosesAnAnswer(MemoryJournal):
        lost = 0

        async def take_over(
            self, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
        ) -> Operation:
            taken = await super().take_over(operation_id, seen, owner, at)
            self.lost += 1
            if self.lost == 1:
                raise JournalUnavailable("no answer in time")
            return taken

    journal = LosesAnAnswer()
    await leave(journal, await keep(journal, [begun("op_1")]))
    gateway = await Gateway(journal).start()
    with pytest.raises(JournalUnavailable):
        await gateway.recovery.look()
    assert [operation async for operation in journal.orphaned()] == [], "it is this gateway's already"
    await gateway.recovery.look()
    assert [operation.operation_id for operation in gateway.ended] == ["op_1"]
    assert (await get(journal)).token == 2


# --- the fence ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "waits"),
    [
        ([begun(key_hash="key"), attempt_started()], True),
        (
            [begun(key_hash="key"), attempt_started(), attempt_ended(outcome=AttemptOutcome.REPLICA_DIED)],
            True,
        ),
        ([begun(key_hash="key")], False),
        ([begun(key_hash="key"), attempt_started(), first_delta_sent()], False),
        ([begun(), attempt_started()], False),
    ],
    ids=["may still compute", "may still hold a lease", "ran nowhere", "never runs again", "has no key"],
)
async def test_what_could_run_again_is_ended_when_its_attempts_can_act_no_more(
    records: list[Record], waits: bool
) -> None:
    gateway = await Gateway(await open_of_an_earlier_life(*records)).start()
    await gateway.recovery.look()
    assert [operation.token for operation in gateway.ended] == ([] if waits else [2])
    gateway.clock.advance(GONE_AFTER_S - 0.01)
    await gateway.recovery.look()
    assert len(gateway.ended) == (0 if waits else 1)
    gateway.clock.advance(0.01)
    await gateway.recovery.look()
    assert [operation.token for operation in gateway.ended] == [2]


# --- several gateways -----------------------------------------------------------------------


class TwoGateways:
    """At one store, each with a clock of its own; `a` has begun an operation."""

    def __init__(self, *records: Record) -> None:
        self.journal = MemoryJournal(exclusive=False)
        self.a, self.b = Gateway(self.journal, ManualClock(7.0)), Gateway(self.journal, ManualClock(1e6))
        self.records = records or (begun(key_hash="key"), attempt_started())

    async def start(self) -> "TwoGateways":
        for gateway in (self.a, self.b):
            await gateway.start()
        await keep(self.journal, self.records, self.a.keeper.seat)
        return self

    async def pass_time(self, seconds: float, *at_work: Gateway) -> None:
        """Time passes for both; those at work beat and look around as often as they should."""
        left = seconds
        while left > 0:
            step = min(left, POLICY.renew_s)
            left -= step
            for gateway in (self.a, self.b):
                gateway.clock.advance(step)
            for gateway in at_work:
                await gateway.keeper.beat()
                await gateway.recovery.look()


async def test_a_gateway_that_beats_keeps_what_it_has() -> None:
    two = await TwoGateways().start()
    await two.pass_time(10 * GONE_AFTER_S, two.a, two.b)
    assert (await get(two.journal)).token == FIRST_TOKEN
    assert two.a.keeper.may_act
    assert two.b.keeper.may_act


@pytest.mark.parametrize("reads_work", [True, False])
async def test_when_a_store_comes_back_nobody_is_found_gone_for_the_time_it_was_down(
    reads_work: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = await TwoGateways().start()
    await two.pass_time(POLICY.renew_s, two.a, two.b)
    for _ in range(6):  # no beat reaches the store
        await two.pass_time(POLICY.renew_s)
        with monkeypatch.context() as down:
            if not reads_work:
                down.setattr(two.journal, "read_seats", refuse_to_be_read)
            with contextlib.suppress(JournalUnavailable):
                await two.b.recovery.look()
    await two.b.keeper.beat()
    for _ in range(2):
        await two.b.recovery.look()
    await two.a.keeper.beat()
    assert two.a.lost_seats == []
    assert two.a.keeper.may_act
    await two.pass_time(GONE_AFTER_S + POLICY.renew_s, two.b)
    assert (await get(two.journal)).owner == two.b.keeper.seat, "and who stands still is found gone"


async def refuse_to_be_read() -> None:
    raise JournalUnavailable("it is away")


async def test_a_failed_look_begins_the_watch_anew_also_while_this_one_still_has_its_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = await TwoGateways().start()
    await two.b.recovery.look()
    await two.pass_time(POLICY.ttl_s - 0.1)
    with monkeypatch.context() as down:
        down.setattr(two.journal, "read_seats", refuse_to_be_read)
        with pytest.raises(JournalUnavailable):
            await two.b.recovery.look()
    await two.b.keeper.beat()
    await two.pass_time(POLICY.margin_s + 0.1)
    await two.b.recovery.look()
    await two.a.keeper.beat()
    assert two.a.lost_seats == []


async def test_a_gateway_that_stands_still_loses_its_operations_to_one_that_runs() -> None:
    two = await TwoGateways().start()
    old = two.a.keeper.seat
    await two.pass_time(POLICY.ttl_s, two.b)
    assert not two.a.keeper.may_act, "before anybody can have taken anything"
    assert (await get(two.journal)).token == FIRST_TOKEN
    await two.pass_time(2 * POLICY.renew_s, two.b)
    taken = await get(two.journal)
    assert (taken.token, taken.owner, taken.ending) == (2, two.b.keeper.seat, None)
    with pytest.raises(NotOwner):
        await two.journal.append([first_delta_sent()], FIRST_TOKEN)

    await two.pass_time(GONE_AFTER_S + POLICY.renew_s, two.b)
    assert [(one.token, one.ending) for one in two.b.ended] == [(2, Ending.UNKNOWN)]

    await two.a.keeper.beat()
    assert two.a.lost_seats == [old]
    assert two.a.keeper.seat not in (old, two.b.keeper.seat)
    assert two.a.keeper.may_act
    assert not two.a.keeper.holds(old)


async def test_every_wait_for_a_gone_gateway_is_bounded() -> None:
    two = await TwoGateways().start()
    waited = 0.0
    while not two.b.ended:
        await two.pass_time(0.5, two.b)
        waited += 0.5
        assert waited < 60
    # Watching, fencing, and a look that comes late at each of the two.
    assert waited <= 2 * (GONE_AFTER_S + POLICY.renew_s)


async def test_a_gateway_that_was_late_and_not_found_out_goes_on_in_its_seat() -> None:
    two = await TwoGateways().start()
    seat = two.a.keeper.seat
    await two.pass_time(POLICY.ttl_s + 0.5, two.b)
    assert not two.a.keeper.may_act
    await two.a.keeper.beat()
    assert two.a.keeper.may_act
    assert two.a.keeper.holds(seat)
    assert two.a.lost_seats == []


async def test_a_gateway_that_was_frozen_itself_judges_nobody_by_what_it_saw_before() -> None:
    two = await TwoGateways().start()
    await two.b.recovery.look()
    await two.pass_time(10 * GONE_AFTER_S, two.a)
    await two.b.keeper.beat()
    await two.b.recovery.look()
    assert (await get(two.journal)).token == FIRST_TOKEN
    assert two.a.keeper.may_act


async def test_a_gateway_without_a_seat_takes_nothing_over() -> None:
    two = await TwoGateways().start()
    await leave(two.journal, two.a.keeper.seat)
    two.b.clock.advance(POLICY.ttl_s)
    await two.b.recovery.look()
    assert (await get(two.journal)).token == FIRST_TOKEN


async def test_a_gateway_that_resigns_is_followed_at_once_and_the_token_still_grows() -> None:
    two = await TwoGateways().start()
    await two.a.keeper.resign()
    await two.b.recovery.look()
    assert (await get(two.journal)).token == 2
    await two.b.keeper.resign()
    third = await Gateway(two.journal, ManualClock(50.0)).start()
    await third.recovery.look()
    assert (await get(two.journal)).token == 3
    for older in (1, 2):
        with pytest.raises(NotOwner):
            await two.journal.append([first_delta_sent()], FencingToken(older))


async def test_what_a_gateway_took_over_and_lost_with_its_seat_is_ended_by_the_next() -> None:
    two = await TwoGateways().start()
    await two.a.keeper.resign()
    await two.b.recovery.look()
    third = await Gateway(two.journal, ManualClock(50.0)).start()
    await leave(two.journal, two.b.keeper.seat)
    await third.recovery.look()
    await two.pass_time(GONE_AFTER_S, two.b)
    assert two.b.ended == []
    third.clock.advance(GONE_AFTER_S)
    await third.keeper.beat()
    await third.recovery.look()
    assert [operation.token for operation in third.ended] == [3]


async def test_a_store_that_is_away_takes_no_seat_and_gives_none() -> None:
    class Away(MemoryJournal):
        away = False

        async def beat(self, seat: SeatId, number: int) -> None:
            if self.away:
                raise JournalUnavailable("no way there")
            await super().beat(seat, number)

    journal = Away(exclusive=False)
    gateway = await Gateway(journal).start()
    seat = gateway.keeper.seat
    journal.away = True
    for _ in range(4):
        gateway.clock.advance(POLICY.renew_s)
        await gateway.keeper.beat()
    assert not gateway.keeper.may_act
    journal.away = False
    gateway.clock.advance(POLICY.renew_s)
    await gateway.keeper.beat()
    assert gateway.keeper.may_act
    assert gateway.keeper.seat == seat


async def test_a_store_that_nobody_else_can_use_needs_no_beats() -> None:
    gateway = await Gateway(MemoryJournal()).start()
    gateway.clock.advance(1e6)
    assert gateway.keeper.may_act
    assert gateway.keeper.holds(gateway.keeper.seat)
    await gateway.keeper.run()
