"""What Envoy is told of a tool call, message by message, and what of it goes into the ledger."""

from dataclasses import dataclass, field
from typing import Any

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.extproc_tool import ToolSession
from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import names
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.tool_calls import CallState, ToolCall
from envoy_ext.domain.tool_request import ToolPolicy
from envoy_ext.services.background import Background
from envoy_ext.services.tools import Tools
from tests.support.journals import keep, run_now
from tests.support.records import attempt_started, begun
from tests.support.sidecar import Watcher

OPERATION = OperationId("op_1")
LIMIT = 10
NAMED = {names.OPERATION: "op_1", names.ATTEMPT: "att_1"}
JSON = {"content-type": "application/json"}


class Box:
    """Keeps what would go to Envoy."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.end: str | None = None

    def send(self, response: bytes) -> None:
        self.sent.append(ProcessingResponse.FromString(response))

    def finish(self) -> None:
        self.end = "finished"

    def abort(self) -> None:
        self.end = "aborted"

    def take(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent


@dataclass
class Envoy:
    """One call, as Envoy tells of it."""

    ledger: MemoryJournal = field(default_factory=MemoryJournal)

    def __post_init__(self) -> None:
        self.watcher = Watcher()
        self.background = Background(self.watcher)
        self.tools = Tools(
            self.ledger,
            {"mail": ToolPolicy("mail")},
            require_operation=False,
            clock=SystemClock(),
            observer=self.watcher,
            background=self.background,
        )
        if run_now(self.ledger.get(OPERATION)) is None:
            run_now(keep(self.ledger, [begun("op_1"), attempt_started()]))
        self.box = Box()
        self.session = ToolSession(self.tools, self.box, LIMIT, lambda: "minted")

    async def tell(self, message: Any) -> list[Any]:
        self.session.receive(message)
        await self.background.wait()
        return self.box.take()

    async def request_headers(self, headers: dict[str, str], *, end: bool = False) -> list[Any]:
        message = ProcessingRequest()
        fill(message.request_headers, {":method": "POST", ":path": "/mail", **JSON, **headers}, end)
        attributes = message.attributes["envoy.filters.http.ext_proc"].fields
        attributes[names.ROUTE_ATTRIBUTE].string_value = "mail"
        return await self.tell(message)

    async def request(self, headers: dict[str, str] = NAMED, body: bytes = b"{}") -> list[Any]:
        """The request, whole; all that comes of it but the word that its headers may go on."""
        sent = await self.request_headers(headers)
        if self.box.end is not None:
            return sent
        message = ProcessingRequest()
        message.request_body.body, message.request_body.end_of_stream = body, True
        return await self.tell(message)

    async def answer(
        self, headers: dict[str, str] | None = None, *, end: bool = False, details: str = "via_upstream"
    ) -> list[Any]:
        message = ProcessingRequest()
        fill(message.response_headers, {":status": "200", **(headers or JSON)}, end)
        attributes = message.attributes["envoy.filters.http.ext_proc"].fields
        attributes["response.code_details"].string_value = details
        return await self.tell(message)

    async def chunk(self, data: bytes, *, end: bool = False) -> list[Any]:
        message = ProcessingRequest()
        message.response_body.body, message.response_body.end_of_stream = data, end
        return await self.tell(message)

    async def call(self) -> ToolCall:
        (call,) = await self.ledger.read_calls(OPERATION)
        return call

    async def result(self) -> KeptAnswer | None:
        return await self.ledger.read_result(OPERATION, (await self.call()).call_id)


def fill(target: Any, headers: dict[str, str], end: bool) -> None:
    for name, value in headers.items():
        target.headers.headers.add(key=name, raw_value=value.encode())
    target.end_of_stream = end


def read_mutation(reply: Any) -> tuple[dict[str, str], list[str]]:
    """Of a request's reply: the headers set, and those removed."""
    common = reply.request_body.response if reply.HasField("request_body") else reply.request_headers.response
    mutation = common.header_mutation
    return (
        {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers},
        list(mutation.remove_headers),
    )


