"""ext_authz: a CheckRequest in, a CheckResponse out; the decision is `services.authz`'s."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, assert_never

from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue, HeaderValueOption
from envoy.service.auth.v3.external_auth_pb2 import CheckResponse

from envoy_ext.adapters import headers as h
from envoy_ext.adapters.models_codec import build_models_json
from envoy_ext.adapters.request_head_codec import read_head
from envoy_ext.domain import names
from envoy_ext.domain.client_errors import ClientError, build_error_body, build_error_headers
from envoy_ext.services.authz import Allowed, Authz, CheckRequest, Given, GivenModels, Untouched, Verdict

_OK: Final = 0
_PERMISSION_DENIED: Final = 7
"""google.rpc.Code values."""

_PARTIAL_BODY: Final = "x-envoy-auth-partial-body"
"""Whether what an Envoy sends of a body is all of it; on the check alone, and there whenever it sends any."""

_OF_THE_GATEWAY: Final = frozenset(
    {
        *("x-envoy-external-address", "x-envoy-internal", "x-envoy-original-path", "x-envoy-original-host"),
        *("x-envoy-decorator-operation", "x-envoy-expected-rq-timeout-ms", "x-envoy-attempt-count"),
        *("x-envoy-peer-metadata", "x-envoy-peer-metadata-id", _PARTIAL_BODY),
    }
)
"""Headers that an Envoy in front sets by itself, and means for what stands behind it."""


def read_check_request(
    message: Any, mint_request_id: Callable[[], str], trusted_header: str | None = None
) -> CheckRequest:
    """The facts of an Envoy CheckRequest.

    Headers come as they stood on the wire (`encode_raw_headers`), or one value for each name.
    """
    http = message.attributes.request.http
    header_map = http.header_map if http.header_map.headers else _build_map(http.headers.items())
    head = read_head(
        header_map,
        mint_request_id=lambda: http.id or mint_request_id(),
        trusted_header=trusted_header,
        peer=message.attributes.source.address.socket_address.address,
        method=http.method,
        path=http.path,
    )
    headers = h.read_headers(header_map)
    return CheckRequest(head, _read_body(http, headers, head.content_length), headers.get(names.EXCHANGE))


def _build_map(headers: Iterable[tuple[str, str]]) -> Any:
    return HeaderMap(headers=[HeaderValue(key=name, value=value) for name, value in headers])


def _read_body(http: Any, headers: dict[str, str], length: int | None) -> bytes | None:
    """The whole body; None where only a part of it was sent, or nothing."""
    body: bytes = http.raw_body or http.body.encode()
    if http.body and headers.get("content-encoding", "identity") != "identity":
        return None  # text in the place of coded bytes is no longer what the client sent
    partial = headers.get(_PARTIAL_BODY)
    if partial is not None:
        return body if partial == "false" and len(body) == (length or len(body)) else None
    return body if len(body) == length else None


def build_check_response(verdict: Verdict, forged: Iterable[str] = (), unsent: Iterable[str] = ()) -> Any:
    """Let it on with what is known of it, and without what passes for that; or answer in its place."""
    match verdict:
        case Allowed():
            return _allow(verdict, forged, unsent)
        case Untouched():
            response = CheckResponse()
            response.ok_response.SetInParent()
            return response
        case Given():
            headers = [("content-type", verdict.content.content_type), (h.REQUEST_ID, verdict.request_id)]
            headers.append((names.DEGRADED, ", ".join(verdict.degraded)))
            return _answer(200, headers, verdict.content.body)
        case GivenModels():
            headers = [("content-type", "application/json"), (h.REQUEST_ID, verdict.request_id)]
            body = json.dumps(build_models_json(verdict.models), separators=(",", ":")).encode()
            return _answer(200, headers, body)
        case ClientError():
            return _answer(verdict.http_status, build_error_headers(verdict), build_error_body(verdict))
        case _:
            assert_never(verdict)


def _allow(verdict: Allowed, forged: Iterable[str], unsent: Iterable[str]) -> Any:
    response = CheckResponse()
    response.status.code = _OK
    known = {
        names.CALLER: verdict.caller,
        names.POOL: verdict.pool,
        names.REQUEST_CLASS: verdict.request_class,
        names.DATA_CLASS: verdict.data_class,
    }
    ok = response.ok_response
    ok.SetInParent()
    for name, value in known.items():
        if value is not None:
            ok.headers.append(_set(name, value))
            response.dynamic_metadata[name.removeprefix(names.OWN_PREFIX)] = value
    # Envoy removes behind what it sets.
    hostile = {name for name in forged if name not in _OF_THE_GATEWAY and known.get(name) is None}
    ok.headers_to_remove.extend(sorted(hostile | set(unsent)))
    return response


def _answer(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Any:
    response = CheckResponse()
    response.status.code = _PERMISSION_DENIED
    denied = response.denied_response
    denied.status.code = status
    denied.body = body.decode()
    denied.headers.extend(_set(name, value) for name, value in headers)
    return response


def _set(name: str, value: str) -> HeaderValueOption:
    option = HeaderValueOption(header=HeaderValue(key=name, value=value))
    option.append.value = False
    return option


async def check(authz: Authz, message: Any, mint_request_id: Callable[[], str]) -> Any:
    """Answer one Check call."""
    request = read_check_request(message, mint_request_id, authz.heads.trusted_header)
    verdict = await authz.check(request)
    return build_check_response(verdict, request.head.forged, authz.heads.list_credentials())
