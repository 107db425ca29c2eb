"""The attempt filter's session: one try at one replica, from the gate to the first delta.

Envoy sends the held response's headers and first chunks and waits. When they are let go, each
message gets its reply in order and the stream ends: later chunks pass without us.
"""

from collections.abc import Mapping
from typing import Any, Final, assert_never

from envoy_ext.adapters import extproc_codec as codec
from envoy_ext.adapters import headers as h
from envoy_ext.adapters.accesslog_codec import read_cause
from envoy_ext.adapters.engines import AbortCall, name_request
from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.domain import names, step
from envoy_ext.domain.events import AttemptAnswered, AttemptBody, AttemptClosed, AttemptUnanswered
from envoy_ext.domain.ids import AttemptId, PoolName
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.hop_reports import HopReports
from envoy_ext.services.live_exchange import LiveExchange
from envoy_ext.services.replica_keys import ReadKey

_REFUSED_STATUS: Final = 409
_FAILED_STATUS: Final = 503
"""Neither is seen by a client: the delivery filter answers it. 409 is no status that anything retries."""


class AttemptSession:
    """Translates between Envoy's egress hop and one attempt. Every method runs on the event loop."""

    __slots__ = (
        "_aborts",
        "_attempt_id",
        "_done",
        "_exchanges",
        "_false_marks",
        "_live",
        "_outbox",
        "_read_key",
        "_reports",
        "_unanswered_bodies",
    )

    def __init__(
        self,
        exchanges: Exchanges,
        reports: HopReports,
        outbox: Outbox,
        aborts: Mapping[PoolName, AbortCall] | None = None,
        read_key: ReadKey = lambda pool: None,
    ) -> None:
        """`aborts` are the calls of the pools whose engines can end one request by its name; `read_key` has
        what a pool's replicas are shown in the place of a client's credentials."""
        self._read_key = read_key
        self._aborts = aborts or {}
        self._exchanges = exchanges
        self._reports = reports
        self._outbox = outbox
        self._live: LiveExchange | None = None
        self._attempt_id: AttemptId | None = None
        self._unanswered_bodies = 0
        self._false_marks: tuple[str, ...] = ()
        self._done = False

    # --- from Envoy ---------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        """Take in one message of the egress hop."""
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            self._receive_request_headers(message.request_headers)
        elif self._live is None or self._attempt_id is None:
            self._outbox.abort()
        elif kind == "response_headers":
            self._receive_response_headers(message, self._live, self._attempt_id)
        elif kind == "response_body":
            body = message.response_body
            self._unanswered_bodies += 1
            self._live.receive(AttemptBody(self._attempt_id, body.body, body.end_of_stream))

    def closed(self) -> None:
        """The stream is over."""
        self._done = True
        if self._live is not None and self._attempt_id is not None:
            self._live.receive(AttemptClosed(self._attempt_id))

    def _receive_request_headers(self, message: Any) -> None:
        headers = h.read_headers(message.headers)
        exchange_id = headers.get(names.EXCHANGE, "")
        joined = self._exchanges.join(exchange_id, self)
        if joined is None:
            self._send_final(
                _REFUSED_STATUS, names.REFUSAL, "upstream_unavailable", "envoy_ext_unknown_exchange"
            )
            return
        self._live, self._attempt_id = joined
        self._exchanges.arrive_attempt(self._live, self._attempt_id, PoolName(headers.get(names.POOL, "")))

    def _receive_response_headers(self, message: Any, live: LiveExchange, attempt_id: AttemptId) -> None:
        headers = h.read_headers(message.response_headers.headers)
        # A replica's own headers of these names would be taken for marks of ours. Where there are none,
        # nothing is removed: Envoy counts headers behind any mutation, and there may be as many as can be.
        self._false_marks = tuple(name for name in (names.REPLAY, names.REFUSAL) if name in headers)
        upstream = codec.read_upstream(message)
        replica = self._exchanges.find_replica(live, upstream.replica, upstream.address)
        if upstream.local_reply:
            cause = read_cause(upstream.details)
            lost = AttemptUnanswered(attempt_id, cause, replica, upstream.details, upstream.address)
            self._reports.tell_loss(live, lost)
            return
        live.receive(
            AttemptAnswered(
                attempt_id=attempt_id,
                status=int(headers.get(":status", "0")),
                content_type=headers.get("content-type", ""),
                content_encoding=headers.get("content-encoding", ""),
                replica=replica,
                end=message.response_headers.end_of_stream,
            )
        )

    # --- to Envoy -----------------------------------------------------------------------------

    def send(self, reply: step.AttemptReply) -> None:
        """Carry out one reply of the exchange."""
        if self._done:
            return
        match reply:
            case step.StartAttempt():
                self._send_start(reply)
            case step.AskPatience():
                self._outbox.send(codec.build_patience(reply.seconds))
            case step.ReleaseAttempt():
                self._let_go(self._false_marks)
            case step.PassLocalReply():
                self._let_go(())
            case step.RefuseAttempt():
                self._send_final(_REFUSED_STATUS, names.REFUSAL, reply.code, f"envoy_ext_{reply.code}")
            case step.FailOver():
                self._send_final(_FAILED_STATUS, names.REPLAY, reply.outcome, f"envoy_ext_{reply.outcome}")
            case step.WithholdAnswer():
                self._send_final(_FAILED_STATUS, names.REFUSAL, reply.code, f"envoy_ext_{reply.code}")
            case _:
                assert_never(reply)

    def _let_go(self, remove: tuple[str, ...]) -> None:
        self._done = True
        self._outbox.send(codec.build_response_headers_reply((), remove))
        for _ in range(self._unanswered_bodies):
            self._outbox.send(codec.build_response_body_reply())
        self._outbox.finish()

    def _send_start(self, reply: step.StartAttempt) -> None:
        set_headers = [
            (names.ATTEMPT, str(reply.attempt_id)),
            (names.OPERATION, str(reply.operation_id)),
            (names.LEASE, str(reply.token)),
            (names.LEASE_TTL, f"{reply.lease_ttl_s:g}"),
        ]
        if reply.target is not None:
            set_headers.append((names.ENDPOINT, reply.target.address))
        pool = None if self._live is None else self._live.exchange.identity.pool
        abort = None if pool is None else self._aborts.get(pool)
        if abort is not None:
            set_headers.append((abort.name_header, name_request(reply.attempt_id)))
        remove = [] if reply.keep_encoding else ["accept-encoding"]
        key = self._read_key(pool)
        if key is not None:
            set_headers.append(("authorization", f"Bearer {key}"))
            remove += h.KEY_HEADERS
        self._outbox.send(codec.build_request_headers_reply(set_headers, remove))

    def _send_final(self, status: int, name: str, value: str, details: str) -> None:
        self._done = True
        self._outbox.send(codec.build_immediate_response(status, [(name, value)], b"", details))
        self._outbox.finish()
