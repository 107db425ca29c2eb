"""The caller filter's session: a request's headers, before any of its body is read or kept."""

from collections.abc import Callable
from typing import Any

from envoy_ext.adapters import extproc_codec as codec
from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.adapters.request_head_codec import read_head
from envoy_ext.domain import step
from envoy_ext.domain.client_errors import build_error_body, build_error_headers
from envoy_ext.services.arrivals import Arrivals


class CallerSession:
    """Lets a request on to the filter that takes in its body, or refuses it. Remembers nothing: the delivery
    filter decides once more, from the same headers."""

    def __init__(self, arrivals: Arrivals, outbox: Outbox, mint_request_id: Callable[[], str]) -> None:
        self._arrivals = arrivals
        self._outbox = outbox
        self._mint_request_id = mint_request_id

    def receive(self, message: Any) -> None:
        """Take in the request's headers."""
        if message.WhichOneof("request") != "request_headers":
            return
        head = read_head(
            message.request_headers.headers,
            mint_request_id=self._mint_request_id,
            trusted_header=self._arrivals.heads.trusted_header,
            peer=codec.read_request_attribute(message, codec.PEER),
        )
        error = self._arrivals.find_early_refusal(head)
        if error is None:
            self._outbox.send(codec.build_request_headers_reply((), ()))
            self._outbox.finish()
        else:
            self._arrivals.refuse(self, error)

    def send(self, reply: step.DeliveryReply) -> None:
        """Refuse."""
        assert isinstance(reply, step.RespondLocally), "nothing else is said at this door"
        error = reply.error
        headers, body = build_error_headers(error), build_error_body(error)
        details = f"envoy_ext_{error.code}"
        self._outbox.send(codec.build_immediate_response(error.http_status, headers, body, details))
        self._outbox.finish()

    def closed(self) -> None:
        """The stream is over."""
