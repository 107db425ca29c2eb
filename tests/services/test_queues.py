"""What the services do with a pool's queue: who is told what, when slots come free, what is left behind."""

import asyncio
import random
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.api import ApiFamily
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
from envoy_ext.domain.ids import AttemptId, OperationId, ReplicaId
from envoy_ext.domain.ladder import Ladder, ShortenGeneration
from envoy_ext.domain.notes import AttemptFinished, RequestRefused, SlotGiven
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase
from envoy_ext.domain.readiness_reasons import ReadinessReason
from envoy_ext.domain.records import OperationBegun
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.ports import Reach
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.live_exchange import LiveExchange
from tests.support.clock import ManualClock
from tests.support.members import place, show_idle
from tests.support.outages import FailingJournal, count_phases, let_tasks_run
from tests.support.sidecar import BODY, DELTA, POOL, REST, SSE, Sent, Sidecar


def build_sidecar(*, length: int = 256, max_wait_s: float = 30.0, **options: object) -> Sidecar:
    """One replica with one slot."""
    classes = TrafficClasses([TrafficClass("slow", max_wait_s=max_wait_s)], max_wait_s)
    return Sidecar(
        replicas=("a",),
        concurrency=1,
        queue_policy=QueuePolicy(length, classes),
        **options,  # type: ignore[arg-type]
    )


class Refusing:
    """`ports.ReachProbe`: nothing listens anywhere."""

    async def look(self, address: str) -> Reach:
        return Reach.REFUSED


class Client:
    """One request, and what it was told."""

    def __init__(self, sidecar: Sidecar, **arrival: object) -> None:
        self.sidecar = sidecar
        self.sent, self.hop = Sent(), Sent()
        self.delivery: Delivery = sidecar.arrivals.arrive(
            sidecar.build_arrival(**arrival),  # type: ignore[arg-type]
            self.sent,
        )
        self.live: LiveExchange | None = None
        self.attempt_id: AttemptId | None = None

    @property
    def told(self) -> list[str]:
        """What it was told, in words."""
        return [
            reply.error.code if isinstance(reply, step.RespondLocally) else type(reply).__name__
            for reply in self.sent.replies
        ]

    @property
    def error(self) -> step.RespondLocally:
        (reply,) = [one for one in self.sent.replies if isinstance(one, step.RespondLocally)]
        return reply

    async def start(self) -> None:
        """Its attempt comes to the gate and is let go."""
        (forward,) = [one for one in self.sent.replies if isinstance(one, step.ForwardRequest)]
        joined = self.sidecar.exchanges.join(forward.exchange_id, self.hop)
        assert joined is not None
        self.live, self.attempt_id = joined
        self.sidecar.exchanges.arrive_attempt(self.live, self.attempt_id)
        await let_tasks_run()
        assert isinstance(self.hop.replies[-1], step.StartAttempt)

    async def read_delta(self) -> None:
        """Its replica begins to answer, and it reads that."""
        assert self.live is not None
        assert self.attempt_id is not None
        self.live.receive(AttemptAnswered(self.attempt_id, 200, SSE, "", ReplicaId("a"), end=False))
        self.live.receive(AttemptBody(self.attempt_id, DELTA, end=False))
        await let_tasks_run()
        self.delivery.receive(ResponseStarted(200, SSE, "", replay_mark=False, refusal=None, end=False))
        self.delivery.receive(ResponseBody(DELTA, end=False))

    async def finish(self) -> None:
        """Its replica answers, and it reads all of it."""
        await self.read_delta()
        assert self.live is not None
        assert self.attempt_id is not None
        self.delivery.receive(ResponseBody(REST, end=True))
        self.live.receive(AttemptClosed(self.attempt_id))
        self.live.receive(AttemptLogged(self.attempt_id, LogCause.COMPLETED, ReplicaId("a"), 0, ""))
        self.live.receive(ExchangeLogged(LogCause.COMPLETED, ""))
        self.leave()
        await let_tasks_run()

    def leave(self) -> None:
        self.delivery.receive(DeliveryClosed())


