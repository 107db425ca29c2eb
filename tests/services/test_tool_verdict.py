"""A replay is let go after a look at the ledger, in which nobody but it can begin a call any more."""

import asyncio
from dataclasses import dataclass

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import (
    AttemptClosed,
    AttemptLogged,
    AttemptUnanswered,
    DeliveryClosed,
    ExchangeLogged,
    LogCause,
    ResponseStarted,
)
from envoy_ext.domain.ids import AttemptId, OperationId, ReplicaId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.tool_calls import (
    CallAnswered,
    CallEnd,
    CallGranted,
    CallRefusal,
    CallRefused,
    CallState,
    NewCall,
    ToolCall,
)
from envoy_ext.services.admission import Arrival
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.live_exchange import LiveExchange
from tests.support.sidecar import Sent, Sidecar


class Ledger(MemoryJournal):
    """Counts the looks at it, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.unreadable = False

    async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
        self.looks += 1
        if self.unreadable:
            raise JournalUnavailable("the disk is gone")
        return await super().read_calls(ledger_id)


@dataclass
class Play:
    """A request whose first attempt runs."""

    sidecar: Sidecar
    client: Sent
    delivery: Delivery
    live: LiveExchange
    forward: step.ForwardRequest
    attempts: list[AttemptId]

    async def attempt(self) -> Sent:
        """The ingress hop tries once more."""
        hop = Sent()
        joined = self.sidecar.exchanges.join(self.forward.exchange_id, hop)
        assert joined is not None
        self.attempts.append(joined[1])
        self.sidecar.exchanges.arrive_attempt(*joined)
        await self.sidecar.settle()
        return hop

    async def lose(self) -> None:
        """The replica of the last attempt is gone."""
        last, cause = self.attempts[-1], LogCause.UPSTREAM_RESET
        self.live.receive(AttemptUnanswered(last, cause, ReplicaId("a"), "upstream_reset", ""))
        self.live.receive(AttemptLogged(last, cause, ReplicaId("a"), 0, "upstream_reset"))
        self.live.receive(AttemptClosed(last))
        await self.sidecar.settle()

    async def leave(self) -> None:
        """The client is gone, and so is all that was done for it."""
        last, gone = self.attempts[-1], LogCause.DOWNSTREAM_GONE
        self.delivery.receive(DeliveryClosed())
        self.live.receive(AttemptClosed(last))
        self.live.receive(AttemptLogged(last, gone, ReplicaId("a"), 0, ""))
        self.live.receive(ExchangeLogged(gone, ""))
        await self.sidecar.settle()

    def want(self, attempt: int) -> NewCall:
        identity = self.live.exchange.identity
        return NewCall(
            identity.operation_id, self.attempts[attempt - 1], 1.0, "mail", "mail", "of mail", False, False
        )


async def arrive(sidecar: Sidecar, arrival: Arrival) -> Play:
    """A request that is let go on to the egress hop."""
    client = Sent()
    delivery = sidecar.arrivals.arrive(arrival, client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    assert delivery.live is not None
    return Play(sidecar, client, delivery, delivery.live, forward, [])


async def play(ledger: Ledger, watched: bool = True) -> Play:
    sidecar = Sidecar(journal=ledger, ledger=ledger if watched else None)
    play = await arrive(sidecar, sidecar.build_arrival())
    hop = await play.attempt()
    assert isinstance(hop.replies[-1], step.StartAttempt)
    return play


async def test_a_first_attempt_and_a_gateway_without_tools_look_at_nothing() -> None:
    ledger = Ledger()
    unwatched = await play(ledger, watched=False)
    await unwatched.lose()
    assert isinstance((await unwatched.attempt()).replies[-1], step.StartAttempt)
    assert ledger.looks == 0


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (CallState.RECORDED, None),
        (CallState.NOT_SENT, None),
        (CallState.UNKNOWN, "tool_outcome_unknown"),
        (CallState.NOT_KEPT, "replay_not_allowed"),
        (None, "tool_outcome_unknown"),
    ],
)
async def test_what_the_first_attempt_called_decides_about_the_second(
    state: CallState | None, code: str | None
) -> None:
    ledger = Ledger()
    it = await play(ledger)
    claim = await ledger.begin_call(it.want(1))
    assert isinstance(claim, CallGranted)
    if state is not None:
        result = KeptAnswer(200, (), b"") if state is CallState.RECORDED else None
        end = CallEnd(claim.call.call_id, claim.call.grants, 2.0, state)
        assert await ledger.end_call(claim.ledger_id, end, result)
    await it.lose()
    hop = await it.attempt()

    assert ledger.looks == 1
    if code is None:
        assert isinstance(hop.replies[-1], step.StartAttempt)
        return
    assert hop.replies == [step.RefuseAttempt(it.attempts[-1], code)]
    it.live.receive(ResponseStarted(409, "", "", replay_mark=False, refusal=code, end=False))
    await it.sidecar.settle()
    answer = it.client.replies[-1]
    assert isinstance(answer, step.RespondLocally)
    assert answer.error.code == code
    operation = await it.sidecar.operation()
    assert operation.tool_call_id == claim.call.call_id


@pytest.mark.parametrize("first_has_ended", [False, True])
@pytest.mark.parametrize(
    ("state", "code"), [(CallState.RECORDED, None), (CallState.UNKNOWN, "tool_outcome_unknown")]
)
async def test_a_retry_of_a_mesh_shares_the_ledger_of_what_it_repeats(
    first_has_ended: bool, state: CallState, code: str | None
) -> None:
    ledger = Ledger()
    first = await play(ledger)
    claim = await ledger.begin_call(first.want(1))
    assert isinstance(claim, CallGranted)
    kept = KeptAnswer(200, (), b"sent") if state is CallState.RECORDED else None
    end = CallEnd(claim.call.call_id, claim.call.grants, 2.0, state, 200 if kept else None)
    assert await ledger.end_call(claim.ledger_id, end, kept)
    sidecar, earlier = first.sidecar, first
    for _ in range(2):
        if first_has_ended:
            await earlier.leave()
            async with asyncio.timeout(5):
                await sidecar.exchanges.wait_idle()
        retry = await arrive(sidecar, sidecar.build_arrival(upstream_retry=True))
        hop = await retry.attempt()
        if code is None:
            assert isinstance(hop.replies[-1], step.StartAttempt)
            assert isinstance(await ledger.begin_call(retry.want(1)), CallAnswered)
        else:
            assert isinstance(hop.replies[-1], step.RefuseAttempt)
            assert hop.replies[-1].code == code
        earlier = retry
    stranger = await arrive(sidecar, sidecar.build_arrival(request_id="req-2", upstream_retry=True))
    assert isinstance((await stranger.attempt()).replies[-1], step.StartAttempt)
    assert isinstance(await ledger.begin_call(stranger.want(1)), CallGranted)


async def test_a_ledger_that_cannot_be_read_lets_nothing_be_done_again() -> None:
    ledger = Ledger()
    it = await play(ledger)
    await it.lose()
    ledger.unreadable = True
    hop = await it.attempt()
    assert hop.replies == [step.RefuseAttempt(it.attempts[-1], "replay_not_allowed")]


async def test_no_earlier_attempt_can_begin_a_call_behind_the_look() -> None:
    class Late(Ledger):
        """At the very look, the first attempt's engine calls."""

        claim: object = None

        async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
            self.claim = await self.begin_call(it.want(1))
            return await super().read_calls(ledger_id)

    ledger = Late()
    it = await play(ledger)
    await it.lose()
    assert isinstance((await it.attempt()).replies[-1], step.StartAttempt)
    assert ledger.claim == CallRefused(CallRefusal.FENCED)
