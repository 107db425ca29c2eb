"""Calls of tools: looked up before they leave, recorded before their answer is given away.

The ledger is in the store, so a call may come through any gateway that shares it. A call whose end cannot
be recorded stays `begun` there, which counts as unknown: whoever reads the ledger errs to the safe side, and
the answer is given to the engine all the same.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, assert_never

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.json_rpc import address_answer
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import ToolCallDecided, ToolCallEnded
from envoy_ext.domain.tool_calls import (
    CallAnswered,
    CallEnd,
    CallGranted,
    CallRefusal,
    CallRefused,
    CallState,
    NewCall,
)
from envoy_ext.domain.tool_errors import CallOutcome, build_no_answer, build_refusal, build_unrecorded
from envoy_ext.domain.tool_request import (
    CallIdentity,
    HttpRequest,
    NoCall,
    ToolPolicy,
    Unreadable,
    identify_call,
)
from envoy_ext.ports import Clock, Observer, ToolLedger
from envoy_ext.services.background import Background


class ToolSink(Protocol):
    """The engine's side of one request to a tool, as the service speaks to it. Each is said once at most."""

    def pass_on(self) -> None:
        """Let it go, unwatched."""

    def let_out(self, key: str) -> None:
        """Let the call go to its tool, under this idempotency key."""

    def answer(self, result: KeptAnswer) -> None:
        """Give this recorded result, and do not ask the tool."""

    def refuse(self, error: ClientError) -> None:
        """Answer with an error; the tool is not asked, or has given nothing."""

    def release(self) -> None:
        """Give the engine what is held of the tool's answer: it is recorded."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """One request to a tool, with what it says of whom it is made for."""

    tool: str
    """By the name in the configuration."""
    http: HttpRequest
    request_id: str
    operation_id: OperationId | None
    attempt_id: AttemptId | None


class _Stage(Enum):
    ASKING = auto()
    """The ledger is asked."""
    OUT = auto()
    """With the tool, or on its way there or back."""
    OVER = auto()


class LiveCall:
    """One request to a tool, from its arrival to its end. Its adapter tells of it what Envoy tells."""

    def __init__(self, tools: "Tools", request: ToolRequest, identity: CallIdentity, sink: ToolSink) -> None:
        self._tools = tools
        self.request = request
        self.identity = identity
        self.sink = sink
        self.stage = _Stage.ASKING
        self.left = False
        """Whether its engine has gone while the ledger was asked."""
        self.granted: CallGranted | None = None

    def note_answered(self, result: KeptAnswer) -> None:
        """The tool's whole answer has come; the sink is told `release` once it is recorded."""
        self._end(CallState.RECORDED, result.status, result)

    def note_large_answer(self, status: int) -> None:
        """The tool's answer has come to its end, and is too large to be kept; `release` as above."""
        self._end(CallState.NOT_KEPT, status)

    def note_unanswered(self, *, sent: bool) -> None:
        """Envoy has no whole answer; the sink is told `refuse` once that is recorded."""
        state = CallState.UNKNOWN if sent else CallState.NOT_SENT
        error = build_no_answer(state, self.request.request_id, self.operation_id)
        self._end(state, error=error)

    def note_closed(self) -> None:
        """The engine has gone, or its connection: whatever was under way has no answer."""
        self.left = True
        if self.stage is _Stage.OUT:
            self._end(CallState.UNKNOWN)

    @property
    def operation_id(self) -> OperationId:
        """Whom it is made for."""
        assert self.request.operation_id is not None, "a call that is watched has one"
        return self.request.operation_id

    @property
    def attempt_id(self) -> AttemptId:
        """Whom it is made by."""
        assert self.request.attempt_id is not None, "a call that is watched has one"
        return self.request.attempt_id

    def _end(
        self,
        state: CallState,
        status: int | None = None,
        result: KeptAnswer | None = None,
        error: ClientError | None = None,
    ) -> None:
        if self.stage is _Stage.OUT:
            self.stage = _Stage.OVER
            self._tools.record_end(self, state, status, result, error)


