"""The store is down: which cell of the table in docs/stores.md lets a request go on, and what stays of it.

which record fails     a class that may        every other class, and every key
begin                  goes on, never told     refused
first attempt          goes on, told later     refused
replay                 as its begin            refused
first delta            goes on, told later     refused
end                    told later              told later
the seat is not kept   goes on, never told     refused
"""

import asyncio

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, SeatId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.notes import ExchangeEnded, WentUnrecorded
from envoy_ext.domain.outcomes import Ending, OperationState
from envoy_ext.domain.records import AttemptStarted, FirstDeltaSent, OperationBegun, OperationEnded, Record
from envoy_ext.domain.tool_calls import CallRefusal, CallRefused, NewCall, ToolCall
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.services.leases import LeaseAnswer, Leases
from envoy_ext.services.unrecorded import Unrecorded
from tests.support.clock import ManualClock
from tests.support.journals import leave
from tests.support.outages import (
    FailingJournal,
    Played,
    count_phases,
    ended_body,
    let_tasks_run,
    play_whole_answer,
    settle,
)
from tests.support.sidecar import Sent, Sidecar

MAY = "chat"
CLASSES = TrafficClasses([TrafficClass(MAY, unrecorded=True), TrafficClass("batch")])
BEFORE_ITS_END = [OperationBegun, AttemptStarted, FirstDeltaSent]


class Outage:
    """A gateway whose policy lets one class go on, and a store that takes no records of some kinds."""

    def __init__(self, *refused: type[Record], exclusive: bool = True) -> None:
        self.journal = FailingJournal(*refused, exclusive=exclusive)
        self.down = bool(refused)
        self.clock = ManualClock()
        self.sidecar = Sidecar(
            journal=self.journal,
            clock=self.clock,
            unrecorded=Unrecorded(CLASSES, lambda: self.down),
        )

    async def ends(self) -> None:
        self.journal.mend()
        self.down = False
        self.sidecar.exchanges.note_store_back()
        await let_tasks_run()

    def count_unrecorded(self) -> int:
        return sum(isinstance(note, WentUnrecorded) for note in self.sidecar.watcher.notes)

    async def check(self) -> None:
        await settle_by(self)
        assert set(count_phases(self.sidecar.watcher.notes).values()) <= {0}


async def settle_by(outage: Outage) -> None:
    """Let the time for late evidence pass; nothing may be in flight then."""
    outage.clock.advance(10.0)
    async with asyncio.timeout(5):
        await settle(outage.sidecar)


def error_of(sent: Sent) -> step.RespondLocally:
    (reply,) = [reply for reply in sent.replies if isinstance(reply, step.RespondLocally)]
    return reply


def headers_of(sent: Sent) -> step.ForwardResponse:
    (reply,) = [reply for reply in sent.replies if isinstance(reply, step.ForwardResponse)]
    return reply


# --- who goes on ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BEFORE_ITS_END)
async def test_a_request_of_a_class_that_may_is_answered_in_full_and_told_that_it_is_not_recorded(
    kind: type[Record],
) -> None:
    outage = Outage(kind)
    sent = await play_whole_answer(outage.sidecar, request_class=MAY)
    assert ended_body(sent)
    assert not headers_of(sent).recorded
    assert outage.count_unrecorded() == 1
    await outage.check()
    (ended,) = [note for note in outage.sidecar.watcher.notes if isinstance(note, ExchangeEnded)]
    assert (ended.ending, ended.recorded) == (Ending.FINISHED, False)


@pytest.mark.parametrize("kind", BEFORE_ITS_END)
@pytest.mark.parametrize(
    ("request_class", "key"), [(None, None), ("batch", None), ("unknown", None), (MAY, "k"), ("batch", "k")]
)
async def test_every_other_class_and_every_key_is_refused(
    kind: type[Record], request_class: str | None, key: str | None
) -> None:
    outage = Outage(kind)
    sent = await play_whole_answer(outage.sidecar, request_class=request_class, key=key)
    error = error_of(sent).error
    assert (error.code, error.http_status) == ("upstream_unavailable", 503)
    assert error.retry_after_s is not None
    assert ("x-operation-recorded", "false") not in error.headers
    assert outage.count_unrecorded() == 0
    await outage.check()


async def test_the_default_class_may_be_one_that_goes_on() -> None:
    outage = Outage(OperationBegun)
    outage.sidecar.unrecorded = Unrecorded(TrafficClasses([TrafficClass("default", unrecorded=True)]))
    sidecar = Sidecar(journal=outage.journal, unrecorded=outage.sidecar.unrecorded)
    assert ended_body(await play_whole_answer(sidecar))


