"""The ledger of tool calls: which were begun for an operation, and what is known of each.

A tool may act on the world, and an engine that answers again calls it again. So each call is written down
before it leaves, under a key minted here: engines number their calls anew at every generation, and some
repeat the numbers. A later attempt that makes the same call is given the recorded result; one that cannot
be told what the call did may not make it.

A call is named by what it is (`fingerprint`: tool and canonical arguments, or the caller's own key) and by
its `ordinal` among equal calls: two equal calls of one attempt are two calls, as the engine wanted, unless
the first one got no answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from itertools import chain
from typing import NewType

from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.operation import Operation

CallId = NewType("CallId", str)
"""One call in one ledger: `call_` and 32 hexadecimal digits. The tool's `Idempotency-Key` is made of it."""


class CallState(StrEnum):
    """What is known of a call."""

    BEGUN = "begun"
    """It may leave, or has left; there is no answer yet."""
    RECORDED = "recorded"
    """Answered, and the answer is kept."""
    NOT_KEPT = "not_kept"
    """Answered, and the answer is too large to be kept: it has acted, and cannot be given again."""
    NOT_SENT = "not_sent"
    """It never reached the tool."""
    UNKNOWN = "unknown"
    """Sent, and no whole answer came."""


class CallRefusal(StrEnum):
    """Why a call may not be made."""

    FENCED = "fenced"
    """Its attempt is not the one that may act for the operation now, or the operation has ended."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """An earlier attempt made it, and nobody knows what came of it."""
    RESULT_NOT_KEPT = "result_not_kept"
    """An earlier attempt made it; its answer cannot be given again."""
    IN_FLIGHT = "in_flight"
    """It is being made under the same key at this moment."""
    DIVERGED = "diverged"
    """It is another call than the one an earlier attempt made in its place: both would have acted."""
    KEY_REUSED = "key_reused"
    """The caller's own key was used with other arguments."""


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call that an attempt wants to make."""

    operation_id: OperationId
    attempt_id: AttemptId
    at: float
    """Unix seconds."""
    tool: str
    fingerprint: str
    """Hash of the tool and its canonical arguments, or of the tool and the caller's own key."""
    arguments_sha256: str
    keyed: bool
    """Whether the caller gave a key of its own: then equal calls are one."""
    idempotent: bool
    """Whether the configuration says that this tool may be called twice."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a ledger. Its arguments are not there, and its result stands elsewhere."""

    call_id: CallId
    tool: str
    fingerprint: str
    arguments_sha256: str
    ordinal: int
    """From 1, among the calls of one fingerprint."""
    idempotent: bool
    attempts: tuple[AttemptId, ...]
    """Those that made this call, or were given its result; in order."""
    operation_id: OperationId
    """Whose attempt made it last: a ledger outlives an operation that is run again."""
    state: CallState
    begun_at: float
    ended_at: float | None = None
    status: int | None = None
    """HTTP status of its answer."""
    grants: int = 1
    """How often it was let through: again only where it had not been sent, or may be made twice."""

    @property
    def maker(self) -> AttemptId:
        """The attempt that it was let through for, while it has no end."""
        return self.attempts[-1]