async def settle(sidecar: Sidecar) -> None:
    """Everything has ended, and nothing is held."""
    async with asyncio.timeout(5):
        await sidecar.exchanges.wait_idle()
        await sidecar.exchanges.aclose()
    assert sidecar.watcher.bugs == []
    assert sidecar.queues.idle
    show_idle(sidecar.fleet, sidecar.replicas, sidecar.clock.now() + 0.001)
    shown = sidecar.queues.show(POOL)
    assert (shown.waiting, shown.free) == (0, shown.slots)
    assert not any(count_phases(sidecar.watcher.notes).values())


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_request_waits_until_the_attempt_before_it_is_over() -> None:
    sidecar = build_sidecar()
    first, second = Client(sidecar), Client(sidecar, request_id="req-2")
    await let_tasks_run()
    assert (first.told, second.told) == (["ForwardRequest"], ["HoldRequest"])
    await first.start()
    assert second.told == ["HoldRequest"]
    await first.finish()
    assert second.told == ["HoldRequest", "ForwardRequest"]
    await second.start()
    await second.finish()
    waits = [note.waited_s for note in sidecar.watcher.notes if isinstance(note, SlotGiven)]
    assert len(waits) == 2
    assert waits[0] == 0.0
    assert waits[1] > 0.0
    await settle(sidecar)


async def test_a_slot_is_taken_before_any_attempt_has_come() -> None:
    """Between the word to go on and the attempt lies a way over two hops."""
    sidecar = build_sidecar()
    clients = [Client(sidecar, request_id=f"req-{number}") for number in range(3)]
    await let_tasks_run()
    assert [client.told for client in clients] == [["ForwardRequest"], ["HoldRequest"], ["HoldRequest"]]
    clients[0].leave()  # and its attempt will never come
    await let_tasks_run()
    assert [client.told[-1] for client in clients[1:]] == ["ForwardRequest", "HoldRequest"]
    for client in clients[1:]:
        client.leave()
    await settle(sidecar)


async def test_a_first_attempt_is_sent_to_its_slot_by_name() -> None:
    sidecar = Sidecar(replicas=("a", "b"), concurrency=2)
    clients = [Client(sidecar, request_id=f"req-{number}") for number in range(4)]
    await let_tasks_run()
    for client in clients:
        await client.start()
    targets = [client.hop.replies[-1].target for client in clients]  # type: ignore[union-attr]
    assert sorted(one.replica for one in targets) == ["a", "a", "b", "b"]
    assert sidecar.queues.show(POOL).free == 0
    for client in clients:
        assert client.live is not None
        assert client.attempt_id is not None
        client.live.receive(AttemptClosed(client.attempt_id))
        client.live.receive(AttemptLogged(client.attempt_id, LogCause.DOWNSTREAM_GONE, None, 0, "downstream"))
        client.live.receive(ExchangeLogged(LogCause.DOWNSTREAM_GONE, ""))
        client.leave()
    await settle(sidecar)


async def test_an_attempt_takes_one_slot_and_not_a_second_one_for_the_promise() -> None:
    sidecar = Sidecar(replicas=("a",), concurrency=2)
    client = Client(sidecar)
    await let_tasks_run()
    assert sidecar.queues.show(POOL).free == 1
    await client.start()
    assert sidecar.queues.show(POOL).free == 1
    await client.finish()
    assert sidecar.queues.show(POOL).free == 2
    await settle(sidecar)


async def test_a_client_that_leaves_the_line_is_cancelled_and_never_goes_on() -> None:
    sidecar = build_sidecar()
    first, leaves, stays = (Client(sidecar, request_id=f"req-{number}") for number in range(3))
    await let_tasks_run()
    leaves.leave()
    assert sidecar.queues.count_waiting(POOL) == 1
    first.leave()
    await let_tasks_run()
    assert leaves.told == ["HoldRequest"]
    assert stays.told == ["HoldRequest", "ForwardRequest"]
    stays.leave()
    await settle(sidecar)
    operations = {one.request_id: one for one in await sidecar.journal.list_recent(10)}
    gone = operations["req-1"]
    assert (gone.ending, gone.state, gone.phase) == (
        Ending.CLIENT_GONE,
        OperationState.CANCELLED,
        Phase.QUEUED,
    )
    assert gone.attempts == ()


