"""The delivery filter's session: one client's request at the ingress hop, from headers to last byte."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final, assert_never

from envoy_ext.adapters import extproc_codec as codec
from envoy_ext.adapters import headers as h
from envoy_ext.adapters.accesslog_codec import read_lost
from envoy_ext.adapters.extproc_session import ChunkSession, Outbox
from envoy_ext.adapters.models_codec import build_models_json
from envoy_ext.adapters.operation_codec import build_job_json, build_operation_json
from envoy_ext.adapters.request_head_codec import read_head
from envoy_ext.domain import names, step
from envoy_ext.domain.client_errors import NOT_RECORDED, ClientError, build_error_body, build_error_headers
from envoy_ext.domain.events import DeliveryClosed, ResponseBody, ResponseStarted
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.outcomes import RungName
from envoy_ext.services.admission import Arrival
from envoy_ext.services.arrivals import Arrivals, ShownOperation
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.heads import read_operation_path
from envoy_ext.services.job_questions import JobQuestion, read_job_question
from envoy_ext.services.jobs import Jobs, draw_look_again

_OWN_RESPONSE_HEADERS: Final = (names.REPLAY, names.REFUSAL, h.ENVOY_ATTEMPT_COUNT)


class DeliverySession(ChunkSession):
    """Translates between Envoy's ingress hop and one exchange. Every method runs on the event loop."""

    __slots__ = (
        "_arrival",
        "_arrivals",
        "_body_expected",
        "_delivery",
        "_done",
        "_mint_request_id",
        "_note_chunk",
        "_outbox",
        "_preference",
        "_request_id",
        "_unsent",
    )

    def __init__(
        self,
        arrivals: Arrivals,
        outbox: Outbox,
        mint_request_id: Callable[[], str],
        note_chunk: Callable[[float], None],
    ) -> None:
        self._arrivals = arrivals
        self._outbox = outbox
        self._mint_request_id = mint_request_id
        self._note_chunk = note_chunk
        self._arrival: Arrival | None = None
        """The request, while its body is waited for."""
        self._request_id = ""
        self._unsent: list[str] = []
        self._body_expected = False
        self._delivery: Delivery | None = None
        self._preference: str | None = None
        """What of the client's `Prefer` was heeded."""
        self._done = False

    # --- from Envoy ---------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        """Take in one message of the ingress hop."""
        kind = message.WhichOneof("request")
        if kind == "response_body":
            self._receive_response_body(message.response_body)
        elif kind == "request_headers":
            self._receive_request_headers(message)
        elif kind == "request_body":
            if self._arrival is not None:
                self._arrive(self._arrival, message.request_body.body)
        elif kind == "response_headers":
            self._receive_response_headers(message.response_headers)
        elif kind == "response_trailers":
            if self._delivery is not None:
                self._delivery.receive(ResponseBody(b"", end=True, trailers=True))
        elif kind == "request_trailers":
            self._outbox.send(codec.build_request_trailers_reply())

    def closed(self) -> None:
        """The stream is over."""
        self._done = True
        if self._delivery is not None:
            self._delivery.receive(DeliveryClosed())

    def _receive_request_headers(self, message: Any) -> None:
        request, heads = message.request_headers, self._arrivals.heads
        head = read_head(
            request.headers,
            mint_request_id=self._mint_request_id,
            trusted_header=heads.trusted_header,
            peer=codec.read_request_attribute(message, codec.PEER),
        )
        self._request_id = head.request_id
        self._unsent = [*head.forged, *heads.list_credentials()]
        sender = heads.decide_sender(head)
        if isinstance(sender, ClientError):
            self._arrivals.refuse(self, sender)
            return
        operation_id = read_operation_path(head.method, head.path)
        if operation_id is not None:
            self._arrivals.show_operation(
                operation_id, sender.id, self._answer_operation, self._answer_no_journal
            )
            return
        question = read_job_question(head.method, head.path)
        if question is not None and self._arrivals.ask_jobs(
            partial(self._answer_of_job, *question, sender.id), self._answer_no_journal
        ):
            return
        models = heads.list_models(head, sender)
        if models is not None:
            self._answer_json(build_models_json(models), "envoy_ext_models")
            return
        arrival = heads.decide_head(head, sender)
        if isinstance(arrival, ClientError):
            self._arrivals.refuse(self, arrival)
        elif request.end_of_stream:
            self._arrive(arrival, b"")
        elif (closed := self._arrivals.find_closure(arrival)) is not None:
            self._arrivals.refuse(self, closed)
        else:
            self._body_expected = True
            self._arrival = arrival
            self._outbox.send(codec.build_request_headers_reply((), ()))

    def _arrive(self, arrival: Arrival, body: bytes) -> None:
        self._delivery = self._arrivals.arrive(replace(arrival, body=body), self)
        self._arrival = None

    def _receive_response_body(self, message: Any) -> None:
        if not message.end_of_stream:
            data = self.receive_chunk(message.body)
            if data:
                self._outbox.send(codec.build_streamed_body(data, end=False))
        elif self._delivery is None:
            self._outbox.send(codec.build_streamed_body(message.body, end=True))
        else:
            started = perf_counter()
            self._delivery.receive(ResponseBody(message.body, end=True))
            self._note_chunk(perf_counter() - started)

    def receive_chunk(self, data: bytes) -> bytes:
        """Take in a part of the answer; what of it goes to the client."""
        delivery = self._delivery
        if delivery is None:
            return data
        started = perf_counter()
        passed = delivery.pass_chunk(data, started)
        if passed is None:
            delivery.receive(ResponseBody(data, end=False))
        self._note_chunk(perf_counter() - started)
        return passed or b""

    def _receive_response_headers(self, message: Any) -> None:
        if self._delivery is None:
            self._outbox.send(codec.build_response_headers_reply())
            return
        headers = h.read_headers(message.headers)
        mark = headers.get(names.REPLAY)
        self._delivery.receive(
            ResponseStarted(
                status=int(headers.get(":status", "0")),
                content_type=headers.get("content-type", ""),
                content_encoding=headers.get("content-encoding", ""),
                replay_mark=mark is not None,
                refusal=headers.get(names.REFUSAL),
                end=message.end_of_stream,
                lost=None if mark is None else read_lost(mark),
                headers=h.list_kept(message.headers) if self._delivery.keeps_answer else (),
            )
        )

    # --- to Envoy -----------------------------------------------------------------------------

    def send(self, reply: step.DeliveryReply) -> None:
        """Carry out one reply of the exchange."""
        if self._done:
            return
        match reply:
            case step.ForwardBody():
                self._send_body(reply)
            case step.ForwardRequest():
                self._send_request(reply)
            case step.HoldRequest():
                self._preference = reply.preference or self._preference
                self._outbox.send(codec.build_patience(reply.seconds))
            case step.ForwardResponse():
                self._send_headers(reply)
            case step.RespondLocally():
                self._send_error(reply.error)
            case step.AnswerHere():
                self._send_own_answer(reply)
            case step.GiveAnswer():
                self._send_answer(reply)
            case step.AcceptJob():
                self._send_job(reply)
            case step.ResetDelivery():
                self._done = True
                self._outbox.abort()
            case _:
                assert_never(reply)

    def _send_request(self, reply: step.ForwardRequest) -> None:
        set_headers = [
            (names.EXCHANGE, reply.exchange_id),
            (names.OPERATION, reply.operation_id),
            (names.POOL, reply.pool),
            (h.REQUEST_ID, self._request_id),
        ]
        if reply.changed_body is not None:
            set_headers.append(("content-length", str(len(reply.changed_body))))
            # What is written anew is written plain.
            remove = [*self._unsent, "content-encoding"]
            self._outbox.send(codec.build_request_body_reply(set_headers, remove, reply.changed_body))
            return
        build = codec.build_request_body_reply if self._body_expected else codec.build_request_headers_reply
        self._outbox.send(build(set_headers, self._unsent))

    def _send_headers(self, reply: step.ForwardResponse) -> None:
        set_headers = [
            (h.REQUEST_ID, reply.request_id),
            (h.OPERATION_ID, reply.operation_id),
            (h.ATTEMPT_COUNT, str(reply.attempts)),
            *self._list_applied(),
            *_list_degraded(reply.degraded),
        ]
        remove = [*_OWN_RESPONSE_HEADERS]
        if reply.may_append:
            remove.append("content-length")
        if reply.recorded:
            remove.append(NOT_RECORDED[0])
        else:
            set_headers.append(NOT_RECORDED)
        if not reply.degraded:
            remove.append(names.DEGRADED)  # a replica's own word would pass for ours
        self._outbox.send(codec.build_response_headers_reply(set_headers, remove))

    def _send_body(self, reply: step.ForwardBody) -> None:
        if not reply.end:
            self._outbox.send(codec.build_streamed_body(reply.data, end=False))
            return
        self._done = True
        if not reply.trailers:
            self._outbox.send(codec.build_streamed_body(reply.data, end=True))
        else:
            if reply.data:
                self._outbox.send(codec.build_streamed_body(reply.data, end=False))
            self._outbox.send(codec.build_response_trailers_reply())
        self._outbox.finish()

    def _answer_operation(self, shown: ShownOperation | None) -> None:
        if self._done:
            return
        if shown is None:
            self._answer_no_such()
        elif shown.job is not None:
            view = build_job_json(shown.job, shown.operation, shown.calls)
            self._answer_json(view, "envoy_ext_operation")
        elif shown.operation is not None:
            self._answer_json(build_operation_json(shown.operation, shown.calls), "envoy_ext_operation")

    async def _answer_of_job(self, question: JobQuestion, operation_id: str, caller: str, jobs: Jobs) -> None:
        """What a client wants of its job: the result, or its end."""
        job = await jobs.find(OperationId(operation_id), caller)
        if job is None:
            self._answer_no_such()
        elif question is JobQuestion.RESULT:
            told = await jobs.read_result(job, self._request_id)
            if isinstance(told, ClientError):
                self._arrivals.refuse(self, told)
            else:
                self.send(told)
        else:
            cancelled = await jobs.cancel(job)
            if cancelled.in_vain:
                text = f"This operation has ended ({cancelled.job.state}), so it cannot be cancelled."
                self._arrivals.refuse(
                    self, ClientError("operation_ended", self._request_id, job.job_id, message=text)
                )
            else:
                view, ended = build_job_json(cancelled.job, None, None), cancelled.job.ended
                self._answer_json(view, "envoy_ext_cancel", status=200 if ended else 202)

    def _answer_no_such(self) -> None:
        text = "there is no such operation of this caller"
        error = ClientError("invalid_request", self._request_id, message=text, status=404)
        self._arrivals.refuse(self, error)

    def _answer_no_journal(self) -> None:
        text = "The gateway cannot look up the operation at this moment."
        self._arrivals.refuse(self, ClientError("upstream_unavailable", self._request_id, message=text))

    def _answer_json(self, answer: object, details: str, status: int = 200) -> None:
        if self._done:
            return
        self._done = True
        headers = [("content-type", "application/json"), (h.REQUEST_ID, self._request_id)]
        body = json.dumps(answer, separators=(",", ":")).encode()
        self._outbox.send(codec.build_immediate_response(status, headers, body, details))
        self._outbox.finish()

    def _send_answer(self, reply: step.GiveAnswer) -> None:
        headers = [
            *reply.answer.headers,
            *(((h.REPLAYED, "true"),) if reply.repeated else ()),
            (h.REQUEST_ID, reply.request_id),
            (h.OPERATION_ID, reply.operation_id),
            (h.ATTEMPT_COUNT, str(reply.attempts)),
            *_list_degraded(reply.degraded),
        ]
        self._respond(reply.answer.status, headers, reply.answer.body, "envoy_ext_answer_replayed")

    def _send_job(self, reply: step.AcceptJob) -> None:
        """202: it will be run, or is (RFC 9110, section 15.3.3)."""
        if reply.asked:
            self._preference = h.RESPOND_ASYNC
        headers = [
            ("content-type", "application/json"),
            ("location", f"/v1/operations/{reply.job.job_id}"),
            ("retry-after", str(reply.retry_after_s)),
            (h.REQUEST_ID, reply.request_id),
            (h.OPERATION_ID, reply.job.job_id),
            *_list_degraded(reply.degraded),
        ]
        body = json.dumps(build_job_json(reply.job, None, None), separators=(",", ":")).encode()
        self._respond(202, headers, body, "envoy_ext_job")

    def _send_own_answer(self, reply: step.AnswerHere) -> None:
        if reply.job is not None:
            accepted = step.AcceptJob(reply.job, reply.request_id, draw_look_again(), degraded=reply.degraded)
            self._send_job(accepted)
            return
        headers = [
            ("content-type", reply.content_type),
            (h.REQUEST_ID, reply.request_id),
            (h.OPERATION_ID, reply.operation_id),
            (h.ATTEMPT_COUNT, "0"),
            *_list_degraded(reply.degraded),
            *(() if reply.recorded else (NOT_RECORDED,)),
        ]
        self._respond(200, headers, reply.data, f"envoy_ext_{reply.degraded[-1]}")

    def _send_error(self, error: ClientError) -> None:
        headers, body = build_error_headers(error), build_error_body(error)
        self._respond(error.http_status, headers, body, f"envoy_ext_{error.code}")

    def _respond(self, status: int, headers: list[tuple[str, str]], body: bytes, details: str) -> None:
        self._done = True
        headers = [*headers, *self._list_applied()]
        self._outbox.send(codec.build_immediate_response(status, headers, body, details))
        self._outbox.finish()

    def _list_applied(self) -> list[tuple[str, str]]:
        return [] if self._preference is None else [(h.PREFERENCE_APPLIED, self._preference)]


def _list_degraded(rungs: Sequence[RungName]) -> list[tuple[str, str]]:
    return [(names.DEGRADED, ", ".join(rungs))] if rungs else []