def read_chunk(reply: Any) -> tuple[bytes, bool]:
    streamed = reply.response_body.response.body_mutation.streamed_response
    return streamed.body, streamed.end_of_stream


async def test_the_tool_sees_the_key_and_nothing_of_ours() -> None:
    envoy = Envoy()
    given = {
        **NAMED,
        "x-envoy-retry-on": "5xx",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-attempt-id": "att_1",
        "x-mine": "1",
    }
    (reply,) = await envoy.request(given)
    added, removed = read_mutation(reply)
    assert added == {"idempotency-key": (await envoy.call()).call_id}
    assert set(removed) == set(given) - {"x-mine"} | {"accept-encoding"}


async def test_nothing_of_an_answer_is_given_away_before_it_is_recorded() -> None:
    envoy = Envoy()
    await envoy.request()
    (patience,) = await envoy.answer(
        {**JSON, "set-cookie": "a=b", "x-more": "1", names.TOOL_REPLAYED: "true"}
    )
    assert patience.HasField("override_message_timeout")
    assert await envoy.chunk(b'{"a":') == []
    headers, body = await envoy.chunk(b"1}", end=True)
    assert list(headers.response_headers.response.header_mutation.remove_headers) == [names.TOOL_REPLAYED]
    assert read_chunk(body) == (b'{"a":1}', True)
    assert envoy.box.end == "finished"
    kept = KeptAnswer(200, (("content-type", "application/json"), ("x-more", "1")), b'{"a":1}')
    assert await envoy.result() == kept


async def test_a_recorded_result_is_given_with_its_mark() -> None:
    envoy = Envoy()
    await envoy.request({**NAMED, "idempotency-key": "k"})
    await envoy.answer({**JSON, "connection": "x-hop, close", "x-hop": "1"})
    await envoy.chunk(b"{}", end=True)
    again = Envoy(envoy.ledger)
    (reply,) = await again.request({**NAMED, "idempotency-key": "k"})
    immediate = reply.immediate_response
    assert (immediate.status.code, immediate.body) == (200, b"{}")
    given = {one.header.key: one.header.raw_value for one in immediate.headers.set_headers}
    assert given == {"content-type": b"application/json", names.TOOL_REPLAYED: b"true"}
    assert again.box.end == "finished"


async def test_an_answer_without_a_body_is_recorded_too() -> None:
    envoy = Envoy()
    await envoy.request()
    _patience, headers = await envoy.answer({":status": "204"}, end=True)
    assert headers.HasField("response_headers")
    assert (await envoy.call()).state is CallState.RECORDED
    assert envoy.box.end == "finished"


async def test_an_answer_that_ends_with_trailers_is_recorded_too() -> None:
    envoy = Envoy()
    await envoy.request()
    await envoy.answer()
    await envoy.chunk(b"{}")
    message = ProcessingRequest()
    message.response_trailers.SetInParent()
    headers, body, trailers = await envoy.tell(message)
    assert headers.HasField("response_headers")
    assert read_chunk(body) == (b"{}", False)
    assert trailers.HasField("response_trailers")
    assert (await envoy.result()) is not None


async def test_an_answer_that_is_too_large_passes_and_its_end_waits_for_the_record() -> None:
    envoy = Envoy()
    await envoy.request()
    await envoy.answer()
    assert await envoy.chunk(b"x" * LIMIT) == []
    headers, first = await envoy.chunk(b"y")
    assert headers.HasField("response_headers")
    assert read_chunk(first) == (b"x" * LIMIT + b"y", False)
    assert (await envoy.call()).state is CallState.BEGUN
    (last,) = await envoy.chunk(b"z", end=True)
    assert read_chunk(last) == (b"z", True)
    call = await envoy.call()
    assert (call.state, call.status) == (CallState.NOT_KEPT, 200)
    assert await envoy.result() is None


async def test_an_answer_of_exactly_the_limit_is_kept() -> None:
    envoy = Envoy()
    await envoy.request()
    await envoy.answer()
    await envoy.chunk(b"x" * LIMIT, end=True)
    assert (await envoy.call()).state is CallState.RECORDED