async def test_an_end_alone_that_cannot_be_recorded_makes_nothing_unrecorded() -> None:
    outage = Outage(OperationEnded)
    sent = await play_whole_answer(outage.sidecar, request_class=MAY)
    assert headers_of(sent).recorded
    assert outage.count_unrecorded() == 0
    await outage.check()


async def test_a_request_in_its_outage_answers_with_an_error_that_says_it_is_not_recorded() -> None:
    outage = Outage(OperationBegun)
    played = Played(outage.sidecar, request_class=MAY)
    await let_tasks_run()
    outage.sidecar.exchanges.end_all()
    await let_tasks_run()
    error = error_of(played.client).error
    assert (error.code, ("x-operation-recorded", "false") in error.headers) == ("draining", True)


async def test_nobody_is_told_that_an_operation_is_not_there_while_the_store_cannot_be_asked() -> None:
    outage = Outage()
    told: list[str] = []

    async def fail(operation_id: str) -> None:
        raise JournalUnavailable("it is away")

    outage.journal.get = fail  # type: ignore[assignment,method-assign]
    outage.sidecar.arrivals.show_operation(
        "op_1", "", lambda found: told.append("found"), lambda: told.append("gave up")
    )
    await let_tasks_run()
    assert told == ["gave up"]


# --- what stays of it -----------------------------------------------------------------------


async def test_of_what_never_began_nothing_is_told_when_the_store_is_back() -> None:
    outage = Outage(OperationBegun)
    await play_whole_answer(outage.sidecar, request_class=MAY)
    await outage.ends()
    await outage.check()
    assert outage.journal.records == ()


@pytest.mark.parametrize("kind", [AttemptStarted, FirstDeltaSent])
async def test_what_the_store_missed_of_a_begun_operation_it_is_told_in_order(kind: type[Record]) -> None:
    outage = Outage(kind)
    await play_whole_answer(outage.sidecar, request_class=MAY)
    await outage.ends()
    await outage.check()
    kinds = [type(record).__name__ for record in outage.journal.records]
    assert kinds == [
        "OperationBegun",
        "OwnershipTaken",
        "AttemptStarted",
        "FirstDeltaSent",
        "OperationEnded",
        "AttemptEnded",
    ]
    (operation,) = await outage.journal.list_recent(10)
    assert (operation.state, operation.partly_delivered) == (OperationState.COMPLETED, True)


async def test_a_new_operation_is_recorded_again_when_the_store_is_back() -> None:
    outage = Outage(OperationBegun)
    await play_whole_answer(outage.sidecar, request_class=MAY)
    await outage.ends()
    assert headers_of(await play_whole_answer(outage.sidecar, request_class=MAY)).recorded
    (operation,) = await outage.journal.list_recent(10)
    assert operation.state is OperationState.COMPLETED
    assert outage.count_unrecorded() == 1


# --- tools ----------------------------------------------------------------------------------


def build_call(played: Played, attempt_id: AttemptId) -> NewCall:
    return NewCall(
        operation_id=played.live.exchange.identity.operation_id,
        attempt_id=attempt_id,
        at=0.0,
        tool="mail",
        fingerprint="f",
        arguments_sha256="a",
        keyed=False,
        idempotent=False,
    )


@pytest.mark.parametrize("kind", [OperationBegun, AttemptStarted])
async def test_what_is_not_recorded_begins_no_tool_call(kind: type[Record]) -> None:
    """Also when the store is back before it has ended."""
    outage = Outage(kind)
    played = Played(outage.sidecar, request_class=MAY)
    attempt_id = await played.attempt()
    assert attempt_id is not None
    claim = await outage.journal.begin_call(build_call(played, attempt_id))
    assert claim == CallRefused(CallRefusal.FENCED)
    await outage.ends()
    claim = await outage.journal.begin_call(build_call(played, attempt_id))
    # Its begin was recorded in the second case, and now its attempt is: what acts is what the journal says.
    assert isinstance(claim, CallRefused) is (kind is OperationBegun)


# --- replays --------------------------------------------------------------------------------


async def test_what_never_began_is_replayed_by_the_rules_of_this_process() -> None:
    outage = Outage(OperationBegun)
    played = Played(outage.sidecar, request_class=MAY)
    first = await played.attempt()
    assert first is not None
    await played.lose(first, "a")
    second = await played.attempt()
    assert second is not None
    assert await played.answer(second, "b")
    assert await played.attempt() is None, "an attempt started after the first delta"
    await played.end()
    assert ended_body(played.client)
    await outage.check()


