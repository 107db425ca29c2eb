"""One note of every kind, for tests that feed observers."""

from typing import get_args

from envoy_ext.domain import step
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Phase, Reason, RungName
from envoy_ext.domain.tool_calls import CallId, CallState
from envoy_ext.domain.tool_errors import CallOutcome

CHAT = PoolName("chat")


def attempt_finished(
    outcome: AttemptOutcome = AttemptOutcome.REPLICA_DIED, detail: str = "upstream_reset"
) -> step.AttemptFinished:
    return step.AttemptFinished(
        OperationId("op_1"), AttemptId("att_1"), CHAT, ReplicaId("a"), outcome, detail
    )


def exchange_ended(request_id: str = "req-1", ending: Ending = Ending.UPSTREAM_BROKE) -> step.ExchangeEnded:
    return step.ExchangeEnded(
        operation_id=OperationId("op_1"),
        request_id=request_id,
        pool=CHAT,
        ending=ending,
        reason=Reason.REPLICA_DIED,
        code="upstream_decode_interrupted",
        attempts=2,
        delivered_deltas=37,
        duration_s=1.5,
    )


SAMPLES: dict[type, step.Note] = {
    step.PhaseChanged: step.PhaseChanged(CHAT, None, Phase.PREFILL),
    step.FirstDelta: step.FirstDelta(CHAT, 0.3),
    step.ReplayStarted: step.ReplayStarted(CHAT, ReplicaId("b"), AttemptOutcome.REPLICA_DIED),
    step.FenceAwaited: step.FenceAwaited(AttemptId("att_1"), CHAT, ReplicaId("a")),
    step.LedgerAwaited: step.LedgerAwaited(AttemptId("att_2"), OperationId("op_1")),
    step.FenceReached: step.FenceReached(CHAT, 6.5),
    step.ReplayRefused: step.ReplayRefused(
        OperationId("op_1"), CHAT, "replay_not_allowed", "the prompt is too long to compute again"
    ),
    step.AttemptFinished: attempt_finished(),
    step.StreamInterrupted: step.StreamInterrupted(CHAT, Reason.REPLICA_DIED),
    step.ExchangeEnded: exchange_ended(),
    step.AttemptPlaced: step.AttemptPlaced(AttemptId("att_1"), CHAT, ReplicaId("a")),
    step.AttemptLetGo: step.AttemptLetGo(AttemptId("att_1"), CHAT),
    step.AttemptProved: step.AttemptProved(AttemptId("att_1"), CHAT, FenceProof.CANCEL_ACK),
    step.WentUnrecorded: step.WentUnrecorded(CHAT),
    step.StoreLost: step.StoreLost("the disk is full"),
    step.StoreBack: step.StoreBack(12.5),
    step.RequestRefused: step.RequestRefused(CHAT, "draining"),
    step.HandOffFailed: step.HandOffFailed(OperationId("op_1"), CHAT),
    step.BoundaryHeld: step.BoundaryHeld(CHAT, "req-1", OperationId("op_1"), "default"),
    step.AnswerReplayed: step.AnswerReplayed(CHAT, OperationId("op_1"), "req-2"),
    step.RequestDegraded: step.RequestDegraded(CHAT, (RungName.SHORTEN_GENERATION, RungName.POOL)),
    step.SlotGiven: step.SlotGiven(CHAT, 2.5),
    step.MalformedEvents: step.MalformedEvents(CHAT, 3),
    step.ToolCallDecided: step.ToolCallDecided(
        "mail", CallOutcome.DIVERGED, OperationId("op_1"), AttemptId("att_2"), CallId("call_1")
    ),
    step.ToolCallEnded: step.ToolCallEnded(
        "mail", CallState.UNKNOWN, True, OperationId("op_1"), CallId("call_1")
    ),
}

KINDS: tuple[type, ...] = get_args(step.Note)
"""The members of the closed union `Note`; a member without a sample fails the tests that use both."""
