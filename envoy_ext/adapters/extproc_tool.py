"""The tool filter's session: one call of a tool, from the engine's request to the tool's last byte.

The answer's headers and chunks are kept until the whole of it is recorded, or until it is too large for
that: then it passes chunk by chunk, and its last one waits for the record. What is no call of the ledger's
passes here too: in full duplex a chunk that Envoy has sent is lost with a stream that is closed on it.
"""

from collections.abc import Callable
from typing import Any, Final

from envoy_ext.adapters import extproc_codec as codec
from envoy_ext.adapters import headers as h
from envoy_ext.adapters.accesslog_codec import read_cause
from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.adapters.tool_headers_codec import (
    MCP_SESSION,
    NAMING,
    list_private,
    read_attempt,
    read_kept_headers,
    read_operation,
)
from envoy_ext.domain import names
from envoy_ext.domain.client_errors import ClientError, build_error_body, build_error_headers
from envoy_ext.domain.events import NEVER_SENT
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.tool_request import HttpRequest
from envoy_ext.services.tools import LiveCall, ToolRequest, Tools

_HOLD_S: Final = 3600.0
"""Envoy's patience while an answer is kept: the most that it has. The tool's own time is the route's."""


class ToolSession:
    """Translates between Envoy's tool listener and one call. Every method runs on the event loop."""

    def __init__(
        self, tools: Tools, outbox: Outbox, max_result_bytes: int, mint_request_id: Callable[[], str]
    ) -> None:
        self._tools = tools
        self._outbox = outbox
        self._max_result_bytes = max_result_bytes
        self._mint_request_id = mint_request_id
        self._headers: dict[str, str] = {}
        self._request_id = ""
        self._tool = ""
        self._body_expected = False
        self._live: LiveCall | None = None
        self._status = 0
        self._kept_headers: tuple[tuple[str, str], ...] = ()
        self._false_marks: tuple[str, ...] = ()
        self._kept = bytearray()
        self._kept_size = 0
        """Of the answer so far, whether it is kept or passes."""
        self._passing = False
        self._headers_only = False
        self._trailers = False
        self._done = False

    # --- from Envoy ---------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        """Take in one message of the tool listener."""
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            self._receive_request_headers(message)
        elif kind == "request_body":
            self._receive_request_body(message.request_body.body)
        elif kind == "response_headers":
            self._receive_response_headers(message)
        elif kind == "response_body":
            self._receive_response_body(message.response_body.body, message.response_body.end_of_stream)
        elif kind == "response_trailers":
            self._trailers = True
            self._receive_response_body(b"", end=True)
        elif kind == "request_trailers":
            self._outbox.send(codec.build_request_trailers_reply())

    def closed(self) -> None:
        """The stream is over."""
        self._done = True
        if self._live is not None:
            self._live.note_closed()

    def _receive_request_headers(self, message: Any) -> None:
        request = message.request_headers
        self._headers = headers = h.read_headers(request.headers)
        self._request_id = h.read_request_id(headers) or self._mint_request_id()
        self._tool = codec.read_request_attribute(message, names.ROUTE_ATTRIBUTE)
        if h.are_too_many(request.headers):
            text = f"headers: more than {h.MAX_HEADERS}, or than {h.MAX_HEADERS_BYTES} bytes; send fewer"
            self.refuse(ClientError("invalid_request", self._request_id, message=text, status=431))
        elif request.end_of_stream or not self._names_anything:
            self._arrive(b"")
        else:
            self._body_expected = True
            self._outbox.send(codec.build_request_headers_reply((), ()))

    def _receive_request_body(self, body: bytes) -> None:
        if self._body_expected:
            self._arrive(body)
        else:  # of a request that its headers have decided about
            self._outbox.send(codec.build_request_body_reply((), ()))

    @property
    def _names_anything(self) -> bool:
        """Whether a call says whom it is made for; else its body decides nothing, and is not waited for."""
        return any(name in self._headers for name in NAMING)

    def _arrive(self, body: bytes) -> None:
        headers, request_id = self._headers, self._request_id
        try:
            # Of a call that names nobody the key is its tool's alone to judge.
            key = h.read_idempotency_key(headers) if self._names_anything else None
            operation_id, attempt_id = read_operation(headers), read_attempt(headers)
        except ValueError as mistake:
            self.refuse(ClientError("invalid_request", request_id, message=str(mistake)))
            return
        http = HttpRequest(
            method=headers.get(":method", ""),
            path=headers.get(":path", ""),
            body=body,
            content_type=headers.get("content-type", ""),
            content_encoding=headers.get("content-encoding", ""),
            accept=headers.get("accept", ""),
            key=key,
            mcp_session=MCP_SESSION in headers,
        )
        request = ToolRequest(self._tool, http, request_id, operation_id, attempt_id)
        self._live = self._tools.arrive(request, self)

    def _receive_response_headers(self, message: Any) -> None:
        response = message.response_headers
        headers = h.read_headers(response.headers)
        self._false_marks = tuple(h.list_hostile(headers))
        if self._live is None:  # not watched; or Envoy's own word on a request that did not get here
            self._pass_headers()
            if response.end_of_stream:
                self._finish()
            return
        self._outbox.send(codec.build_patience(_HOLD_S))
        details = codec.read_upstream(message)
        if details.local_reply:
            self._live.note_unanswered(sent=read_cause(details.details) not in NEVER_SENT)
            return
        self._status = int(headers.get(":status", "0"))
        if self._status < 200:  # 101: the tool speaks something else from now on, and no HTTP answer comes
            self._live.note_unanswered(sent=True)
            return
        self._kept_headers = read_kept_headers(response.headers)
        if response.end_of_stream:
            self._headers_only = True
            self._live.note_answered(KeptAnswer(self._status, self._kept_headers, b""))

    def _pass_headers(self) -> None:
        self._passing = True
        self._outbox.send(codec.build_response_headers_reply((), self._false_marks))

    def _receive_response_body(self, data: bytes, end: bool) -> None:
        self._kept_size += len(data)
        self._kept += data
        live = self._live
        if live is None:
            self._flush(end)
        elif self._kept_size <= self._max_result_bytes:
            if end:
                live.note_answered(KeptAnswer(self._status, self._kept_headers, bytes(self._kept)))
        elif end:
            live.note_large_answer(self._status)
        else:
            if not self._passing:
                self._pass_headers()
            self._flush(end=False)

    def _flush(self, end: bool) -> None:
        """Send what is kept on."""
        data = bytes(self._kept)
        self._kept.clear()
        if self._trailers and end:
            if data:
                self._outbox.send(codec.build_streamed_body(data, end=False))
            self._outbox.send(codec.build_response_trailers_reply())
        else:
            self._outbox.send(codec.build_streamed_body(data, end))
        if end:
            self._finish()

    def _finish(self) -> None:
        self._done = True
        self._outbox.finish()

    # --- to Envoy -----------------------------------------------------------------------------

    def pass_on(self) -> None:
        """Let it go: nothing of it concerns the ledger."""
        if not self._done:
            self._send_request((), list_private(self._headers))

    def let_out(self, key: str) -> None:
        """Let the call go to its tool. The answer is to be read and kept, so it must not be compressed."""
        if self._done:
            return
        self._send_request([(h.IDEMPOTENCY_KEY, key)], [*list_private(self._headers), "accept-encoding"])

    def _send_request(self, set_headers: codec.Headers, remove: list[str]) -> None:
        build = codec.build_request_body_reply if self._body_expected else codec.build_request_headers_reply
        self._outbox.send(build(set_headers, remove))

    def answer(self, result: KeptAnswer) -> None:
        """Give a recorded result."""
        if self._done:
            return
        headers = [*result.headers, (names.TOOL_REPLAYED, "true")]
        self._outbox.send(
            codec.build_immediate_response(result.status, headers, result.body, "envoy_ext_tool_replayed")
        )
        self._finish()

    def refuse(self, error: ClientError) -> None:
        """Answer with an error."""
        if self._done:
            return
        if self._passing:
            self._done = True
            self._outbox.abort()  # part of an answer is out
            return
        self._outbox.send(
            codec.build_immediate_response(
                error.http_status,
                build_error_headers(error),
                build_error_body(error),
                f"envoy_ext_{error.code}",
            )
        )
        self._finish()

    def release(self) -> None:
        """What is held may go: it is recorded."""
        if self._done:
            return
        if not self._passing:
            self._pass_headers()
        if self._headers_only:
            self._finish()
        else:
            self._flush(end=True)
