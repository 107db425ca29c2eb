"""What a client may read: every refusal and terminal event is built here, and nowhere else.

The object is the same before (HTTP body) and after (one SSE event) the first delta, so that a
client needs one reader. Messages are fixed texts: nothing of a request, an answer or an engine's
own message is repeated in them. Facts about openai-python that the shapes rest on: an SSE event
raises only with a non-empty `error` object, a blank line behind it and no `[DONE]` before it.
"""

import json
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.inspection import BodyKind
from envoy_ext.domain.outcomes import Reason

NOT_RECORDED: Final = ("x-operation-recorded", "false")
"""Header of every answer to an operation that the journal was not told all of; there is no "true"."""

NOT_RECORDABLE: Final = "The gateway cannot record this operation, so it does not run it."
"""Of `upstream_unavailable`: the store of the journal takes no writes."""


@dataclass(frozen=True, slots=True)
class _Code:
    status: int
    type: str
    message: str
    sdk_retries: bool
    """Whether an SDK's own retry of the whole request can help; else `x-should-retry: false`."""


CODES: dict[str, _Code] = {
    "upstream_decode_interrupted": _Code(
        502, "upstream_error", "The replica stopped after part of the answer was delivered.", False
    ),
    "upstream_unavailable": _Code(
        503, "upstream_error", "No replica could answer; nothing of an answer was delivered.", True
    ),
    "replay_not_allowed": _Code(
        503,
        "upstream_error",
        "The replica was lost and the policy does not allow a replay of this request.",
        False,
    ),
    "retry_budget_exhausted": _Code(
        503, "upstream_error", "The replica was lost and the retry budget is used up.", True
    ),
    "no_ready_replica": _Code(503, "upstream_error", "No replica is ready for this model.", True),
    "queue_full": _Code(
        429, "overloaded_error", "As many requests wait for this model as may; try again later.", True
    ),
    "queue_deadline_exceeded": _Code(
        503, "overloaded_error", "No replica of this model will be free in the time this request has.", True
    ),
    "draining": _Code(503, "upstream_error", "This gateway is shutting down.", True),
    "deadline_exceeded": _Code(504, "timeout_error", "The request's own deadline has passed.", False),
    "request_too_large": _Code(413, "invalid_request_error", "The request body is too large.", False),
    "invalid_request": _Code(400, "invalid_request_error", "The request cannot be understood.", False),
    "invalid_api_key": _Code(401, "authentication_error", "The API key is missing or not known here.", False),
    "permission_denied": _Code(403, "permission_error", "This caller may not do that.", False),
    "operation_in_progress": _Code(
        409, "conflict_error", "A request with this idempotency key is still running.", True
    ),
    "operation_incomplete": _Code(
        409,
        "conflict_error",
        "This operation ended after part of its answer was delivered; it is not repeated.",
        False,
    ),
    "operation_complete": _Code(
        409,
        "conflict_error",
        "This operation was answered in full; the answer is not kept and is not generated again.",
        False,
    ),
    "operation_ended": _Code(
        409, "conflict_error", "This operation has ended, so it cannot be cancelled.", False
    ),
    "operation_cancelled": _Code(
        410, "conflict_error", "This operation was cancelled; there is no result of it.", False
    ),
    "data_class_forbidden": _Code(
        403,
        "permission_error",
        "The only replicas that could answer are outside the boundaries of this request's data class.",
        False,
    ),
    "tool_outcome_unknown": _Code(
        409,
        "conflict_error",
        "A tool was called for this operation, and what came of the call is not known; it is not repeated.",
        False,
    ),
    "attempt_superseded": _Code(
        409, "conflict_error", "Another attempt acts for this operation, or it has ended.", False
    ),
    "idempotency_key_reused": _Code(
        422, "invalid_request_error", "This idempotency key was used with another request body.", False
    ),
}
"""The contract's error codes: status, type, text, and whether the client's SDK should try again."""

_STOPPED_BY = {
    Reason.DEADLINE: "The request's own deadline passed",
    Reason.DRAIN_DEADLINE: "This gateway shut down",
    Reason.TAKEN_OVER: "Another gateway took this operation over",
}
"""Who ended an interrupted stream, where it was not its replica."""


@dataclass(frozen=True, slots=True)
class ClientError:
    """One error as the client sees it."""

    code: str
    request_id: str
    operation_id: str | None = None
    message: str | None = None
    """Replaces the code's fixed text; must not hold anything from a request or an answer."""
    reason: Reason | None = None
    partial_output: bool = False
    delivered_output_tokens: int | None = 0
    """None when it is not known: the sidecar that counted them is gone, or still counts."""
    status: int | None = None
    """Replaces the code's HTTP status (an unknown path is 404 `invalid_request`)."""
    retry_after_s: int | None = None
    sdk_retries: bool | None = None
    headers: tuple[tuple[str, str], ...] = field(default=())

    @property
    def http_status(self) -> int:
        """The status for a client that has been sent nothing."""
        return self.status if self.status is not None else CODES[self.code].status


def build_error_object(error: ClientError) -> dict[str, object]:
    """The value of the `error` key. `retryable` is false: the gateway will not repeat it by itself."""
    code = CODES[error.code]
    return {
        "code": error.code,
        "type": code.type,
        "message": error.message or _read_message(error),
        "request_id": error.request_id,
        "operation_id": error.operation_id,
        "partial_output": error.partial_output,
        "delivered_output_tokens": error.delivered_output_tokens,
        "retryable": False,
        "reason": error.reason.value if error.reason else None,
    }


def _read_message(error: ClientError) -> str:
    message = CODES[error.code].message
    if error.code != "upstream_decode_interrupted":
        return message
    if error.reason is not None and error.reason in _STOPPED_BY:
        message = message.replace("The replica stopped", _STOPPED_BY[error.reason])
    return message if error.partial_output else message.replace("after part", "before any part")


def build_error_body(error: ClientError) -> bytes:
    """The JSON body of an error response."""
    return _json({"error": build_error_object(error)})


def build_error_headers(error: ClientError) -> list[tuple[str, str]]:
    """The headers of an error response, `Retry-After` and the SDK hint among them."""
    sdk_retries = CODES[error.code].sdk_retries if error.sdk_retries is None else error.sdk_retries
    headers = [("content-type", "application/json"), ("x-request-id", error.request_id)]
    if error.operation_id is not None:
        headers.append(("x-operation-id", error.operation_id))
    if not sdk_retries:
        headers.append(("x-should-retry", "false"))
    elif error.retry_after_s is not None:
        headers.append(("retry-after", str(error.retry_after_s)))
    headers.extend(error.headers)
    return headers


def build_terminal_event(family: ApiFamily, kind: BodyKind, error: ClientError) -> bytes | None:
    """The one event that ends a broken stream, None when nothing truthful can be appended.

    It must follow a whole event: the caller holds back the bytes of a half one.
    """
    body: dict[str, object] = {"error": build_error_object(error)}
    if kind is BodyKind.NDJSON:
        return _json(body) + b"\n"
    if kind is not BodyKind.SSE:
        return None
    if family is ApiFamily.RESPONSES:
        # The API's own error event is flat: type, code, message, param (OpenAI API reference,
        # "Streaming events", `error`). openai-python raises on the `error` key, so both are given.
        built = build_error_object(error)
        flat = {"type": "error", "code": built["code"], "message": built["message"], "param": None, **body}
        return b"event: error\ndata: " + _json(flat) + b"\n\n"
    if family is ApiFamily.MESSAGES:
        return b"event: error\ndata: " + _json({"type": "error", **body}) + b"\n\n"
    return b"data: " + _json(body) + b"\n\n"


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
