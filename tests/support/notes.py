"""One note of every kind, for tests that feed observers."""

from typing import get_args

from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.job import JobState
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.notes import (
    AnswerReplayed,
    AttemptFinished,
    AttemptLetGo,
    AttemptPlaced,
    AttemptProved,
    BoundaryHeld,
    ExchangeEnded,
    FenceAwaited,
    FenceReached,
    FirstDelta,
    HandOffFailed,
    JobEnded,
    JobSubmitted,
    LedgerAwaited,
    MalformedEvents,
    Note,
    PhaseChanged,
    ReplayRefused,
    ReplayStarted,
    RequestDegraded,
    RequestRefused,
    SlotGiven,
    StoreBack,
    StoreLost,
    StreamInterrupted,
    ToolCallDecided,
    ToolCallEnded,
    WentUnrecorded,
)
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Phase, Reason, RungName
from envoy_ext.domain.tool_calls import CallId, CallState
from envoy_ext.domain.tool_errors import CallOutcome

CHAT = PoolName("chat")


def attempt_finished(
    outcome: AttemptOutcome = AttemptOutcome.REPLICA_DIED, detail: str = "upstream_reset"
) -> AttemptFinished:
    return AttemptFinished(OperationId("op_1"), AttemptId("att_1"), CHAT, ReplicaId("a"), outcome, detail)


def exchange_ended(request_id: str = "req-1", ending: Ending = Ending.UPSTREAM_BROKE) -> ExchangeEnded:
    return ExchangeEnded(
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


SAMPLES: dict[type, Note] = {
    PhaseChanged: PhaseChanged(CHAT, None, Phase.PREFILL),
    FirstDelta: FirstDelta(CHAT, 0.3),
    ReplayStarted: ReplayStarted(CHAT, ReplicaId("b"), AttemptOutcome.REPLICA_DIED),
    FenceAwaited: FenceAwaited(AttemptId("att_1"), CHAT, ReplicaId("a")),
    LedgerAwaited: LedgerAwaited(AttemptId("att_2"), OperationId("op_1")),
    FenceReached: FenceReached(CHAT, 6.5),
    ReplayRefused: ReplayRefused(
        OperationId("op_1"), CHAT, "replay_not_allowed", "the prompt is too long to compute again"
    ),
    AttemptFinished: attempt_finished(),
    StreamInterrupted: StreamInterrupted(CHAT, Reason.REPLICA_DIED),
    ExchangeEnded: exchange_ended(),
    AttemptPlaced: AttemptPlaced(AttemptId("att_1"), CHAT, ReplicaId("a")),
    AttemptLetGo: AttemptLetGo(AttemptId("att_1"), CHAT),
    AttemptProved: AttemptProved(AttemptId("att_1"), CHAT, FenceProof.CANCEL_ACK),
    WentUnrecorded: WentUnrecorded(CHAT),
    StoreLost: StoreLost("the disk is full"),
    StoreBack: StoreBack(12.5),
    RequestRefused: RequestRefused(CHAT, "draining"),
    HandOffFailed: HandOffFailed(OperationId("op_1"), CHAT),
    BoundaryHeld: BoundaryHeld(CHAT, "req-1", OperationId("op_1"), "default"),
    AnswerReplayed: AnswerReplayed(CHAT, OperationId("op_1"), "req-2"),
    JobSubmitted: JobSubmitted(OperationId("op_1"), "req-1", CHAT, rung=False),
    JobEnded: JobEnded(OperationId("op_1"), "req-1", CHAT, JobState.SUCCEEDED, None, 1),
    RequestDegraded: RequestDegraded(CHAT, (RungName.SHORTEN_GENERATION, RungName.POOL)),
    SlotGiven: SlotGiven(CHAT, 2.5),
    MalformedEvents: MalformedEvents(CHAT, 3),
    ToolCallDecided: ToolCallDecided(
        "mail", CallOutcome.DIVERGED, OperationId("op_1"), AttemptId("att_2"), CallId("call_1")
    ),
    ToolCallEnded: ToolCallEnded("mail", CallState.UNKNOWN, True, OperationId("op_1"), CallId("call_1")),
}

KINDS: tuple[type, ...] = get_args(Note)
"""The members of the closed union `Note`; a member without a sample fails the tests that use both."""
