"""A replay is let go after a look at the ledger, in which nobody but it can begin a call any more."""

from dataclasses import dataclass

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import AttemptClosed, AttemptLogged, AttemptUnanswered, LogCause, ResponseStarted
from envoy_ext.domain.ids import AttemptId, OperationId, ReplicaId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.tool_calls import (
    CallEnd,
    CallGranted,
    CallRefusal,
    CallRefused,
    CallState,
    NewCall,
    ToolCall,
)
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

    def want(self, attempt: int) -> NewCall:
        identity = self.live.exchange.identity
        return NewCall(
            identity.operation_id, self.attempts[attempt - 1], 1.0, "mail", "mail", "of mail", False, False
        )


async def play(ledger: Ledger, watched: bool = True) -> Play:
    sidecar = Sidecar(journal=ledger, ledger=ledger if watched else None)
    client = Sent()
    delivery = sidecar.arrivals.arrive(sidecar.build_arrival(), client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    assert delivery.live is not None
    play = Play(sidecar, client, delivery.live, forward, [])
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