async def test_what_never_began_has_called_no_tool_and_is_replayed_without_a_look() -> None:
    class Unreadable(FailingJournal):
        async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
            raise JournalUnavailable("the store is down")

    outage = Outage(OperationBegun)
    outage.sidecar = Sidecar(
        journal=Unreadable(OperationBegun),
        clock=outage.clock,
        unrecorded=Unrecorded(CLASSES, lambda: True),
        ledger=Unreadable(),
    )
    played = Played(outage.sidecar, request_class=MAY)
    first = await played.attempt()
    assert first is not None
    await played.lose(first, "a")
    second = await played.attempt()
    assert second is not None
    assert await played.answer(second, "b")
    await played.end()
    await settle_by(outage)


async def test_a_replay_of_what_the_journal_knows_does_not_start_unrecorded() -> None:
    """The journal would call the attempt before it the newest one, and let it begin tool calls."""
    outage = Outage()
    played = Played(outage.sidecar, request_class=MAY)
    first = await played.attempt()
    assert first is not None
    outage.journal.refused = (AttemptStarted,)
    await played.lose(first, "a")
    assert await played.attempt() is None
    assert error_of(played.client).error.code == "upstream_unavailable"
    await played.end()
    await outage.check()


async def test_a_replay_starts_when_all_that_is_owed_before_it_can_be_told() -> None:
    outage = Outage(AttemptStarted)
    played = Played(outage.sidecar, request_class=MAY)
    first = await played.attempt()
    assert first is not None
    outage.journal.mend()
    await played.lose(first, "a")
    second = await played.attempt()
    assert second is not None
    assert await played.answer(second, "b")
    await played.end()
    await outage.check()
    (operation,) = await outage.journal.list_recent(10)
    assert [attempt.outcome for attempt in operation.attempts] == ["replica_died", "completed"]


# --- seats ----------------------------------------------------------------------------------


def let_the_seat_lapse(outage: Outage) -> None:
    outage.clock.advance(LeasePolicy().ttl_s)
    assert not outage.sidecar.keeper.may_act


async def test_without_a_seat_a_class_that_may_goes_on_and_owns_nothing_in_the_store() -> None:
    outage = Outage(exclusive=False)
    let_the_seat_lapse(outage)
    outage.down = True
    sent = await play_whole_answer(outage.sidecar, request_class=MAY)
    assert ended_body(sent)
    assert not headers_of(sent).recorded
    await outage.check()
    assert outage.journal.records == (), "a gateway without a seat has written"
    refused = error_of(await play_whole_answer(outage.sidecar, request_class="batch"))
    assert refused.error.code == "upstream_unavailable"


async def test_without_a_seat_while_the_store_works_nobody_goes_on() -> None:
    """The next beat mends it; or the seat is gone, and what another gateway did is not known."""
    outage = Outage(exclusive=False)
    let_the_seat_lapse(outage)
    sent = await play_whole_answer(outage.sidecar, request_class=MAY)
    assert error_of(sent).error.code == "upstream_unavailable"


async def test_what_began_before_the_seat_lapsed_may_start_while_the_store_is_down() -> None:
    """As what has waited for a slot does."""
    outage = Outage(exclusive=False)
    played = Played(outage.sidecar, request_class=MAY)
    await let_tasks_run()
    let_the_seat_lapse(outage)
    outage.journal.refused, outage.down = (AttemptStarted, FirstDeltaSent, OperationEnded), True
    attempt_id = await played.attempt()
    assert attempt_id is not None
    assert await played.answer(attempt_id)
    await played.end()
    assert not headers_of(played.client).recorded
    await outage.ends()
    await outage.check()
    (operation,) = await outage.journal.list_recent(10)
    assert operation.state is OperationState.COMPLETED


async def test_a_seat_that_is_lost_ends_what_began_in_it_and_not_what_is_in_no_store() -> None:
    outage = Outage(exclusive=False)
    begun = Played(outage.sidecar, request_class=MAY)
    await let_tasks_run()
    outage.journal.refused = (OperationBegun,)
    unrecorded = Played(outage.sidecar, request_class=MAY)
    assert await unrecorded.attempt() is not None
    await leave(outage.journal, outage.sidecar.keeper.seat)
    outage.clock.advance(LeasePolicy().renew_s)
    await outage.sidecar.keeper.beat()
    await let_tasks_run()
    assert error_of(begun.client).error.code == "upstream_unavailable"
    assert not any(isinstance(reply, step.RespondLocally) for reply in unrecorded.client.replies)


