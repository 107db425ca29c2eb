"""What Envoy answers by itself: errors in the contract's form, and the mark that asks for a replay.

The sidecar's ImmediateResponses are local replies too, and must pass as they are. Their details
begin with `envoy_ext` (Envoy shows them as response code details), and every mapper leaves those
alone: by asking for details of Envoy's own, or by an exception where it asks for response flags,
because a flag of what failed before stays set.
"""

from typing import Final

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ExtensionFilter,
    ResponseFlagFilter,
)
from envoy_data_plane.envoy.config.core.v3 import SubstitutionFormatString
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel.v3 import ExpressionFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.google.protobuf import Any, Struct, Value

from envoy_ext.bootstrap.parts import set_header
from envoy_ext.domain import names

LOST_ATTEMPT_FLAGS: Final = ("UC", "UF", "UT", "LR", "UR", "UPE", "UH")
"""The replica or the way to it failed. Overflow of a circuit breaker (UO) is not among them: nothing was
lost, and a replay would add to what overflowed."""

HOP_FAILED_FLAGS: Final = (*LOST_ATTEMPT_FLAGS, "UO", "NR", "NC")
"""At the ingress: the egress listener could not be reached."""

LOSS: Final = "%RESPONSE_CODE_DETAILS% %UPSTREAM_TRANSPORT_FAILURE_REASON%"
"""How an attempt was lost, as the access log says it: the log entry may come after the answer."""

UNROUTABLE_FLAGS: Final = ("UO", "NR", "NC")
"""At the egress: no connection to spare, or no such pool."""

UNSENT_FLAGS: Final = ("UF", "UH", "UO", "NR", "NC")
"""Of a tool call: no connection was made, or none was to be had. None is used twice, so no call is sent into
one that closes."""

UNKNOWN_OUTCOME_FLAGS: Final = ("UC", "UT", "LR", "UR", "UPE", "SI", "DPE")
"""Of a tool call: it was sent, in part at least, and no whole answer came."""

_NOT_ASKED: Final = "response.code_details.startsWith('ext_proc_error') && !has(upstream.address)"
"""The sidecar was lost before the call left for the tool."""

_SIDECAR_FAILED: Final = "response.code_details.startsWith('ext_proc_error')"
_NOT_OF_SIDECAR: Final = "!response.code_details.startsWith('envoy_ext')"
_TOO_LARGE: Final = "response.code_details == 'request_payload_too_large'"
_TOO_SLOW: Final = "response.code_details == 'request_overall_timeout'"

_UNAVAILABLE: Final = 503
_CONFLICT: Final = 409
"""Most clients do not repeat it by themselves."""


def build_ingress_replies() -> LocalReplyConfig:
    return LocalReplyConfig(
        mappers=[
            *_unread_requests(),
            _unavailable(_by_details(_SIDECAR_FAILED)),
            _unavailable(_by_flags(HOP_FAILED_FLAGS)),
        ]
    )


def build_egress_replies() -> LocalReplyConfig:
    lost = _unavailable(_by_flags(LOST_ATTEMPT_FLAGS))
    lost.headers_to_add.append(set_header(names.REPLAY, LOSS))
    return LocalReplyConfig(
        mappers=[lost, _unavailable(_by_details(_SIDECAR_FAILED)), _unavailable(_by_flags(UNROUTABLE_FLAGS))]
    )


def build_tool_replies() -> LocalReplyConfig:
    """For engines. The sidecar answers in place of most of these, and says more; it may be gone, or have let
    the headers go."""
    return LocalReplyConfig(
        mappers=[
            *_unread_requests(),
            ResponseMapper(
                filter=_by_details(_NOT_ASKED),
                status_code=_UNAVAILABLE,
                headers_to_add=[set_header("retry-after", "1")],
                body_format_override=_error_body(
                    "upstream_unavailable",
                    "upstream_error",
                    "This call was not made: the gateway cannot watch it.",
                ),
            ),
            ResponseMapper(
                filter=_by_flags(UNSENT_FLAGS),
                status_code=_UNAVAILABLE,
                headers_to_add=[set_header("retry-after", "1")],
                body_format_override=_error_body(
                    "upstream_unavailable", "upstream_error", "This call was not made: no way to the tool."
                ),
            ),
            _unknown_outcome(_by_details(_SIDECAR_FAILED)),
            _unknown_outcome(_by_flags(UNKNOWN_OUTCOME_FLAGS)),
        ]
    )


def _unread_requests() -> list[ResponseMapper]:
    """A body that did not come whole: it was too large, or too slow."""
    return [
        ResponseMapper(
            filter=_by_details(_TOO_LARGE),
            headers_to_add=[set_header("x-should-retry", "false")],
            body_format_override=_error_body(
                "request_too_large",
                "invalid_request_error",
                "The request body is larger than accepted here.",
            ),
        ),
        ResponseMapper(
            filter=_by_details(_TOO_SLOW),
            body_format_override=_error_body(
                "invalid_request", "invalid_request_error", "The request body did not arrive in time."
            ),
        ),
    ]


def _unknown_outcome(replies: AccessLogFilter) -> ResponseMapper:
    return ResponseMapper(
        filter=replies,
        status_code=_CONFLICT,
        headers_to_add=[set_header("x-should-retry", "false")],
        body_format_override=_error_body(
            "tool_outcome_unknown", "conflict_error", "Nobody knows what this call of a tool has done."
        ),
    )


def _unavailable(replies: AccessLogFilter) -> ResponseMapper:
    return ResponseMapper(
        filter=replies,
        status_code=_UNAVAILABLE,
        headers_to_add=[set_header("retry-after", "1")],
        body_format_override=_error_body(
            "upstream_unavailable", "upstream_error", "No replica could answer. Nothing was delivered."
        ),
    )


def _error_body(code: str, error_type: str, message: str) -> SubstitutionFormatString:
    """The contract's error object; a structure and not text, so that the client's request id is escaped.

    `operation_id` is null where the sidecar has not been asked: Envoy has no such header then.
    """
    error = {
        "code": Value(string_value=code),
        "type": Value(string_value=error_type),
        "message": Value(string_value=message),
        "request_id": Value(string_value="%REQ(X-REQUEST-ID)%"),
        "operation_id": Value(string_value=f"%REQ({names.OPERATION})%"),
        "partial_output": Value(bool_value=False),
        "delivered_output_tokens": Value(number_value=0),
        "retryable": Value(bool_value=False),
    }
    return SubstitutionFormatString(
        json_format=Struct(fields={"error": Value(struct_value=Struct(fields=error))})
    )


def _by_flags(flags: tuple[str, ...]) -> AccessLogFilter:
    by_flag = AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=list(flags)))
    return AccessLogFilter(and_filter=AndFilter(filters=[by_flag, _by_details(_NOT_OF_SIDECAR)]))


def _by_details(expression: str) -> AccessLogFilter:
    return AccessLogFilter(
        extension_filter=ExtensionFilter(
            name="envoy.access_loggers.extension_filters.cel",
            typed_config=Any.pack(ExpressionFilter(expression=expression)),
        )
    )
