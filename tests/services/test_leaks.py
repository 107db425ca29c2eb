"""Ten thousand requests that end in every way: when all is over nothing is counted, held or remembered.

Ends of every kind run beside each other and wait for the same slots; engines show their pages all the while.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.events import (
    AttemptAnswered,
    AttemptBody,
    AttemptClosed,
    AttemptUnanswered,
    DeliveryClosed,
    LogCause,
    ResponseBody,
    ResponseStarted,
)
from envoy_ext.domain.ids import AttemptId, FencingToken, ReplicaId
from envoy_ext.domain.notes import ExchangeEnded, RequestRefused, SlotGiven
from envoy_ext.domain.slots import SlotCount
from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.services.leases import Leases
from tests.support.members import show_idle
from tests.support.outages import count_phases
from tests.support.sidecar import DELTA, POOL, REST, SSE, Sent, Sidecar

EACH = 1_000
AT_ONCE = 50
SLOTS_EACH = 10
"""Of two replicas: fewer than run at once, so some wait in line."""
LINE: Final = 20
"""With the slots fewer than come at once, so some are refused, and come again."""
ADDRESSES = {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000"}


class Refused(Exception):
    """There was no place in the line, or not for long."""


class Awaited(Sent):
    """A hop's end at which replies are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.more = asyncio.Event()

    def send(self, reply: step.Reply) -> None:
        super().send(reply)
        self.more.set()


class Request:
    """One client's request, with what Envoy tells of it."""

    def __init__(self, sidecar: Sidecar, number: int) -> None:
        self.sidecar = sidecar
        self.sent = Awaited()
        key = f"key-{number}" if number % 2 else None
        # One that has less in a full line than another sends that one's last away.
        caller = "few" if number % 5 == 0 else "many"
        arrival = sidecar.build_arrival(request_id=f"req-{number}", key=key, caller=caller)
        self.delivery = sidecar.arrivals.arrive(arrival, self.sent)
        self.exchange_id = ""
        self.replica = ""

    async def wait_for(self, sent: "Awaited", kind: type) -> object:
        """The first reply of a kind."""
        while True:
            found = next((reply for reply in sent.replies if isinstance(reply, kind)), None)
            if found is not None:
                return found
            if not self.exchange_id and self.is_refused:
                raise Refused
            sent.more.clear()
            await sent.more.wait()

    @property
    def is_refused(self) -> bool:
        """The gateway has answered by itself."""
        return any(isinstance(reply, step.RespondLocally) for reply in self.sent.replies)

    async def start(self) -> AttemptId:
        """An attempt asks at the gate, and is let go."""
        attempt_id, hop = await self.ask()
        started = await self.wait_for(hop, step.StartAttempt)
        assert isinstance(started, step.StartAttempt)
        self.replica = "a" if started.target is None else started.target.replica
        return attempt_id

    async def ask(self) -> tuple[AttemptId, Awaited]:
        forward = await self.wait_for(self.sent, step.ForwardRequest)
        assert isinstance(forward, step.ForwardRequest)
        self.exchange_id, hop = forward.exchange_id, Awaited()
        joined = self.sidecar.exchanges.join(self.exchange_id, hop)
        assert joined is not None
        self.live, attempt_id = joined
        self.sidecar.exchanges.arrive_attempt(self.live, attempt_id)
        return attempt_id, hop

    def answer(self, attempt_id: AttemptId) -> None:
        self.live.receive(AttemptAnswered(attempt_id, 200, SSE, "", ReplicaId(self.replica), end=False))

    async def stream(self, attempt_id: AttemptId) -> None:
        """The first delta is with the client."""
        self.answer(attempt_id)
        self.live.receive(AttemptBody(attempt_id, DELTA, end=False))
        while self.live.exchange.released_attempt is None or self.live.writing:
            await asyncio.sleep(0)
        self.delivery.receive(ResponseStarted(200, SSE, "", replay_mark=False, refusal=None, end=False))
        self.delivery.receive(ResponseBody(DELTA, end=False))

    def log(self, attempt_id: AttemptId, cause: LogCause) -> None:
        """The attempt's stream and its log entry."""
        self.live.receive(AttemptClosed(attempt_id))
        self.sidecar.reports.log_attempt(attempt_id, cause, ADDRESSES[self.replica], len(DELTA), "")

    def close(self, cause: LogCause) -> None:
        """The client's side is over."""
        self.delivery.receive(DeliveryClosed())
        self.sidecar.reports.log_exchange(self.exchange_id, cause, "")

    async def finish(self, attempt_id: AttemptId) -> None:
        await self.stream(attempt_id)
        self.delivery.receive(ResponseBody(REST, end=True))
        self.log(attempt_id, LogCause.COMPLETED)
        self.close(LogCause.COMPLETED)

    def leave(self, attempt_id: AttemptId) -> None:
        self.log(attempt_id, LogCause.DOWNSTREAM_GONE)
        self.close(LogCause.DOWNSTREAM_GONE)


async def is_answered(one: Request) -> None:
    await one.finish(await one.start())


async def leaves_on_arrival(one: Request) -> None:
    one.close(LogCause.DOWNSTREAM_GONE)


async def leaves_in_prefill(one: Request) -> None:
    one.leave(await one.start())


