"""ext_proc messages: built from plain values, and nothing about the meaning of a request.

The messages are `xds-protos`' (Google protobuf, C parser): building one takes about 2 us.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from envoy_ext.domain import names

ProcessingRequest = Any
"""An `envoy.service.ext_proc.v3.ProcessingRequest`."""

Headers = Iterable[tuple[str, str]]

PEER: Final = "source.address"
"""The attribute of a request that names its connection's other end, with its port."""

_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_EXTPROC_ATTRIBUTES: Final = "envoy.filters.http.ext_proc"


def build_request_headers_reply(set_headers: Headers, remove: Iterable[str]) -> Any:
    """Let request headers go on, changed."""
    response = ProcessingResponse()
    response.request_headers.response.SetInParent()
    _mutate(response.request_headers.response.header_mutation, set_headers, remove)
    return response


def build_request_body_reply(set_headers: Headers, remove: Iterable[str], body: bytes | None = None) -> Any:
    """Let a buffered request body go on, or another in its place; headers may still be changed with it."""
    response = ProcessingResponse()
    response.request_body.response.SetInParent()
    if body is not None:
        response.request_body.response.body_mutation.body = body
    _mutate(response.request_body.response.header_mutation, set_headers, remove)
    return response


def build_response_headers_reply(set_headers: Headers = (), remove: Iterable[str] = ()) -> Any:
    """Let response headers go on, changed."""
    response = ProcessingResponse()
    response.response_headers.response.SetInParent()
    _mutate(response.response_headers.response.header_mutation, set_headers, remove)
    return response


def build_response_body_reply() -> Any:
    """Let a chunk of a STREAMED response body go on as it is."""
    response = ProcessingResponse()
    response.response_body.response.SetInParent()
    return response


def build_streamed_body(data: bytes, end: bool) -> Any:
    """Bytes for the client in FULL_DUPLEX_STREAMED mode, where only what we send goes on."""
    response = ProcessingResponse()
    streamed = response.response_body.response.body_mutation.streamed_response
    streamed.body = data
    streamed.end_of_stream = end
    return response


def build_response_trailers_reply() -> Any:
    """Let response trailers go on."""
    response = ProcessingResponse()
    response.response_trailers.SetInParent()
    return response


def build_request_trailers_reply() -> Any:
    """Let request trailers go on."""
    response = ProcessingResponse()
    response.request_trailers.SetInParent()
    return response


def build_immediate_response(status: int, set_headers: Headers, body: bytes, details: str) -> Any:
    """Answer in Envoy's place. `details` becomes the access log's response code details."""
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = status
    immediate.body = body
    immediate.details = details
    _mutate(immediate.headers, set_headers, ())
    return response


def build_patience(seconds: float) -> Any:
    """Extend Envoy's timeout for the message it waits on; allowed once for each message."""
    response = ProcessingResponse()
    response.override_message_timeout.FromMilliseconds(max(1, int(seconds * 1000)))
    return response


@dataclass(frozen=True, slots=True)
class Upstream:
    """What Envoy says of where a response came from."""

    address: str
    """`ip:port`, "" when Envoy sent none."""
    replica: str
    """The replica's id from its endpoint's metadata, "" when it has none."""
    details: str
    """Response code details: `via_upstream`, or why Envoy answered by itself."""

    @property
    def local_reply(self) -> bool:
        """Whether Envoy answered in the replica's place. Its local replies pass this filter too."""
        return self.details not in ("", "via_upstream")


def read_upstream(message: ProcessingRequest) -> Upstream:
    """The response attributes of a response-headers message."""
    struct = message.attributes.get(_EXTPROC_ATTRIBUTES)
    if struct is None:
        return Upstream("", "", "")
    fields = struct.fields
    return Upstream(
        address=_read_text(fields, "upstream.address"),
        replica=_read_text(fields, names.REPLICA_ATTRIBUTE),
        details=_read_text(fields, "response.code_details"),
    )


def read_request_attribute(message: ProcessingRequest, name: str) -> str:
    """One of the attributes of a request-headers message; "" when Envoy sent none."""
    struct = message.attributes.get(_EXTPROC_ATTRIBUTES)
    return "" if struct is None else _read_text(struct.fields, name)


def _read_text(fields: Any, name: str) -> str:
    # Looking up a missing key of a protobuf map would create it.
    return str(fields[name].string_value) if name in fields else ""


def _mutate(mutation: Any, set_headers: Headers, remove: Iterable[str]) -> None:
    for name, value in set_headers:
        mutation.set_headers.append(
            HeaderValueOption(
                header=HeaderValue(key=name, raw_value=value.encode("utf-8", "surrogateescape")),
                append_action=_OVERWRITE,
            )
        )
    for name in remove:  # extending by nothing would make this a mutation, behind which Envoy counts headers
        mutation.remove_headers.append(name)
