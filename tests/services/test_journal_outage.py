"""What the services do around the journal: a record that fails, is late, or is cut off by a kill."""

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import (
    AttemptAnswered,
    AttemptBody,
    AttemptClosed,
    AttemptLogged,
    DeliveryClosed,
    ExchangeLogged,
    LogCause,
    ResponseBody,
    ResponseStarted,
)
from envoy_ext.domain.ids import FencingToken, OperationId, ReplicaId, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
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
from tests.support.journals import leave
from tests.support.sidecar import DELTA, REST, SSE, Sent, Sidecar


class FailingJournal(MemoryJournal):
    """Refuses records of some kinds, or keeps their appends waiting, until it is mended."""

    def __init__(self, *refused: type[Record]) -> None:
        super().__init__()
        self.refused = refused
        self.slow: tuple[type[Record], ...] = ()
        self.go_on = asyncio.Event()

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | None:
        await self.fail_as_told([begun])
        return await super().begin(begun, owner, after)

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        await self.fail_as_told(records)
        await super().append(records, token, answer)

    async def fail_as_told(self, records: Sequence[Record]) -> None:
        if any(isinstance(record, self.slow) for record in records):
            await self.go_on.wait()
        if any(isinstance(record, self.refused) for record in records):
            raise JournalUnavailable("the disk is full")

    def mend(self) -> None:
        self.refused = ()


def count_phases(notes: Iterable[step.Note]) -> dict[str, int]:
    """What the in-flight gauges show after these notes."""
    counts: dict[str, int] = {}
    for note in notes:
        if isinstance(note, step.PhaseChanged):
            for phase, change in ((note.before, -1), (note.after, 1)):
                if phase is not None:
                    counts[phase] = counts.get(phase, 0) + change
    return counts


async def let_tasks_run() -> None:
    """Give every task that can go on its turns."""
    for _ in range(20):
        await asyncio.sleep(0)


async def ask(sidecar: Sidecar, *, key: str | None = None) -> Sent:
    """Send a request; what it was told so far."""
    client = Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(key=key), client)
    await let_tasks_run()
    return client


async def play_whole_answer(sidecar: Sidecar, *, key: str | None = None) -> Sent:
    """One request as Envoy plays it: as far as the sidecar lets it come, and then closed and logged."""
    client, hop = Sent(), Sent()
    delivery = sidecar.arrivals.arrive(sidecar.build_arrival(key=key), client)
    await let_tasks_run()
    forward = client.replies[0]
    if isinstance(forward, step.ForwardRequest):
        joined = sidecar.exchanges.join(forward.exchange_id, hop)
        assert joined is not None
        live, attempt_id = joined
        sidecar.exchanges.arrive_attempt(live, attempt_id)
        await let_tasks_run()
        if isinstance(hop.replies[-1], step.StartAttempt):
            live.receive(AttemptAnswered(attempt_id, 200, SSE, "", ReplicaId("a"), end=False))
            live.receive(AttemptBody(attempt_id, DELTA, end=False))
            await let_tasks_run()
        if isinstance(hop.replies[-1], step.ReleaseAttempt):
            delivery.receive(ResponseStarted(200, SSE, "", replay_mark=False, refusal=None, end=False))
            delivery.receive(ResponseBody(DELTA + REST, end=True))
            await let_tasks_run()
        live.receive(AttemptClosed(attempt_id))
        live.receive(AttemptLogged(attempt_id, LogCause.COMPLETED, ReplicaId("a"), 0, ""))
        live.receive(ExchangeLogged(LogCause.COMPLETED, ""))
    delivery.receive(DeliveryClosed())
    await let_tasks_run()
    return client


async def settle(sidecar: Sidecar) -> None:
    async with asyncio.timeout(5):
        await sidecar.exchanges.wait_idle()
        await sidecar.exchanges.aclose()
    assert sidecar.watcher.bugs == []


def ended_body(sent: Sent) -> bool:
    return any(isinstance(reply, step.ForwardBody) and reply.end for reply in sent.replies)


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