async def leaves_while_held(one: Request) -> None:
    attempt_id = await one.start()
    one.answer(attempt_id)
    one.leave(attempt_id)


async def leaves_in_decode(one: Request) -> None:
    attempt_id = await one.start()
    await one.stream(attempt_id)
    one.leave(attempt_id)


async def leaves_and_its_worker_says_so_later(one: Request) -> None:
    attempt_id = await one.start()
    one.leave(attempt_id)
    await asyncio.sleep(0)
    leases = Leases(one.sidecar.exchanges, one.sidecar.fleet.streams, one.sidecar.clock)
    leases.note_stopped(one.live.exchange.identity.operation_id, attempt_id, FencingToken(1))


async def is_replayed(one: Request) -> None:
    lost = await one.start()
    one.live.receive(
        AttemptUnanswered(lost, LogCause.UPSTREAM_RESET, ReplicaId(one.replica), "", ADDRESSES[one.replica])
    )
    one.log(lost, LogCause.UPSTREAM_RESET)
    await one.finish(await one.start())


async def leaves_at_the_fence(one: Request) -> None:
    lost = await one.start()
    one.log(lost, LogCause.UPSTREAM_TIMEOUT)
    attempt_id, _ = await one.ask()
    one.live.receive(AttemptClosed(attempt_id))
    one.close(LogCause.DOWNSTREAM_GONE)


async def is_interrupted(one: Request) -> None:
    attempt_id = await one.start()
    await one.stream(attempt_id)
    one.log(attempt_id, LogCause.UPSTREAM_RESET)
    one.close(LogCause.COMPLETED)


async def is_refused(one: Request) -> None:
    """Its only attempt finds no replica, and the next one is not allowed."""
    attempt_id = await one.start()
    one.live.receive(AttemptAnswered(attempt_id, 400, "application/json", "", ReplicaId(one.replica), True))
    one.delivery.receive(
        ResponseStarted(400, "application/json", "", replay_mark=False, refusal=None, end=True)
    )
    one.log(attempt_id, LogCause.COMPLETED)
    one.close(LogCause.COMPLETED)


WAYS: tuple[Callable[[Request], Awaitable[None]], ...] = (
    is_answered,
    leaves_on_arrival,
    leaves_in_prefill,
    leaves_while_held,
    leaves_in_decode,
    leaves_and_its_worker_says_so_later,
    is_replayed,
    leaves_at_the_fence,
    is_interrupted,
    is_refused,
)


async def show_pages(sidecar: Sidecar) -> None:
    """Engines that notice at once."""
    while True:
        show_idle(sidecar.fleet, sidecar.replicas, sidecar.clock.now())
        sidecar.queues.look_at_all()
        await asyncio.sleep(0.001)


async def play(sidecar: Sidecar, numbers: list[int]) -> None:
    for number in numbers:
        while True:
            one = Request(sidecar, number)
            try:
                await WAYS[number % len(WAYS)](one)
                break
            except Refused:
                one.delivery.receive(DeliveryClosed())
                await asyncio.sleep(0.001)


# Some 15 s of computing: on a machine with much else to do, minutes.
@pytest.mark.timeout(600)
async def test_nothing_is_left_when_all_is_over() -> None:
    sidecar = Sidecar(concurrency=SLOTS_EACH, queue_policy=QueuePolicy(LINE, TrafficClasses([])))
    numbers = list(range(EACH * len(WAYS)))
    random.Random(1).shuffle(numbers)
    pages = asyncio.create_task(show_pages(sidecar))
    async with asyncio.timeout(500):
        await asyncio.gather(*(play(sidecar, numbers[begin::AT_ONCE]) for begin in range(AT_ONCE)))
        await sidecar.exchanges.wait_idle()
        await sidecar.exchanges.aclose()
        while sum(sidecar.fleet.streams.count(ReplicaId(one)).inflight for one in sidecar.replicas):
            await asyncio.sleep(0.001)
    pages.cancel()
    await asyncio.wait({pages})

    assert sidecar.watcher.bugs == []
    assert any(isinstance(note, SlotGiven) and note.waited_s > 0 for note in sidecar.watcher.notes)
    refused = Counter(note.code for note in sidecar.watcher.notes if isinstance(note, RequestRefused))
    sent_away = sum(
        isinstance(note, ExchangeEnded) and note.code == "queue_full" for note in sidecar.watcher.notes
    )
    assert refused["queue_full"] >= EACH
    assert sent_away >= EACH // 10
    ended = sum(isinstance(note, ExchangeEnded) for note in sidecar.watcher.notes)
    assert ended >= EACH * (len(WAYS) - 1)
    assert not any(count_phases(sidecar.watcher.notes).values())
    streams, exchanges, repeats = sidecar.fleet.streams, sidecar.exchanges, sidecar.exchanges.repeats
    assert [streams.count(ReplicaId(one)) for one in sidecar.replicas] == [SlotCount(), SlotCount()]
    assert (len(streams._slots), len(streams._lives), streams.count_unplaced(POOL)) == (0, 0, 0)
    assert (exchanges._live, exchanges._attempts, exchanges._request_keys) == ({}, {}, {})
    assert (repeats._keys, repeats._claims, repeats._live) == ({}, {}, {})
    assert exchanges._background._tasks == set()
    assert sidecar.queues.idle