class Tools:
    """The ledger as the tool listener uses it. Runs on one event loop."""

    def __init__(
        self,
        ledger: ToolLedger,
        policies: Mapping[str, ToolPolicy],
        *,
        require_operation: bool,
        clock: Clock,
        observer: Observer,
        background: Background,
    ) -> None:
        self._ledger = ledger
        self._policies = policies
        self._require_operation = require_operation
        self._clock = clock
        self._observer = observer
        self._background = background
        self._ending: dict[OperationId, set[asyncio.Event]] = {}
        """Ends on their way to the store. The next call of their operation waits for them: it may be the
        engine's repetition of the one that has just ended."""

    def arrive(self, request: ToolRequest, sink: ToolSink) -> LiveCall | None:
        """A whole request has come. None when the sink has been told all there is to say."""
        policy = self._policies.get(request.tool)
        if policy is None:
            self._refuse(request, sink, "no tool has this path", status=404)
        elif request.operation_id is None and request.attempt_id is None:
            self._arrive_unnamed(request, sink)
        elif request.operation_id is None or request.attempt_id is None:
            self._refuse(request, sink, "names an operation or an attempt without the other: pass both on")
        else:
            return self._arrive_named(policy, request, sink)
        return None

    def _arrive_unnamed(self, request: ToolRequest, sink: ToolSink) -> None:
        if self._require_operation:
            self._refuse(request, sink, "names no operation: pass the headers of the served request on")
            return
        self._note(request, CallOutcome.UNWATCHED)
        sink.pass_on()

    def _arrive_named(self, policy: ToolPolicy, request: ToolRequest, sink: ToolSink) -> LiveCall | None:
        match identity := identify_call(policy, request.http):
            case NoCall():
                self._note(request, CallOutcome.PASSED)
                sink.pass_on()
                return None
            case Unreadable():
                self._refuse(request, sink, identity.why)
                return None
            case CallIdentity():
                live = LiveCall(self, request, identity, sink)
                self._background.run(self._begin(live))
                return live
            case _:
                assert_never(identity)

    async def _begin(self, live: LiveCall) -> None:
        request = live.request
        try:
            for event in tuple(self._ending.get(live.operation_id, ())):
                await event.wait()
            claim = await self._ledger.begin_call(
                NewCall(
                    operation_id=live.operation_id,
                    attempt_id=live.attempt_id,
                    at=self._clock.wall(),
                    tool=request.tool,
                    fingerprint=live.identity.fingerprint,
                    arguments_sha256=live.identity.arguments_sha256,
                    keyed=live.identity.keyed,
                    idempotent=live.identity.idempotent,
                )
            )
            result = None
            if isinstance(claim, CallAnswered):
                result = await self._ledger.read_result(claim.ledger_id, claim.call.call_id)
        except JournalUnavailable:
            self._note(request, CallOutcome.UNAVAILABLE)
            live.stage = _Stage.OVER
            live.sink.refuse(build_unrecorded(request.request_id, live.operation_id))
            return
        match claim:
            case CallGranted():
                self._let_out(live, claim)
            case CallAnswered() if result is not None:
                self._note(request, CallOutcome.ANSWERED, claim)
                live.stage = _Stage.OVER
                live.sink.answer(_address(live, result))
            case CallAnswered():  # it was, and retention has taken it in this moment
                self._refuse_claim(live, CallRefused(CallRefusal.RESULT_NOT_KEPT, claim.call.call_id))
            case CallRefused():
                self._refuse_claim(live, claim)
            case _:
                assert_never(claim)

    def _let_out(self, live: LiveCall, claim: CallGranted) -> None:
        self._note(live.request, CallOutcome.GRANTED, claim)
        live.granted = claim
        live.stage = _Stage.OUT
        if live.left:
            live.note_unanswered(sent=False)
        else:
            live.sink.let_out(live.request.http.key or claim.call.call_id)

    def _refuse_claim(self, live: LiveCall, claim: CallRefused) -> None:
        self._note(live.request, CallOutcome(claim.why), claim)
        live.stage = _Stage.OVER
        live.sink.refuse(build_refusal(claim.why, live.request.request_id, live.operation_id))

    def _refuse(self, request: ToolRequest, sink: ToolSink, text: str, status: int | None = None) -> None:
        self._note(request, CallOutcome.INVALID)
        message = f"This call of a tool {text}."
        sink.refuse(ClientError("invalid_request", request.request_id, message=message, status=status))

    # --- ends ---------------------------------------------------------------------------------

    def record_end(
        self,
        live: LiveCall,
        state: CallState,
        status: int | None,
        result: KeptAnswer | None,
        error: ClientError | None,
    ) -> None:
        """Write what became of a call that was let out, then tell its sink."""
        written = asyncio.Event()
        self._ending.setdefault(live.operation_id, set()).add(written)
        self._background.run(self._record_end(live, state, status, result, error, written))

    async def _record_end(
        self,
        live: LiveCall,
        state: CallState,
        status: int | None,
        result: KeptAnswer | None,
        error: ClientError | None,
        written: asyncio.Event,
    ) -> None:
        assert live.granted is not None, "only what was granted has an end"
        call = live.granted.call
        end = CallEnd(call.call_id, call.grants, self._clock.wall(), state, status)
        recorded = False
        try:
            await self._ledger.end_call(live.granted.ledger_id, end, result)
            recorded = True
        except JournalUnavailable:
            pass  # it stays begun
        finally:
            written.set()
            self._forget_end(live.operation_id, written)
        self._observer.note(
            ToolCallEnded(live.request.tool, state, recorded, live.operation_id, call.call_id)
        )
        if live.left:
            return
        if error is None:
            live.sink.release()
        else:
            live.sink.refuse(error)

    def _forget_end(self, operation_id: OperationId, written: asyncio.Event) -> None:
        ending = self._ending[operation_id]
        ending.discard(written)
        if not ending:
            del self._ending[operation_id]

    def _note(
        self,
        request: ToolRequest,
        outcome: CallOutcome,
        claim: CallGranted | CallAnswered | CallRefused | None = None,
    ) -> None:
        call_id = None
        if claim is not None:
            call_id = claim.call_id if isinstance(claim, CallRefused) else claim.call.call_id
        tool = request.tool if request.tool in self._policies else None
        self._observer.note(ToolCallDecided(tool, outcome, request.operation_id, request.attempt_id, call_id))


def _address(live: LiveCall, result: KeptAnswer) -> KeptAnswer:
    """A JSON-RPC answer carries the id of the request that it is given to."""
    rpc_id = live.identity.rpc_id
    if rpc_id is None:
        return result
    content_type = dict(result.headers).get("content-type", "")
    return KeptAnswer(result.status, result.headers, address_answer(content_type, result.body, rpc_id))