async def test_envoys_own_answer_says_whether_the_call_was_sent() -> None:
    cases = {
        "upstream_reset_before_response_started{connection_failure|delayed_connect_error:_111}": False,
        "upstream_reset_before_response_started{connection_timeout}": False,
        "no_healthy_upstream": False,
        "upstream_reset_before_response_started{overflow}": False,
        "upstream_reset_before_response_started{connection_termination}": True,
        "upstream_response_timeout": True,
        "anything_else": True,
    }
    for details, sent in cases.items():
        envoy = Envoy()
        await envoy.request()
        _patience, reply = await envoy.answer({":status": "503"}, details=details)
        state = CallState.UNKNOWN if sent else CallState.NOT_SENT
        assert (await envoy.call()).state is state, details
        assert reply.immediate_response.status.code == (409 if sent else 503), details


async def test_a_tool_that_goes_over_to_another_protocol_has_given_no_answer() -> None:
    """Envoy would give a recorded 101 again as a 200."""
    envoy = Envoy()
    await envoy.request()
    _patience, reply = await envoy.answer({":status": "101", "upgrade": "x"}, end=True)
    assert (await envoy.call()).state is CallState.UNKNOWN
    assert reply.immediate_response.status.code == 409


async def test_a_stream_that_ends_early_is_a_call_of_unknown_outcome() -> None:
    envoy = Envoy()
    await envoy.request()
    await envoy.answer()
    await envoy.chunk(b"{}")
    envoy.session.closed()
    await envoy.background.wait()
    assert (await envoy.call()).state is CallState.UNKNOWN
    assert envoy.box.sent == []


async def test_a_call_that_names_nobody_passes_without_a_wait_for_its_body_or_its_end() -> None:
    envoy = Envoy()
    given = {"x-envoy-retry-on": "5xx", "accept-encoding": "gzip", "idempotency-key": ""}
    (reply,) = await envoy.request_headers(given)
    assert reply.HasField("request_headers")
    assert read_mutation(reply) == ({}, ["x-envoy-retry-on"])
    whole = ProcessingRequest()
    whole.request_body.body, whole.request_body.end_of_stream = b"{}", True
    (reply,) = await envoy.tell(whole)
    assert read_mutation(reply) == ({}, [])
    (headers,) = await envoy.answer({**JSON, names.TOOL_REPLAYED: "true"})
    assert list(headers.response_headers.response.header_mutation.remove_headers) == [names.TOOL_REPLAYED]
    (chunk,) = await envoy.chunk(b"x" * (LIMIT + 1))
    assert read_chunk(chunk) == (b"x" * (LIMIT + 1), False)
    assert envoy.box.end is None, "a chunk that is under way would be lost"
    (chunk,) = await envoy.chunk(b"", end=True)
    assert read_chunk(chunk) == (b"", True)
    assert envoy.box.end == "finished"


async def test_what_cannot_be_an_id_or_a_key_is_refused() -> None:
    for headers in (
        {**NAMED, names.OPERATION: "x" * 200},
        {**NAMED, names.ATTEMPT: "\u00e9"},
        {**NAMED, "idempotency-key": ""},
        {f"x-{number}": "1" for number in range(120)},
    ):
        envoy = Envoy()
        (reply,) = await envoy.request(headers)
        assert reply.immediate_response.status.code in (400, 431)
        assert b'"code":"invalid_request"' in reply.immediate_response.body


async def test_the_common_names_of_operation_and_attempt_do_as_well() -> None:
    envoy = Envoy()
    await envoy.request({"x-operation-id": "op_1", "x-attempt-id": "att_1"})
    assert (await envoy.call()).attempts == ("att_1",)


async def test_envoys_answer_to_a_request_that_did_not_get_here_passes() -> None:
    """The body was too large for the filter before this one."""
    envoy = Envoy()
    (headers,) = await envoy.answer({":status": "413"}, details="request_payload_too_large")
    (body,) = await envoy.chunk(b"{}", end=True)
    assert headers.HasField("response_headers")
    assert read_chunk(body) == (b"{}", True)
