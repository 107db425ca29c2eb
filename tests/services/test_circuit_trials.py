"""Where requests go while a circuit is open or half open: to others, as trials, or nowhere at once."""

import asyncio
from dataclasses import dataclass, field

from envoy_ext.domain import step
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.events import (
    AttemptAnswered,
    AttemptBody,
    AttemptClosed,
    AttemptLogged,
    DeliveryClosed,
    DrainExpired,
    LogCause,
    ResponseBody,
    ResponseStarted,
)
from envoy_ext.domain.exchange_shared import ExchangePolicy
from envoy_ext.domain.fleet_events import ControlCallFailed, ControlCallPassed
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.ladder import Ladder, OtherPool
from envoy_ext.domain.notes import AttemptFinished
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.live_exchange import LiveExchange
from tests.support.clock import ManualClock
from tests.support.sidecar import DELTA, MODEL, POOL, REST, SSE, Sent, Sidecar

POLICY = CircuitPolicy()


def build(replicas: str = "a", policy: CircuitPolicy = POLICY, **options: object) -> Sidecar:
    return Sidecar(replicas=tuple(replicas), circuit=policy, clock=ManualClock(), **options)  # type: ignore[arg-type]


def pass_time(sidecar: Sidecar, seconds: float) -> None:
    assert isinstance(sidecar.clock, ManualClock)
    sidecar.clock.advance(seconds)
    sidecar.fleet.tick()


def fail(sidecar: Sidecar, name: str = "a") -> None:
    """Three connections that are refused."""
    for number in range(3):
        ids = OperationId(f"lost_{number}"), AttemptId(f"lost_{name}{number}")
        outcome, cause = AttemptOutcome.REPLICA_DIED, LogCause.CONNECT_REFUSED
        finished = AttemptFinished(*ids, POOL, ReplicaId(name), outcome, "", cause=cause)
        sidecar.fleet.circuits.note_end(finished, ReplicaId(name))
        pass_time(sidecar, 0.001)


def answer_control_call(sidecar: Sidecar, passed: bool, name: str = "a") -> None:
    call = ControlCallPassed(1) if passed else ControlCallFailed(1, "HTTP 500")
    sidecar.fleet.receive(ReplicaId(name), call)
    sidecar.fleet.tick()


def read_state(sidecar: Sidecar, name: str = "a") -> CircuitState | None:
    return sidecar.fleet.circuits.read_state(ReplicaId(name))


def cut_off(sidecar: Sidecar) -> None:
    """The only replica fails, and so does its model."""
    fail(sidecar)
    answer_control_call(sidecar, passed=False)
    assert sidecar.fleet.is_cut_off(POOL)


def half_open(sidecar: Sidecar, name: str = "a") -> None:
    pass_time(sidecar, POLICY.open_max_s)
    answer_control_call(sidecar, True, name)
    assert read_state(sidecar, name) is CircuitState.HALF_OPEN


@dataclass
class Asked:
    """One request and, if it became one, its exchange."""

    sidecar: Sidecar
    number: int
    client: Sent = field(default_factory=Sent)
    hop: Sent = field(default_factory=Sent)
    delivery: Delivery | None = None
    live: LiveExchange | None = None
    attempt_id: AttemptId | None = None

    async def arrive(self, **options: object) -> "Asked":
        arrival = self.sidecar.build_arrival(request_id=f"req-{self.number}", **options)  # type: ignore[arg-type]
        self.delivery = self.sidecar.arrivals.arrive(arrival, self.client)
        await self.sidecar.settle()
        return self

    @property
    def refusal(self) -> tuple[str, int]:
        """The code, and the seconds of `Retry-After`."""
        (reply,) = (one for one in self.client.replies if isinstance(one, step.RespondLocally))
        return reply.error.code, reply.error.retry_after_s or 0

    async def start(self) -> str | None:
        """Let its attempt start; where it is sent, None where Envoy may choose."""
        (forward,) = (one for one in self.client.replies if isinstance(one, step.ForwardRequest))
        joined = self.sidecar.exchanges.join(forward.exchange_id, self.hop)
        assert joined is not None
        self.live, self.attempt_id = joined
        self.sidecar.exchanges.arrive_attempt(self.live, self.attempt_id)
        await self.sidecar.settle()
        start = self.hop.replies[-1]
        assert isinstance(start, step.StartAttempt)
        return None if start.target is None else str(start.target.replica)

    async def answer(self, replica: str = "a") -> None:
        """A whole answer."""
        assert self.live is not None
        assert self.attempt_id is not None
        assert self.delivery is not None
        self.live.receive(AttemptAnswered(self.attempt_id, 200, SSE, "", ReplicaId(replica), end=False))
        self.live.receive(AttemptBody(self.attempt_id, DELTA, end=False))
        await self.sidecar.settle()
        self.delivery.receive(ResponseStarted(200, SSE, "", replay_mark=False, refusal=None, end=False))
        self.delivery.receive(ResponseBody(DELTA, end=False))
        self.delivery.receive(ResponseBody(REST, end=True))
        size = len(DELTA + REST)
        self.live.receive(AttemptLogged(self.attempt_id, LogCause.COMPLETED, ReplicaId(replica), size, ""))
        self.live.receive(AttemptClosed(self.attempt_id))
        self.delivery.receive(DeliveryClosed())
        await self.sidecar.settle()


