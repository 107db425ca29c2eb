"""A request's headers, as Envoy sends them, to the values that are decided with. Judges nothing."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from envoy_ext.adapters import headers as h
from envoy_ext.domain.callers import Credentials
from envoy_ext.services.heads import RequestHead

S = TypeVar("S")
T = TypeVar("T")

_TOO_MANY: Final = f"headers: more than {h.MAX_HEADERS}, or than {h.MAX_HEADERS_BYTES} bytes; send fewer"


def read_head(
    header_map: Any,
    *,
    mint_request_id: Callable[[], str],
    trusted_header: str | None = None,
    peer: str = "",
    method: str | None = None,
    path: str | None = None,
) -> RequestHead:
    """What there is to know of a request before its body.

    `trusted_header` is the one that may name its caller; `peer` is the connection's other end. `method` and
    `path` are for whoever sends them beside the headers.
    """
    headers = h.read_headers(header_map)
    mistakes: list[str] = []
    method = headers.get(":method", "") if method is None else method
    data_class = deadline_s = idempotency_key = None
    if h.DATA_CLASS in headers:
        data_class = _attempt(mistakes, h.read_data_class, header_map)
    if h.DEADLINE in headers:
        deadline_s = _attempt(mistakes, h.read_deadline_s, headers)
    if h.IDEMPOTENCY_KEY in headers:
        idempotency_key = _attempt(mistakes, h.read_idempotency_key, {**headers, ":method": method})
    length = headers.get("content-length", "")
    prefers = h.PREFER in headers
    return RequestHead(
        method=method,
        path=headers.get(":path", "") if path is None else path,
        request_id=h.read_request_id(headers) or mint_request_id(),
        credentials=Credentials(
            authorization=headers.get("authorization", ""),
            others=tuple(headers.get(name, "") for name in h.KEY_HEADERS),
            name=None if trusted_header is None else h.read_all(header_map, trusted_header),
            peer=peer,
        ),
        forged=tuple(h.list_forged(headers)),
        credential_hash=h.read_caller(headers),
        too_many=_TOO_MANY if h.are_too_many(header_map) else None,
        data_class=data_class,
        deadline_s=deadline_s,
        idempotency_key=idempotency_key,
        mistakes=tuple(mistakes),
        request_class=headers.get(h.REQUEST_CLASS),
        content_encoding=headers.get("content-encoding", ""),
        content_length=int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None,
        upstream_retry=h.is_upstream_retry(headers),
        prefer_wait_s=h.read_prefer_wait_s(headers) if prefers else None,
        respond_async=prefers and h.prefers_async(headers),
        content_type=headers.get("content-type", ""),
    )


def _attempt(mistakes: list[str], read: Callable[[S], T], given: S) -> T | None:
    try:
        return read(given)
    except ValueError as mistake:
        mistakes.append(str(mistake))
        return None