async def test_an_owner_that_went_on_alone_writes_nothing_over_the_one_that_took_over() -> None:
    outage = Outage(exclusive=False)
    played = Played(outage.sidecar, request_class=MAY)
    attempt_id = await played.attempt()
    assert attempt_id is not None
    outage.journal.refused = (FirstDeltaSent, OperationEnded)
    assert await played.answer(attempt_id)
    (operation,) = await outage.journal.list_recent(10)
    await leave(outage.journal, outage.sidecar.keeper.seat)
    another = await outage.journal.take_seat("another")
    taken = await outage.journal.take_over(operation.operation_id, operation.token, another, 0.0)
    await outage.ends()
    await played.end()
    await outage.check()
    assert await outage.journal.get(operation.operation_id) == taken


async def test_the_worker_of_an_unrecorded_attempt_is_given_time_without_a_seat() -> None:
    outage = Outage(OperationBegun, exclusive=False)
    leases = Leases(outage.sidecar.exchanges, outage.sidecar.fleet.streams, outage.clock)
    played = Played(outage.sidecar, request_class=MAY)
    attempt_id = await played.attempt()
    assert attempt_id is not None
    let_the_seat_lapse(outage)
    operation_id = played.live.exchange.identity.operation_id
    assert leases.renew(operation_id, attempt_id, FencingToken(1)) is LeaseAnswer.GRANTED
    outage.down = False
    assert leases.renew(operation_id, attempt_id, FencingToken(1)) is LeaseAnswer.GRANTED


# --- a begin whose answer is lost -----------------------------------------------------------


async def test_a_key_whose_begin_was_done_and_not_answered_is_free_when_the_store_is_back() -> None:
    outage = Outage()
    outage.journal.unanswered = (OperationBegun,)
    refused = await play_whole_answer(outage.sidecar, key="k")
    assert error_of(refused).error.code == "upstream_unavailable"
    (operation,) = await outage.journal.list_recent(10)
    assert operation.state is OperationState.RUNNING
    await outage.ends()
    assert ended_body(await play_whole_answer(outage.sidecar, key="k"))
    newest, oldest = await outage.journal.list_recent(10)
    assert (oldest.ending, newest.state) == (Ending.REFUSED, OperationState.COMPLETED)
    await outage.check()


async def test_what_went_on_and_had_begun_all_the_same_is_ended_with_the_truth() -> None:
    outage = Outage()
    outage.journal.unanswered = (OperationBegun,)
    assert ended_body(await play_whole_answer(outage.sidecar, request_class=MAY))
    await outage.ends()
    await outage.check()
    (operation,) = await outage.journal.list_recent(10)
    assert (operation.state, operation.ending, operation.attempts) == (
        OperationState.COMPLETED,
        Ending.FINISHED,
        (),
    )


async def test_a_begin_that_arrives_long_after_it_was_given_up_blocks_no_key() -> None:
    outage = Outage(OperationBegun)
    late: list[OperationBegun] = []
    begin = outage.journal.begin

    async def keep(begun: OperationBegun, owner: SeatId, after: None = None) -> None:
        late.append(begun)
        await begin(begun, owner, after)

    outage.journal.begin = keep  # type: ignore[assignment,method-assign]
    await play_whole_answer(outage.sidecar, key="k")
    await outage.ends()  # and what is owed of an operation that has not begun is forgiven
    outage.journal.begin = begin  # type: ignore[method-assign]
    await begin(late[0], outage.sidecar.keeper.seat)
    assert ended_body(await play_whole_answer(outage.sidecar, key="k"))
    newest, oldest = await outage.journal.list_recent(10)
    assert (oldest.ending, newest.state) == (Ending.UNKNOWN, OperationState.COMPLETED)
    again = await play_whole_answer(outage.sidecar, key="k")
    assert error_of(again).error.code == "operation_complete"
    await outage.check()


async def test_an_operation_that_runs_is_not_taken_for_one_that_nobody_runs() -> None:
    outage = Outage()
    running = Played(outage.sidecar, key="k")
    attempt_id = await running.attempt()
    assert attempt_id is not None
    outage.sidecar.exchanges.repeats.free_key(running.live.exchange.identity.operation_id)
    again = await play_whole_answer(outage.sidecar, key="k")
    assert error_of(again).error.code == "operation_in_progress"
    assert await running.answer(AttemptId(attempt_id))
    await running.end()
    await outage.check()