async def test_a_full_line_refuses_without_an_operation_and_sends_the_newest_of_the_many_away() -> None:
    sidecar = build_sidecar(length=1)
    first, second = Client(sidecar), Client(sidecar, request_id="req-2", caller="many")
    third = Client(sidecar, request_id="req-3", caller="many")
    await let_tasks_run()
    assert (second.told, third.told) == (["HoldRequest"], ["queue_full"])
    assert third.error.error.operation_id is None
    assert 1 <= (third.error.error.retry_after_s or 0) <= 30
    refusals = [note for note in sidecar.watcher.notes if isinstance(note, RequestRefused)]
    assert refusals == [RequestRefused(POOL, "queue_full")]
    assert len(await sidecar.journal.list_recent(10)) == 2
    first.leave()
    second.leave()
    await settle(sidecar)


@pytest.mark.parametrize(("draw", "expected"), [(min, [1] * 6), (max, [3, 3, 3, 4, 5, 6])])
async def test_those_that_are_refused_together_draw_when_to_come_back(
    draw: Callable[[int, int], int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "randint", draw)
    clock = ManualClock()
    sidecar = build_sidecar(length=0, clock=clock)
    first = Client(sidecar)
    refused = [Client(sidecar, request_id=f"req-r{number}") for number in range(6)]
    await let_tasks_run()
    assert [client.error.error.retry_after_s for client in refused] == expected
    first.leave()
    clock.advance(1.0)
    await settle(sidecar)


async def test_a_slot_that_came_free_unseen_goes_to_who_waits_and_not_to_who_comes() -> None:
    sidecar = build_sidecar()
    elsewhere = AttemptId("att_other")
    place(sidecar.fleet, elsewhere, ReplicaId("a"))
    waits = Client(sidecar)
    await let_tasks_run()
    assert waits.told == ["HoldRequest"]
    end = AttemptFinished(
        OperationId("op_other"), elsewhere, POOL, ReplicaId("a"), AttemptOutcome.COMPLETED, ""
    )
    sidecar.fleet.streams.note(end)
    comes = Client(sidecar, request_id="req-2")
    await let_tasks_run()
    assert (waits.told, comes.told) == (["HoldRequest", "ForwardRequest"], ["HoldRequest"])
    waits.leave()
    comes.leave()
    await settle(sidecar)


async def test_one_that_waits_goes_for_a_newcomer_with_less() -> None:
    sidecar = build_sidecar(length=2)
    clients = [Client(sidecar, request_id=f"req-{number}", caller="many") for number in range(3)]
    await let_tasks_run()
    newcomer = Client(sidecar, request_id="req-9", caller="one")
    await let_tasks_run()
    assert newcomer.told == ["HoldRequest"]
    assert [client.told for client in clients[1:]] == [["HoldRequest"], ["HoldRequest", "queue_full"]]
    assert clients[2].error.error.operation_id is not None
    for client in (*clients, newcomer):
        client.leave()
    await settle(sidecar)
    (refused,) = [one for one in await sidecar.journal.list_recent(10) if one.error_code == "queue_full"]
    assert (refused.ending, refused.phase, refused.status) == (Ending.REFUSED, Phase.QUEUED, 429)


async def test_a_wait_ends_when_it_is_over() -> None:
    sidecar = build_sidecar(max_wait_s=0.05)
    first, second = Client(sidecar), Client(sidecar, request_id="req-2")
    await wait_until(lambda: len(second.told) == 2)
    assert second.told == ["HoldRequest", "queue_deadline_exceeded"]
    first.leave()
    second.leave()
    await settle(sidecar)


async def test_a_timer_that_is_early_is_set_again() -> None:
    clock = ManualClock()
    sidecar = build_sidecar(max_wait_s=0.02, clock=clock)
    first, second = Client(sidecar), Client(sidecar, request_id="req-2")
    await asyncio.sleep(0.05)
    assert second.told == ["HoldRequest"]
    clock.advance(0.02)
    await wait_until(lambda: len(second.told) == 2)
    first.leave()
    second.leave()
    clock.advance(1.0)
    await settle(sidecar)


async def test_a_wait_ends_with_the_requests_own_deadline() -> None:
    sidecar = build_sidecar()
    first, second = Client(sidecar), Client(sidecar, request_id="req-2", deadline_s=0.05)
    await wait_until(lambda: len(second.told) == 2)
    assert second.told == ["HoldRequest", "deadline_exceeded"]
    assert sidecar.queues.count_waiting(POOL) == 0
    first.leave()
    second.leave()
    await settle(sidecar)


async def test_envoy_is_asked_for_more_time_than_the_longest_wait() -> None:
    sidecar = build_sidecar(max_wait_s=20.0)
    first, second = Client(sidecar), Client(sidecar, request_id="req-2")
    await let_tasks_run()
    (held,) = second.sent.replies
    assert isinstance(held, step.HoldRequest)
    assert held.seconds == pytest.approx(25.0, abs=0.5)
    first.leave()
    second.leave()
    await settle(sidecar)


async def test_a_repeat_of_what_waits_is_told_that_it_is_in_progress() -> None:
    sidecar = build_sidecar()
    first = Client(sidecar)
    waits = Client(sidecar, request_id="req-2", key="k")
    await let_tasks_run()
    again = Client(sidecar, request_id="req-3", key="k")
    await let_tasks_run()
    assert (waits.told, again.told) == (["HoldRequest"], ["operation_in_progress"])
    (operation,) = [one for one in await sidecar.journal.list_recent(10) if one.request_id == "req-2"]
    assert (operation.state, operation.phase) == (OperationState.RUNNING, Phase.QUEUED)
    first.leave()
    waits.leave()
    await settle(sidecar)


async def test_a_key_that_was_refused_by_a_full_line_may_be_used_again() -> None:
    sidecar = build_sidecar(length=0)
    first = Client(sidecar)
    refused = Client(sidecar, request_id="req-2", key="k")
    await let_tasks_run()
    assert refused.told == ["queue_full"]
    first.leave()
    await let_tasks_run()
    again = Client(sidecar, request_id="req-3", key="k")
    await let_tasks_run()
    assert again.told == ["ForwardRequest"]
    again.leave()
    await settle(sidecar)


async def test_a_draining_sidecar_sends_those_that_wait_away_and_keeps_those_that_go() -> None:
    sidecar = build_sidecar()
    first, second = Client(sidecar), Client(sidecar, request_id="req-2")
    await let_tasks_run()
    sidecar.exchanges.start_draining()
    await let_tasks_run()
    assert (first.told, second.told) == (["ForwardRequest"], ["HoldRequest", "draining"])
    first.leave()
    second.leave()
    await settle(sidecar)


async def test_when_every_replica_is_taken_out_those_that_wait_are_told_so() -> None:
    sidecar = build_sidecar()
    first, second = Client(sidecar), Client(sidecar, request_id="req-2")
    await let_tasks_run()
    sidecar.fleet.drain(ReplicaId("a"), 60.0)
    sidecar.queues.look_at_all()
    await let_tasks_run()
    assert second.told == ["HoldRequest", "no_ready_replica"]
    first.leave()
    second.leave()
    await settle(sidecar)


async def test_a_wait_that_cannot_be_recorded_does_not_begin() -> None:
    sidecar = build_sidecar(journal=FailingJournal())
    first = Client(sidecar)
    await let_tasks_run()
    assert isinstance(sidecar.journal, FailingJournal)
    sidecar.journal.refused = (OperationBegun,)
    second = Client(sidecar, request_id="req-2")
    await let_tasks_run()
    assert second.told == ["upstream_unavailable"]
    assert sidecar.queues.count_waiting(POOL) == 0
    first.leave()
    second.leave()
    await settle(sidecar)


async def test_a_client_that_leaves_while_its_wait_is_being_recorded_is_not_let_in() -> None:
    sidecar = build_sidecar(journal=FailingJournal())
    first = Client(sidecar)
    await let_tasks_run()
    assert isinstance(sidecar.journal, FailingJournal)
    sidecar.journal.slow = (OperationBegun,)
    second = Client(sidecar, request_id="req-2")
    second.leave()
    first.leave()
    await let_tasks_run()
    sidecar.journal.go_on.set()
    await let_tasks_run()
    assert "ForwardRequest" not in second.told
    await settle(sidecar)


async def test_what_asks_about_models_takes_no_slot_and_waits_for_none() -> None:
    sidecar = build_sidecar()
    clients = [Client(sidecar, request_id=f"req-{number}", family=ApiFamily.MODELS) for number in range(3)]
    await let_tasks_run()
    assert [client.told for client in clients] == [["ForwardRequest"]] * 3
    assert sidecar.queues.show(POOL).free == 1
    for client in clients:
        client.leave()
    await settle(sidecar)


async def test_where_nobody_says_how_much_a_replica_takes_nothing_waits() -> None:
    sidecar = Sidecar(queue_policy=QueuePolicy(0, TrafficClasses(())))
    clients = [Client(sidecar, request_id=f"req-{number}") for number in range(50)]
    await let_tasks_run()
    assert all(client.told == ["ForwardRequest"] for client in clients)
    assert sidecar.queues.show(POOL).slots is None
    assert not any(isinstance(note, SlotGiven) for note in sidecar.watcher.notes)
    for client in clients:
        client.leave()
    await settle(sidecar)


async def test_a_body_that_waits_is_kept_by_nobody_here() -> None:
    sidecar = build_sidecar()
    first = Client(sidecar)
    await let_tasks_run()
    body = BODY + b" " * 100_000
    held = sys.getrefcount(body)
    arrival = replace(sidecar.build_arrival(request_id="req-2", key="k"), body=body)
    delivery = sidecar.arrivals.arrive(arrival, Sent())
    del arrival
    await let_tasks_run()
    assert sidecar.queues.count_waiting(POOL) == 1
    assert sys.getrefcount(body) == held
    first.leave()
    delivery.receive(DeliveryClosed())
    await settle(sidecar)


async def answer(sidecar: Sidecar, clock: ManualClock, *seconds: float, **arrival: object) -> None:
    """Answers that take so long, one after the other."""
    for number, taken_s in enumerate(seconds):
        client = Client(sidecar, request_id=f"before-{number}", **arrival)
        await let_tasks_run()
        await client.start()
        clock.advance(taken_s)
        await client.finish()


async def test_what_answers_took_decides_who_may_wait_for_one() -> None:
    """One of four took nine seconds, so 10.8 are to be left; the mean of the slots is 3.5."""
    clock = ManualClock()
    sidecar = build_sidecar(clock=clock)
    await answer(sidecar, clock, 1.0, 2.0, 2.0, 9.0)
    busy = Client(sidecar, request_id="busy")
    late = Client(sidecar, request_id="late", deadline_s=14.2)
    waits = Client(sidecar, request_id="waits", deadline_s=14.4)
    await let_tasks_run()
    assert [one.told for one in (busy, late, waits)] == [
        ["ForwardRequest"],
        ["queue_deadline_exceeded"],
        ["HoldRequest"],
    ]
    clock.advance(3.7)
    busy.leave()  # a slot is free, and what is left is no time for an answer
    await let_tasks_run()
    assert waits.told == ["HoldRequest", "queue_deadline_exceeded"]
    late.leave()
    waits.leave()
    clock.advance(5.0)
    await settle(sidecar)


async def test_one_that_was_shortened_for_its_deadline_is_not_measured_by_the_whole_ones() -> None:
    clock = ManualClock()
    brief = TrafficClass("brief", ladder=Ladder((ShortenGeneration(2),)))
    sidecar = Sidecar(
        replicas=("a",),
        concurrency=1,
        queue_policy=QueuePolicy(8, TrafficClasses([brief])),
        clock=clock,
    )
    await answer(sidecar, clock, 2.0, 2.0, 2.0, 2.0, request_class="brief")
    busy = Client(sidecar, request_id="busy")
    hurried = Client(sidecar, request_id="hurried", request_class="brief", deadline_s=3.0)
    await let_tasks_run()
    assert hurried.told == ["HoldRequest"]
    busy.leave()
    await let_tasks_run()
    (forward,) = [one for one in hurried.sent.replies if isinstance(one, step.ForwardRequest)]
    assert forward.changed_body is not None
    hurried.leave()
    clock.advance(5.0)
    await settle(sidecar)


@pytest.mark.parametrize("watched", [True, False])
async def test_what_a_dead_replica_had_to_do_leaves_no_room_there(watched: bool) -> None:
    """Whoever waits would be sent to it, find nobody, and fall upon the others beyond their slots. Where
    nobody looks, nobody would hear of its return: there a refusal takes nothing away."""
    sidecar = Sidecar(replicas=("a", "b"), concurrency=1, probe=Refusing(), watched=watched)
    clients = [Client(sidecar, request_id=f"req-{number}") for number in range(3)]
    await let_tasks_run()
    for client in clients[:2]:
        await client.start()
    (lost,) = [one for one in clients[:2] if one.hop.replies[-1].target.replica == "a"]  # type: ignore[union-attr]
    assert lost.live is not None
    assert lost.attempt_id is not None
    gone = AttemptLogged(
        lost.attempt_id, LogCause.UPSTREAM_RESET, ReplicaId("a"), 0, "reset", "10.0.0.1:8000"
    )
    sidecar.reports.tell_loss(lost.live, gone)
    await wait_until(lambda: any(isinstance(one, AttemptFinished) for one in sidecar.watcher.notes))
    await let_tasks_run()
    assert clients[2].told == (["HoldRequest"] if watched else ["HoldRequest", "ForwardRequest"])
    if watched:
        assert [one.status.reasons for one in sidecar.fleet.view.pools[0].replicas if one.id == "a"] == [
            (ReadinessReason.REFUSED,)
        ]
    for client in clients:
        client.leave()


@pytest.mark.parametrize("moves", [False, True])
async def test_a_replica_that_gave_no_byte_says_nothing_of_how_long_answers_take(moves: bool) -> None:
    """Clients left after three seconds; who has five, and a slot in three, may wait all the same, unless they
    left a replica that was answering."""
    clock = ManualClock()
    sidecar = build_sidecar(clock=clock)
    for number in range(4):
        client = Client(sidecar, request_id=f"hung-{number}")
        await let_tasks_run()
        await client.start()
        clock.advance(2.9)
        assert client.live is not None
        assert client.attempt_id is not None
        if moves:
            await client.read_delta()
        clock.advance(0.1)
        client.leave()
        client.live.receive(AttemptClosed(client.attempt_id))
        client.live.receive(
            AttemptLogged(client.attempt_id, LogCause.DOWNSTREAM_GONE, ReplicaId("a"), 0, "downstream")
        )
        client.live.receive(ExchangeLogged(LogCause.DOWNSTREAM_GONE, ""))
        await let_tasks_run()
        clock.advance(0.01)
        show_idle(sidecar.fleet, sidecar.replicas, clock.now())
    busy, waits = Client(sidecar, request_id="busy"), Client(sidecar, request_id="waits", deadline_s=5.0)
    await let_tasks_run()
    assert busy.told == ["ForwardRequest"]
    assert waits.told == (["queue_deadline_exceeded"] if moves else ["HoldRequest"])
    busy.leave()
    waits.leave()
    clock.advance(5.0)
    await settle(sidecar)
