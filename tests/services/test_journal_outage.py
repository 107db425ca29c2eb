"""What the services do around the journal: a record that fails, is late, or is cut off by a kill."""

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.ids import OperationId, SeatId
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import Ending, OperationState
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
    Record,
)
from envoy_ext.services import owed_ends
from tests.support.clock import ManualClock
from tests.support.journals import leave
from tests.support.outages import FailingJournal, ask, count_phases, ended_body, play_whole_answer, settle
from tests.support.sidecar import Sidecar


@pytest.mark.parametrize("kind", [OperationBegun, AttemptStarted, FirstDeltaSent])
async def test_the_count_in_flight_is_zero_after_what_could_not_be_recorded(kind: type[Record]) -> None:
    sidecar = Sidecar(journal=FailingJournal(kind))
    await play_whole_answer(sidecar)
    await settle(sidecar)
    assert set(count_phases(sidecar.watcher.notes).values()) <= {0}


@pytest.mark.parametrize("lost", [(OperationEnded,), (OperationEnded, AttemptEnded)])
async def test_an_end_that_could_not_be_recorded_is_recorded_when_the_journal_is_back(
    lost: tuple[type[Record], ...],
) -> None:
    journal = FailingJournal(*lost)
    sidecar = Sidecar(journal=journal)
    await play_whole_answer(sidecar, key="k")
    await settle(sidecar)
    (operation,) = await journal.list_recent(10)
    assert operation.state is OperationState.RUNNING

    journal.mend()
    again = await ask(sidecar, key="k")
    assert [reply.error.code for reply in again.replies if isinstance(reply, step.RespondLocally)] == [
        "operation_complete"
    ]
    (operation,) = await journal.list_recent(10)
    assert (operation.state, operation.ending) == (OperationState.COMPLETED, Ending.FINISHED)


def catch_begins(journal: FailingJournal) -> list[tuple[OperationBegun, SeatId]]:
    """What a journal is asked to begin, from now on."""
    asked: list[tuple[OperationBegun, SeatId]] = []
    begin = journal.begin

    async def note(
        begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | None:
        asked.append((begun, owner))
        return await begin(begun, owner, after)

    journal.begin = note  # type: ignore[method-assign]
    return asked


async def test_an_end_that_is_owed_is_forgiven_when_another_gateway_owns_the_operation() -> None:
    journal = FailingJournal(OperationEnded)
    sidecar = Sidecar(journal=journal)
    await play_whole_answer(sidecar)
    await settle(sidecar)
    (operation,) = await journal.list_recent(10)
    await leave(journal, sidecar.keeper.seat)
    another = await journal.take_seat("gw")
    taken = await journal.take_over(operation.operation_id, operation.token, another, operation.created_at)
    journal.mend()
    for _ in range(2):
        await sidecar.exchanges.record_owed_ends()
    assert await journal.get(operation.operation_id) == taken


async def test_what_may_never_have_begun_takes_no_room_of_what_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed_ends, "MAX_IN_DOUBT", 2)
    journal = FailingJournal(OperationBegun)
    sidecar = Sidecar(journal=journal)
    for _ in range(4):
        await play_whole_answer(sidecar, key=None)
    journal.refused = (OperationEnded,)
    await play_whole_answer(sidecar)
    assert len(sidecar.exchanges._owed_ends) == 3
    journal.mend()
    await sidecar.exchanges.record_owed_ends()
    await settle(sidecar)
    (operation,) = await journal.list_recent(10)
    assert operation.state is OperationState.COMPLETED


async def test_a_begin_that_comes_late_is_ended_when_it_has_come() -> None:
    journal, clock = FailingJournal(OperationBegun), ManualClock()
    sidecar = Sidecar(journal=journal, clock=clock)
    begins = catch_begins(journal)
    await play_whole_answer(sidecar)
    journal.mend()
    await sidecar.exchanges.record_owed_ends()
    assert len(sidecar.exchanges._owed_ends) == 1, "it may come yet"
    assert not sidecar.exchanges._owed_ends.due, "not asked for with every request"
    await MemoryJournal.begin(journal, *begins[0])
    clock.advance(owed_ends.LOOK_AGAIN_S)
    await sidecar.exchanges.record_owed_ends()
    (operation,) = await journal.list_recent(10)
    assert operation.state is OperationState.FAILED
    assert len(sidecar.exchanges._owed_ends) == 0
    await settle(sidecar)


async def test_one_that_may_come_yet_keeps_no_later_one_from_being_written() -> None:
    journal, clock = FailingJournal(OperationBegun), ManualClock()
    sidecar = Sidecar(journal=journal, clock=clock)
    await play_whole_answer(sidecar)
    journal.refused = ()
    await sidecar.exchanges.record_owed_ends()
    journal.unanswered = (OperationBegun,)
    await play_whole_answer(sidecar)
    journal.mend()
    await sidecar.exchanges.record_owed_ends()
    (operation,) = await journal.list_recent(10)
    assert operation.state is OperationState.FAILED
    assert len(sidecar.exchanges._owed_ends) == 1
    clock.advance(owed_ends.LATE_S)
    await settle(sidecar)


async def test_a_begin_that_never_comes_is_not_waited_for_without_end() -> None:
    journal, clock = FailingJournal(OperationBegun), ManualClock()
    sidecar = Sidecar(journal=journal, clock=clock)
    await play_whole_answer(sidecar)
    journal.mend()
    await sidecar.exchanges.record_owed_ends()
    for _ in range(int(owed_ends.LATE_S / owed_ends.LOOK_AGAIN_S)):
        assert len(sidecar.exchanges._owed_ends) == 1
        clock.advance(owed_ends.LOOK_AGAIN_S)
        await sidecar.exchanges.record_owed_ends()
    assert len(sidecar.exchanges._owed_ends) == 0
    assert journal.records == ()
    await settle(sidecar)


async def test_an_operation_whose_first_delta_could_not_be_recorded_is_not_running_afterwards() -> None:
    journal = FailingJournal(FirstDeltaSent)
    sidecar = Sidecar(journal=journal)
    await play_whole_answer(sidecar)
    await settle(sidecar)
    (operation,) = await journal.list_recent(10)
    assert operation.state is OperationState.FAILED
    assert not operation.first_delta_sent


async def test_of_what_never_began_no_end_is_recorded() -> None:
    journal = FailingJournal(OperationBegun)
    sidecar = Sidecar(journal=journal)
    sent = await play_whole_answer(sidecar)
    assert any(isinstance(reply, step.RespondLocally) for reply in sent.replies)
    await settle(sidecar)
    assert journal.records == ()


async def test_a_kill_between_the_last_bytes_and_their_record_leaves_no_completed_that_nobody_got() -> None:
    journal = FailingJournal()
    journal.slow = (OperationEnded,)
    sidecar = Sidecar(journal=journal)
    sent = await play_whole_answer(sidecar)
    assert ended_body(sent)
    assert not any(isinstance(record, OperationEnded) for record in journal.records)
    journal.go_on.set()
    await settle(sidecar)
    assert any(isinstance(record, OperationEnded) for record in journal.records)


async def test_a_repeat_that_comes_while_the_end_is_written_hears_of_that_end() -> None:
    journal = FailingJournal()
    journal.slow = (OperationEnded,)
    sidecar = Sidecar(journal=journal)
    await play_whole_answer(sidecar, key="k")
    again = await ask(sidecar, key="k")
    assert again.replies == []
    journal.go_on.set()
    await settle(sidecar)
    (reply,) = again.replies
    assert isinstance(reply, step.RespondLocally)
    assert reply.error.code == "operation_complete"