async def ask(sidecar: Sidecar, count: int, **options: object) -> list[Asked]:
    return [await Asked(sidecar, number).arrive(**options) for number in range(count)]


async def end(sidecar: Sidecar) -> None:
    """Whatever is in flight ends, and nothing is kept of it."""
    for live in list(sidecar.exchanges._live.values()):
        live.receive(DrainExpired())
        live.receive(DeliveryClosed())
    await wait_over(sidecar)
    assert sidecar.queues.idle
    assert sidecar.fleet.circuits.idle


async def wait_over(sidecar: Sidecar) -> None:
    """Until no evidence of any end is waited for."""
    async with asyncio.timeout(5):
        while sidecar.exchanges.inflight:
            assert isinstance(sidecar.clock, ManualClock)
            sidecar.clock.advance(1.0)
            await asyncio.sleep(0.01)
            await sidecar.settle()


# --- nobody serves ----------------------------------------------------------------------------


async def test_a_pool_that_is_cut_off_refuses_at_once_and_says_when_to_come_again() -> None:
    sidecar = build()
    cut_off(sidecar)
    refused = await ask(sidecar, 50)
    assert {one.refusal[0] for one in refused} == {"upstream_unavailable"}
    seconds = {one.refusal[1] for one in refused}
    assert min(seconds) >= 1
    assert max(seconds) <= POLICY.open_s * 2 + 1, "its second opening is twice as long as the first"
    assert len(seconds) > 2, "and they do not come back as one"
    assert sidecar.exchanges.inflight == 0
    (models,) = await ask(sidecar, 1, family=ApiFamily.MODELS, body=b"", path="/v1/models")
    assert models.refusal[0] == "upstream_unavailable"


async def test_who_waits_is_refused_when_the_pool_is_cut_off() -> None:
    sidecar = build(concurrency=1)
    first, second = await ask(sidecar, 2)
    assert await first.start() == "a"
    assert isinstance(second.client.replies[-1], step.HoldRequest)
    cut_off(sidecar)
    sidecar.queues.look_at_all()
    await sidecar.settle()
    assert second.refusal[0] == "upstream_unavailable"
    await end(sidecar)


async def test_a_pool_that_is_cut_off_takes_trials_few_at_a_time_and_serves_behind_them() -> None:
    sidecar = build()
    cut_off(sidecar)
    half_open(sidecar)
    assert sidecar.fleet.is_cut_off(POOL)
    (models,) = await ask(sidecar, 1, family=ApiFamily.MODELS, body=b"", path="/v1/models")
    assert models.refusal[0] == "upstream_unavailable", "what no model computes proves nothing of one"
    first, second, third = await ask(sidecar, 3)
    assert third.refusal[0] == "upstream_unavailable"
    assert [await first.start(), await second.start()] == ["a", "a"]
    await first.answer()
    (fourth, fifth) = await ask(sidecar, 2)
    assert fifth.refusal[0] == "upstream_unavailable"
    assert await fourth.start() == "a"
    await second.answer()
    await fourth.answer()
    assert read_state(sidecar) is CircuitState.CLOSED
    pass_time(sidecar, 0.25)
    many = await ask(sidecar, 20)
    assert all(isinstance(one.client.replies[-1], step.ForwardRequest) for one in many)
    await end(sidecar)


