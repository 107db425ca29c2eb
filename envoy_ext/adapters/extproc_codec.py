"""ext_proc messages: read, and built from plain values; nothing about the meaning of a request.

What is read is `xds-protos`' (Google protobuf, C parser). Replies are bytes: most are alike but for a few
values, and putting those between what stays the same costs a third of building messages. Field numbers
(envoy/service/ext_proc/v3/external_processor.proto, envoy/config/core/v3/base.proto) stand below; tests hold
every reply against protobuf's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from envoy_ext.adapters.protobuf_wire import build_field, build_head, build_varint
from envoy_ext.domain import names

ProcessingRequest = Any
"""An `envoy.service.ext_proc.v3.ProcessingRequest`."""

Headers = Iterable[tuple[str, str]]

PEER: Final = "source.address"
"""The attribute of a request that names its connection's other end, with its port."""

_REQUEST_HEADERS: Final = 1
_RESPONSE_HEADERS: Final = 2
_REQUEST_BODY: Final = 3
_RESPONSE_BODY: Final = 4
"""Fields of ProcessingResponse, and in each of them `_RESPONSE`, a CommonResponse."""
_RESPONSE: Final = 1
_HEADER_MUTATION: Final = 2
_WHOLE_BODY: Final = (1, 3)
"""BodyMutation.body in CommonResponse.body_mutation."""
_STREAMED_BODY: Final = (3, 3, _RESPONSE, _RESPONSE_BODY)
"""BodyMutation.streamed_response in CommonResponse.body_mutation, in a reply."""
_END_OF_STREAM: Final = b"\x10\x01"
"""StreamedBodyResponse.end_of_stream, 2."""
_OVERWRITE: Final = b"\x18\x02"
"""HeaderValueOption.append_action, 3: OVERWRITE_IF_EXISTS_OR_ADD."""
_KEPT_NAME_CHARS: Final = 64
"""Longer ones are not ours, and as long as somebody likes."""
_UNCHANGED: Final = {
    kind: build_head(0, (_RESPONSE, kind))
    for kind in (_REQUEST_HEADERS, _RESPONSE_HEADERS, _REQUEST_BODY, _RESPONSE_BODY)
}
_REQUEST_TRAILERS_REPLY: Final = build_head(0, (5,))
_RESPONSE_TRAILERS_REPLY: Final = build_head(0, (6,))

_EXTPROC_ATTRIBUTES: Final = "envoy.filters.http.ext_proc"


def build_request_headers_reply(set_headers: Headers, remove: Iterable[str]) -> bytes:
    """Let request headers go on, changed."""
    return _build_reply(_REQUEST_HEADERS, set_headers, remove)


def build_request_body_reply(set_headers: Headers, remove: Iterable[str], body: bytes | None = None) -> bytes:
    """Let a buffered request body go on, or another in its place; headers may still be changed with it."""
    if body is None:
        return _build_reply(_REQUEST_BODY, set_headers, remove)
    changes = _build_changes(set_headers, remove)
    mutation = build_field(_HEADER_MUTATION, changes) if changes else b""
    common = mutation + build_head(len(body), _WHOLE_BODY) + body
    return build_head(len(common), (_RESPONSE, _REQUEST_BODY)) + common


def build_response_headers_reply(set_headers: Headers = (), remove: Iterable[str] = ()) -> bytes:
    """Let response headers go on, changed."""
    return _build_reply(_RESPONSE_HEADERS, set_headers, remove)


def build_response_body_reply() -> bytes:
    """Let a chunk of a STREAMED response body go on as it is."""
    return _UNCHANGED[_RESPONSE_BODY]


def build_streamed_body(data: bytes, end: bool) -> bytes:
    """Bytes for the client in FULL_DUPLEX_STREAMED mode, where only what we send goes on."""
    tail = _END_OF_STREAM if end else b""
    return _find_streamed_head(len(data), len(tail)) + data + tail


def build_response_trailers_reply() -> bytes:
    """Let response trailers go on."""
    return _RESPONSE_TRAILERS_REPLY


def build_request_trailers_reply() -> bytes:
    """Let request trailers go on."""
    return _REQUEST_TRAILERS_REPLY


def build_immediate_response(status: int, set_headers: Headers, body: bytes, details: str) -> bytes:
    """Answer in Envoy's place. `details` becomes the access log's response code details."""
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = status
    immediate.body = body
    immediate.details = details
    changes = _build_changes(set_headers, ())
    if changes:
        immediate.headers.MergeFromString(changes)
    return bytes(response.SerializeToString())


def build_patience(seconds: float) -> bytes:
    """Extend Envoy's timeout for the message it waits on; allowed once for each message."""
    return _build_patience(max(1, int(seconds * 1000)))


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


# --- by hand --------------------------------------------------------------------------------------


def _build_reply(kind: int, set_headers: Headers, remove: Iterable[str]) -> bytes:
    """A reply of one kind. Without a change it has no mutation: behind an empty one Envoy counts headers."""
    changes = _build_changes(set_headers, remove)
    if not changes:
        return _UNCHANGED[kind]
    return _find_head(len(changes), (_HEADER_MUTATION, _RESPONSE, kind)) + changes


def _build_changes(set_headers: Headers, remove: Iterable[str]) -> bytes:
    """The fields of a HeaderMutation."""
    parts: list[bytes] = []
    for name, value in set_headers:
        raw = value.encode("utf-8", "surrogateescape")
        build = _find_option_head if len(name) <= _KEPT_NAME_CHARS else _build_option_head
        parts += (build(name, len(raw)), raw, _OVERWRITE)
    for name in remove:
        parts.append((_find_removal if len(name) <= _KEPT_NAME_CHARS else _build_removal)(name))
    return b"".join(parts)


def _build_option_head(name: str, size: int) -> bytes:
    """All that stands before the value of a header that is set."""
    before = build_field(1, name.encode()) + (build_head(size, (3,)) if size else b"")
    header = build_varint(len(before) + size)
    whole = 1 + len(header) + len(before) + size + len(_OVERWRITE)
    return b"\x0a" + build_varint(whole) + b"\x0a" + header + before


def _build_removal(name: str) -> bytes:
    """One of HeaderMutation.remove_headers."""
    return build_field(2, name.encode())


def _build_streamed_head(size: int, tail_size: int) -> bytes:
    """All that stands before so many bytes for the client, and those that say that it ends."""
    part = build_head(size, (1,)) if size else b""
    return build_head(len(part) + size + tail_size, _STREAMED_BODY) + part


_find_head: Final = lru_cache(maxsize=2048)(build_head)
_find_streamed_head: Final = lru_cache(maxsize=2048)(_build_streamed_head)
_find_option_head: Final = lru_cache(maxsize=1024)(_build_option_head)
_find_removal: Final = lru_cache(maxsize=256)(_build_removal)
"""Nearly every name and length comes again with each request."""


@lru_cache(maxsize=256)
def _build_patience(milliseconds: int) -> bytes:
    response = ProcessingResponse()
    response.override_message_timeout.FromMilliseconds(milliseconds)
    return bytes(response.SerializeToString())
