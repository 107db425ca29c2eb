"""A request's headers, as Envoy sends them, to the values that are decided with. Judges nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

from envoy_ext.adapters import headers as h
from envoy_ext.domain.callers import Credentials
from envoy_ext.services.heads import RequestHead

T = TypeVar("T")


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

    def attempt(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except ValueError as mistake:
            mistakes.append(str(mistake))
            return None

    method = headers.get(":method", "") if method is None else method
    too_many = f"headers: more than {h.MAX_HEADERS}, or than {h.MAX_HEADERS_BYTES} bytes; send fewer"
    length = headers.get("content-length", "")
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
        too_many=too_many if h.are_too_many(header_map) else None,
        data_class=attempt(lambda: h.read_data_class(header_map)),
        deadline_s=attempt(lambda: h.read_deadline_s(headers)),
        idempotency_key=attempt(lambda: h.read_idempotency_key({**headers, ":method": method})),
        mistakes=tuple(mistakes),
        request_class=headers.get(h.REQUEST_CLASS),
        content_encoding=headers.get("content-encoding", ""),
        content_length=int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None,
        upstream_retry=h.is_upstream_retry(headers),
        prefer_wait_s=h.read_prefer_wait_s(headers),
        respond_async=h.prefers_async(headers),
        content_type=headers.get("content-type", ""),
    )
