"""Builders for calls of tools, as they stand in a ledger."""

from dataclasses import replace

from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.tool_calls import CallState, ToolCall, mint_call_id

LEDGER = OperationId("op_1")


def made(state: CallState, what: str = "mail", attempt: str = "att_1", **changes: object) -> ToolCall:
    call = ToolCall(
        call_id=mint_call_id(LEDGER, what, 1),
        tool="mail",
        fingerprint=what,
        arguments_sha256=f"of {what}",
        ordinal=1,
        idempotent=False,
        attempts=(AttemptId(attempt),),
        operation_id=LEDGER,
        state=state,
        begun_at=1.0,
    )
    return replace(call, **changes)  # type: ignore[arg-type]