async def test_a_trial_whose_client_leaves_makes_room_for_the_next() -> None:
    sidecar = build(policy=CircuitPolicy(trial_requests=1))
    cut_off(sidecar)
    half_open(sidecar)
    first, second = await ask(sidecar, 2)
    assert second.refusal[0] == "upstream_unavailable"
    assert first.delivery is not None
    first.delivery.receive(DeliveryClosed())
    await wait_over(sidecar)
    (third,) = await ask(sidecar, 1)
    assert await third.start() == "a"
    await end(sidecar)


async def test_a_cut_off_pool_leads_down_the_ladder() -> None:
    small = PoolName("small")
    soft = TrafficClass("soft", ladder=Ladder((OtherPool(small, "small"),)))
    queue_policy = QueuePolicy(256, TrafficClasses((soft,)))
    sidecar = build(others={"small": "local"}, queue_policy=queue_policy)
    cut_off(sidecar)
    body = b'{"model": "%s", "messages": [{"role": "user", "content": "x"}]}' % MODEL.encode()
    (asked,) = await ask(sidecar, 1, request_class="soft", body=body)
    (forward,) = asked.client.replies
    assert isinstance(forward, step.ForwardRequest)
    assert forward.pool == small
    await end(sidecar)


# --- others serve -----------------------------------------------------------------------------


async def test_so_many_requests_as_are_wanted_are_trials_and_the_rest_go_elsewhere() -> None:
    sidecar = build("ab")
    fail(sidecar)
    half_open(sidecar)
    asked = await ask(sidecar, 5)
    assert [await one.start() for one in asked] == ["a", "a", "b", "b", "b"]
    await end(sidecar)


async def test_a_replay_that_begins_to_answer_blames_whoever_failed_the_request_before() -> None:
    """The whole way: an exchange tells of its attempts, and the circuits hear of both."""
    sidecar = build("ab")
    for number in range(5):
        asked = await Asked(sidecar, number).arrive()
        assert asked.delivery is not None
        first = await asked.start()
        assert asked.live is not None
        assert asked.attempt_id is not None
        lost = AttemptLogged(
            asked.attempt_id, LogCause.UPSTREAM_RESET, ReplicaId("a"), 0, "", "10.0.0.1:8000"
        )
        asked.live.receive(lost)
        asked.live.receive(AttemptClosed(asked.attempt_id))
        await sidecar.settle()
        assert first is None, "Envoy chose the first"
        assert await asked.start() == "b"
        pass_time(sidecar, 0.001)
        assert read_state(sidecar) is CircuitState.CLOSED, "its replay has not begun to answer"
        await asked.answer("b")
        pass_time(sidecar, 0.001)
    assert read_state(sidecar) is CircuitState.OPEN
    assert read_state(sidecar, "b") is CircuitState.CLOSED
    await end(sidecar)


async def test_one_that_has_to_serve_on_is_closed_by_the_requests_that_it_answers_anyway() -> None:
    sidecar = build()
    fail(sidecar)
    answer_control_call(sidecar, passed=True)
    assert read_state(sidecar) is CircuitState.HALF_OPEN
    for number in range(3):
        (asked,) = await ask(sidecar, 1)
        assert await asked.start() is None, f"request {number} is no trial: Envoy chooses"
        await asked.answer()
    assert read_state(sidecar) is CircuitState.CLOSED
    await end(sidecar)


async def test_a_request_that_could_not_be_replayed_is_no_trial_while_others_serve() -> None:
    policy = ExchangePolicy(failover=FailoverPolicy(max_replay_prompt_tokens=10), settle_s=0.05)
    sidecar = build("ab", policy=POLICY)
    sidecar.exchanges._policy = policy
    fail(sidecar)
    half_open(sidecar)
    words = b"word " * 1_000
    long = b'{"model": "%s", "stream": true, "messages": [{"role": "user", "content": "%s"}]}'
    asked = await ask(sidecar, 2, body=long % (MODEL.encode(), words))
    assert [await one.start() for one in asked] == ["b", "b"]
    (short,) = await ask(sidecar, 1)
    assert await short.start() == "a"
    await end(sidecar)


async def test_a_trial_takes_no_slot_that_it_was_promised_elsewhere() -> None:
    sidecar = build("ab", concurrency=1)
    fail(sidecar)
    half_open(sidecar)
    first, second = await ask(sidecar, 2)
    assert await first.start() == "a"
    sidecar.queues.look_at_all()
    await sidecar.settle()
    assert isinstance(second.client.replies[-1], step.ForwardRequest), "the slot at b is free again"
    await end(sidecar)