@dataclass(frozen=True, slots=True)
class CallGranted:
    """The call may leave: it stands in the ledger as begun."""

    call: ToolCall
    ledger_id: OperationId
    """The ledger that it stands in."""


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The call was made before; its result is in the ledger."""

    call: ToolCall
    ledger_id: OperationId


@dataclass(frozen=True, slots=True)
class CallRefused:
    """The call may not be made; the ledger is as it was."""

    why: CallRefusal
    call_id: CallId | None = None
    """The call in the ledger that stands in its way; None where there is none."""


Claim = CallGranted | CallAnswered | CallRefused


@dataclass(frozen=True, slots=True)
class CallEnd:
    """What became of a call that was let through."""

    call_id: CallId
    grant: int
    """Which time (`ToolCall.grants`, as it was granted): a late or repeated end is none of a later time."""
    at: float
    state: CallState
    status: int | None = None


def may_begin_calls(operation: Operation | None, attempt_id: AttemptId) -> bool:
    """Whether an attempt acts for its operation at this moment: the newest one, while neither has ended."""
    if operation is None or operation.ending is not None:
        return False
    started = [attempt for attempt in operation.attempts if attempt.started_at is not None]
    return bool(started) and started[-1].attempt_id == attempt_id and started[-1].outcome is None


def decide_claim(ledger_id: OperationId, calls: Sequence[ToolCall], wanted: NewCall) -> Claim:
    """May an attempt make this call? It is one that may begin calls at all (`may_begin_calls`).

    The call of a `CallGranted` or `CallAnswered` is as it stands in the ledger from now on.
    """
    equal = [call for call in calls if call.fingerprint == wanted.fingerprint]
    known = _find_known(equal, wanted)
    if known is None:
        return _decide_new(ledger_id, calls, len(equal) + 1, wanted)
    if known.arguments_sha256 != wanted.arguments_sha256:
        return CallRefused(CallRefusal.KEY_REUSED, known.call_id)
    others = [one for one in known.attempts if one != wanted.attempt_id]
    claimed = replace(known, attempts=(*others, wanted.attempt_id), operation_id=wanted.operation_id)
    if known.state is CallState.RECORDED:
        return CallAnswered(claimed, ledger_id)
    if known.state is CallState.BEGUN and known.maker == wanted.attempt_id:
        return CallRefused(CallRefusal.IN_FLIGHT, known.call_id)
    if known.state is CallState.NOT_SENT or wanted.idempotent:
        return CallGranted(_begin_again(claimed, wanted), ledger_id)
    not_kept = known.state is CallState.NOT_KEPT
    why = CallRefusal.RESULT_NOT_KEPT if not_kept else CallRefusal.OUTCOME_UNKNOWN
    return CallRefused(why, known.call_id)


def check_end(end: CallEnd, result: object | None) -> None:
    """A result is kept of a recorded call, and of no other."""
    if (end.state is CallState.RECORDED) != (result is not None):
        raise ImpossibleEvent(f"an end {end.state} of a tool call, with a result or without one")


def end_call(call: ToolCall, end: CallEnd) -> ToolCall:
    """The call after its end. The first one of its last grant counts."""
    if call.state is not CallState.BEGUN or call.grants != end.grant:
        return call
    return replace(call, state=end.state, ended_at=end.at, status=end.status)


def find_unknown(calls: Sequence[ToolCall]) -> ToolCall | None:
    """The first call that has acted or has not, and may not be made twice."""
    return _find(calls, CallState.BEGUN, CallState.UNKNOWN)


def find_not_kept(calls: Sequence[ToolCall]) -> ToolCall | None:
    """The first call that has acted, may not be made twice, and cannot be answered from the ledger."""
    return _find(calls, CallState.NOT_KEPT)


def mint_call_id(ledger_id: OperationId, fingerprint: str, ordinal: int) -> CallId:
    """The same for the same call, whichever attempt makes it at whichever gateway."""
    named = f"{ledger_id}\n{fingerprint}\n{ordinal}".encode("utf-8", "surrogatepass")
    return CallId(f"call_{sha256(named).hexdigest()[:32]}")


def _find_known(equal: Sequence[ToolCall], wanted: NewCall) -> ToolCall | None:
    if wanted.keyed:
        return equal[0] if equal else None
    # What was never sent is as if it had not been asked for, whoever asked. It comes last: what an equal call
    # has done already is given first, for the attempt may want no second one.
    unsent = (call for call in equal if call.state is CallState.NOT_SENT)
    acted = (call for call in equal if call.state is not CallState.NOT_SENT)
    return next(chain((call for call in acted if _is_due(call, wanted.attempt_id)), unsent), None)


def _is_due(call: ToolCall, attempt_id: AttemptId) -> bool:
    """Whether an attempt that wants an equal call means this one: it has not had it, or lost its answer.

    HTTP clients repeat by themselves what got no answer, so that is no second call.
    """
    return attempt_id not in call.attempts or call.state is CallState.UNKNOWN


def _begin_again(call: ToolCall, wanted: NewCall) -> ToolCall:
    return replace(
        call,
        idempotent=wanted.idempotent,
        state=CallState.BEGUN,
        begun_at=wanted.at,
        ended_at=None,
        status=None,
        grants=call.grants + 1,
    )


def _decide_new(ledger_id: OperationId, calls: Sequence[ToolCall], ordinal: int, wanted: NewCall) -> Claim:
    if not wanted.idempotent:
        # What earlier attempts did must be asked for again before anything new is done.
        acted = (call for call in calls if not call.idempotent and call.state is not CallState.NOT_SENT)
        skipped = next((call for call in acted if wanted.attempt_id not in call.attempts), None)
        if skipped is not None:
            return CallRefused(CallRefusal.DIVERGED, skipped.call_id)
    return CallGranted(
        ToolCall(
            call_id=mint_call_id(ledger_id, wanted.fingerprint, ordinal),
            tool=wanted.tool,
            fingerprint=wanted.fingerprint,
            arguments_sha256=wanted.arguments_sha256,
            ordinal=ordinal,
            idempotent=wanted.idempotent,
            attempts=(wanted.attempt_id,),
            operation_id=wanted.operation_id,
            state=CallState.BEGUN,
            begun_at=wanted.at,
        ),
        ledger_id,
    )


def _find(calls: Sequence[ToolCall], *states: CallState) -> ToolCall | None:
    return next((call for call in calls if not call.idempotent and call.state in states), None)
