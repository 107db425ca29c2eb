"""The HTTP filters: those of delivery, attempts and tool calls, and the router behind each."""

from typing import Final

from betterproto2 import Message
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutationRules
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata.v3 import (
    Config as HeaderToMetadata,
)
from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata.v3 import (
    ConfigKeyValuePair as HeaderToMetadataKeyValuePair,
)
from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata.v3 import (
    ConfigRule as HeaderToMetadataRule,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any

from envoy_ext.bootstrap.parts import (
    METADATA_ENDPOINT,
    duration,
    grpc_to_sidecar,
)
from envoy_ext.domain import names

MESSAGE_TIMEOUT_S: Final = 5.0
"""How long the sidecar may take for one message. Small, so that a hung sidecar is noticed; whatever
waits on purpose (admission, a held response) extends it first."""

MAX_MESSAGE_TIMEOUT_S: Final = 3600.0
"""The longest extension the sidecar may ask for; above any wait the configuration allows in practice."""

_SEND: Final = ProcessingModeHeaderSendMode.SEND
_SKIP: Final = ProcessingModeHeaderSendMode.SKIP


def build_body_buffer(max_request_bytes: int) -> HttpFilter:
    """Takes the request body whole, or answers 413, before the sidecar hears of the exchange.

    The delivery filter could buffer by itself, but its limit is that of the connection, which for
    HTTP/2 is the stream's window: the same body would pass over one protocol and not over the other.
    """
    return _http_filter("envoy.filters.http.buffer", Buffer(max_request_bytes=max_request_bytes))


def build_caller_filter(cluster: str) -> HttpFilter:
    """Asks who it is before the body is taken in: a stranger has no room in any buffer.

    The delivery filter stands behind the buffer, and hears of a request when all of it is there.
    """
    skip = ProcessingModeBodySendMode.NONE
    processor = _build_processor(
        cluster,
        names.ROLE_CALLER,
        ProcessingMode(
            request_header_mode=_SEND,
            request_body_mode=skip,
            request_trailer_mode=_SKIP,
            response_header_mode=_SKIP,
            response_body_mode=skip,
            response_trailer_mode=_SKIP,
        ),
    )
    processor.request_attributes = ["source.address"]
    return _http_filter("envoy.filters.http.ext_proc", processor)


def build_delivery_filter(cluster: str, role: str = names.ROLE_DELIVERY) -> HttpFilter:
    """One stream for each exchange: the whole request, and every chunk of the answer before its client.

    `role` tells the sidecar at which listener that is: of a client's requests, or of its own for jobs.
    """
    processor = _build_processor(
        cluster,
        role,
        ProcessingMode(
            request_header_mode=_SEND,
            # Full duplex on a request body doubles it when the request is retried (envoyproxy/envoy#45470).
            request_body_mode=ProcessingModeBodySendMode.BUFFERED,
            request_trailer_mode=_SKIP,
            response_header_mode=_SEND,
            # Full duplex lets the sidecar add the terminal event and end the body by itself.
            response_body_mode=ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED,
            response_trailer_mode=_SEND,  # full duplex requires it
        ),
    )
    processor.request_attributes = ["source.address"]
    processor.allow_mode_override = True
    return _http_filter("envoy.filters.http.ext_proc", processor)


def build_attempt_filter(cluster: str) -> HttpFilter:
    """One stream for each attempt: may it start, and may its answer out yet; then the sidecar leaves it."""
    processor = _build_processor(
        cluster,
        names.ROLE_ATTEMPT,
        ProcessingMode(
            request_header_mode=_SEND,
            request_body_mode=ProcessingModeBodySendMode.NONE,
            request_trailer_mode=_SKIP,
            response_header_mode=_SEND,
            response_body_mode=ProcessingModeBodySendMode.STREAMED,
            response_trailer_mode=_SKIP,
        ),
    )
    processor.response_attributes = ["upstream.address", names.REPLICA_ATTRIBUTE, "response.code_details"]
    # The sidecar looks for the first delta in the body while it holds the headers back.
    processor.send_body_without_waiting_for_header_response = True
    return _http_filter("envoy.filters.http.ext_proc", processor)


def build_tool_filter(cluster: str) -> HttpFilter:
    """One stream for each call of a tool: may it leave, and its result before the engine has all of it."""
    processor = _build_processor(
        cluster,
        names.ROLE_TOOL,
        ProcessingMode(
            request_header_mode=_SEND,
            request_body_mode=ProcessingModeBodySendMode.BUFFERED,
            request_trailer_mode=_SKIP,
            response_header_mode=_SEND,
            # Full duplex lets the sidecar keep the headers and every chunk until the result is recorded.
            response_body_mode=ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED,
            response_trailer_mode=_SEND,
        ),
    )
    processor.request_attributes = [names.ROUTE_ATTRIBUTE]
    processor.response_attributes = ["response.code_details"]
    return _http_filter("envoy.filters.http.ext_proc", processor)


def build_endpoint_hint() -> HttpFilter:
    """Moves the replica that the gate named from its header, which no replica may see, to where
    `override_host` reads it.

    The route cannot remove that header: it does so before the replica is chosen, and the gate's word
    is lost without a sign.
    """
    return _http_filter(
        "envoy.filters.http.header_to_metadata",
        HeaderToMetadata(
            request_rules=[
                HeaderToMetadataRule(
                    header=names.ENDPOINT,
                    on_header_present=HeaderToMetadataKeyValuePair(
                        metadata_namespace=names.METADATA_NAMESPACE, key=METADATA_ENDPOINT
                    ),
                    remove=True,
                )
            ]
        ),
    )


def build_router() -> HttpFilter:
    """The last filter; without Envoy's own headers, which speak of one hop of the two."""
    return _http_filter("envoy.filters.http.router", Router(suppress_envoy_headers=True))


def _build_processor(cluster: str, role: str, mode: ProcessingMode) -> ExternalProcessor:
    return ExternalProcessor(
        grpc_service=grpc_to_sidecar(cluster, {names.ROLE_METADATA: role}),
        processing_mode=mode,
        message_timeout=duration(MESSAGE_TIMEOUT_S),
        max_message_timeout=duration(MAX_MESSAGE_TIMEOUT_S),
        # Without the sidecar nothing may pass: an unwatched stream could be retried after its first delta.
        failure_mode_allow=False,
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        # Our own headers begin with x-envoy-, which Envoy drops from a mutation without a word otherwise.
        mutation_rules=HeaderMutationRules(allow_envoy=True),
    )


def _http_filter(name: str, message: Message) -> HttpFilter:
    return HttpFilter(name=name, typed_config=Any.pack(message))
