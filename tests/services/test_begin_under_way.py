"""A request that has gone on to the gate while its begin is written: nothing passes the gate before the
record, and whatever becomes of the record, the client has one answer."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.client_errors import NOT_RECORDED
from envoy_ext.domain.errors import SeatLost
from envoy_ext.domain.events import DeliveryClosed, DrainExpired, Event, ResponseStarted
from envoy_ext.domain.ids import AttemptId, OperationId, SeatId
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.domain.records import OperationBegun
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.services.live_exchange import LONG_WRITE_S, LiveExchange
from envoy_ext.services.unrecorded import Unrecorded
from tests.support.clock import ManualClock
from tests.support.outages import FailingJournal, let_tasks_run, settle
from tests.support.sidecar import Sent, Sidecar

HOP_FAILED = ResponseStarted(503, "text/plain", "", replay_mark=False, refusal=None, end=True)
MAY_GO_ON = Unrecorded(TrafficClasses([TrafficClass("default", unrecorded=True)]))


class LosesSeat(FailingJournal):
    """Finds at the begin that its gateway has been taken for dead."""

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | None:
        await self.fail_as_told([begun])
        raise SeatLost("another gateway has taken over")


class UnderWay:
    """One request whose begin is being written."""

    def __init__(self, journal: FailingJournal, **wiring: object) -> None:
        journal.slow = (OperationBegun,)
        self.journal = journal
        self.sidecar = Sidecar(journal=journal, **wiring)  # type: ignore[arg-type]
        self.client = Sent()
        self.delivery = self.sidecar.arrivals.arrive(self.sidecar.build_arrival(), self.client)
        self.hops: list[Sent] = []

    def ask_gate(self) -> tuple[LiveExchange, AttemptId] | None:
        """The request has reached the egress hop."""
        (forward,) = (one for one in self.client.replies if isinstance(one, step.ForwardRequest))
        hop = Sent()
        joined = self.sidecar.exchanges.join(forward.exchange_id, hop)
        if joined is not None:
            self.hops.append(hop)
            self.sidecar.exchanges.arrive_attempt(*joined)
        return joined

    async def let_begin(self) -> None:
        """The store does what it does with the begin."""
        self.journal.go_on.set()
        await let_tasks_run()

    @property
    def answers(self) -> list[step.RespondLocally]:
        return [one for one in self.client.replies if isinstance(one, step.RespondLocally)]

    @property
    def told_gate(self) -> list[type[step.Reply]]:
        return [type(reply) for hop in self.hops for reply in hop.replies]

    async def leave(self) -> None:
        self.delivery.receive(DeliveryClosed())
        await settle(self.sidecar)


async def test_it_goes_on_at_once_and_the_gate_waits_for_the_record() -> None:
    one = UnderWay(FailingJournal())
    one.ask_gate()
    await let_tasks_run()
    assert one.told_gate == []
    assert await one.journal.list_recent(10) == []
    await one.let_begin()
    assert one.told_gate == [step.StartAttempt]
    (operation,) = await one.journal.list_recent(10)
    assert [attempt.number for attempt in operation.attempts] == [1]
    await one.leave()


async def test_an_attempt_that_a_slow_begin_has_cost_envoys_time_gets_more_of_it_for_its_own_record() -> None:
    clock = ManualClock()
    one = UnderWay(FailingJournal(), clock=clock)
    one.ask_gate()
    await let_tasks_run()
    clock.advance(LONG_WRITE_S)
    await one.let_begin()
    assert one.told_gate == [step.AskPatience, step.StartAttempt]
    one.delivery.receive(DeliveryClosed())
    clock.advance(1.0)
    await settle(one.sidecar)


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("journal", [FailingJournal, LosesSeat])
async def test_one_whose_begin_is_refused_is_refused_once_and_no_replica_is_asked(
    journal: type[FailingJournal], gate_first: bool
) -> None:
    one = UnderWay(journal(OperationBegun) if journal is FailingJournal else journal())
    if gate_first:
        one.ask_gate()
    await let_tasks_run()
    await one.let_begin()
    if not gate_first:
        one.ask_gate()
        await let_tasks_run()
    assert [answer.error.code for answer in one.answers] == ["upstream_unavailable"]
    assert one.told_gate == [step.RefuseAttempt]
    await one.leave()
    assert len(one.answers) == 1
    assert await one.journal.list_recent(10) == []
    assert one.sidecar.exchanges.inflight == 0


@pytest.mark.parametrize("refused", [(), (OperationBegun,)])
@pytest.mark.parametrize("gate_asked", [True, False])
@pytest.mark.parametrize("event", [HOP_FAILED, DrainExpired()], ids=["the hop answers", "the drain ends"])
async def test_what_is_answered_while_the_begin_is_written_is_answered_once(
    event: Event, gate_asked: bool, refused: tuple[type[OperationBegun], ...]
) -> None:
    one = UnderWay(FailingJournal(*refused))
    if gate_asked:
        one.ask_gate()
    await let_tasks_run()
    one.delivery.receive(event)
    await one.let_begin()
    assert len(one.answers) == 1
    assert refused == () or step.StartAttempt not in one.told_gate
    await one.leave()
    assert len(one.answers) == 1
    states = [operation.state for operation in await one.journal.list_recent(10)]
    assert states == ([] if refused else [OperationState.FAILED])


async def test_of_one_whose_client_has_left_no_attempt_starts() -> None:
    one = UnderWay(FailingJournal())
    one.delivery.receive(DeliveryClosed())
    one.ask_gate()
    await one.let_begin()
    assert one.told_gate == [step.RefuseAttempt]
    assert one.answers == []
    await settle(one.sidecar)
    (operation,) = await one.journal.list_recent(10)
    assert operation.state is not OperationState.RUNNING


async def test_one_that_may_go_on_unrecorded_starts_once_its_begin_has_failed() -> None:
    one = UnderWay(FailingJournal(OperationBegun), unrecorded=MAY_GO_ON)
    one.ask_gate()
    await let_tasks_run()
    assert one.told_gate == []
    await one.let_begin()
    assert one.told_gate == [step.StartAttempt]
    assert one.answers == []
    await one.leave()


async def test_an_error_that_waited_for_a_begin_that_failed_says_that_nothing_is_recorded() -> None:
    one = UnderWay(FailingJournal(OperationBegun), unrecorded=MAY_GO_ON)
    one.delivery.receive(HOP_FAILED)
    await one.let_begin()
    (answer,) = one.answers
    assert NOT_RECORDED in answer.error.headers
    await one.leave()
