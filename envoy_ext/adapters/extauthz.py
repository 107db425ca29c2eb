"""ext_authz: a CheckRequest in, a CheckResponse out; the decision is `services.authz`'s."""

from typing import Any, Final

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.auth.v3.external_auth_pb2 import CheckResponse

from envoy_ext.adapters import headers as h
from envoy_ext.domain import names
from envoy_ext.domain.client_errors import ClientError, build_error_body, build_error_headers
from envoy_ext.services.authz import Authz, CheckRequest

_OK: Final = 0
_PERMISSION_DENIED: Final = 7
"""google.rpc.Code values."""


def read_check_request(message: Any) -> CheckRequest:
    """The facts of an Envoy CheckRequest. A key that cannot be read counts as none: delivery refuses it."""
    http = message.attributes.request.http
    headers = {name.lower(): value for name, value in http.headers.items()}
    try:
        key = h.read_idempotency_key(headers)
    except ValueError:
        key = None
    return CheckRequest(
        path=http.path.partition("?")[0],
        request_id=h.read_request_id(headers) or http.id,
        caller=h.read_caller(headers),
        idempotency_key=key,
        exchange_id=headers.get(names.EXCHANGE),
        upstream_retry=h.is_upstream_retry(headers),
    )


def build_check_response(error: ClientError | None) -> Any:
    """Allow, or deny with the error as the client will see it."""
    response = CheckResponse()
    if error is None:
        response.status.code = _OK
        response.ok_response.SetInParent()
        return response
    response.status.code = _PERMISSION_DENIED
    denied = response.denied_response
    denied.status.code = error.http_status
    denied.body = build_error_body(error).decode()
    for name, value in build_error_headers(error):
        denied.headers.append(HeaderValueOption(header=HeaderValue(key=name, value=value)))
    return response


async def check(authz: Authz, message: Any) -> Any:
    """Answer one Check call."""
    return build_check_response(await authz.check(read_check_request(message)))
