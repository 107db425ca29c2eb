"""The steps of one answer, from its content and its plan; no IO, no clock.

A stream's headers leave first, as vLLM sends them before the prefill has begun; a JSON answer's
headers leave when the answer is complete. Steps are made one at a time, so a long answer costs
memory only when its length must be announced.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from envoy_ext.sim.answer import DONE, Answer, Event, Finish, encode_event, error_object
from envoy_ext.sim.plan import Close, How, Only, Plan, Point, Refusal
from envoy_ext.sim.shape import Shape, StreamShape


@dataclass(frozen=True, slots=True)
class Enter:
    """Wait for a place among the running requests and keep it until the end."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Wait as long as the prompt's prefill takes."""


@dataclass(frozen=True, slots=True)
class CallTools:
    """Call the tools that the request asks for, and wait for what comes of it; or for so long."""

    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Token:
    """Compute one token; the first one comes out of the prefill and takes no time of its own."""

    first: bool


@dataclass(frozen=True, slots=True)
class Headers:
    """Send the status line and the headers."""

    status: int
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Send bytes of the body in one piece; `deltas` tokens are with the client after it."""

    data: bytes
    deltas: int = 0


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop for good in the given way; nothing follows."""

    how: How


Step = Enter | Prefill | CallTools | Pause | Token | Headers | Write | Halt

_SSE = "text/event-stream; charset=utf-8"
_JSON = "application/json"
_BOM = b"\xef\xbb\xbf"
# As llama.cpp was seen to send it on an event stream, without `data:`.
_UNFRAMED_ERROR = json.dumps(
    error_object("the request exceeds the available context size", "exceed_context_size_error", 400)
).encode()


def build_stream(
    kind: type[StreamShape], answer: Answer, plan: Plan, *, accepts_gzip: bool
) -> Iterator[Step]:
    """The steps of an answer that is streamed."""
    if plan.refusal is not None:
        return _refuse(plan.refusal)
    if plan.stop is not None and plan.stop.at is Point.BEFORE_HEADERS:
        return _stop_before_headers(plan.stop.how)
    shape = kind(_adapt(kind, answer, plan))
    headers = (("content-type", "application/x-ndjson" if plan.ndjson else _SSE),)
    return _send(headers, _stream_body(shape, plan), plan, accepts_gzip)


def build_json(kind: type[Shape], answer: Answer, plan: Plan, *, accepts_gzip: bool) -> Iterator[Step]:
    """The steps of an answer that is one JSON object."""
    if plan.refusal is not None:
        return _refuse(plan.refusal)
    stop = plan.stop
    if stop is not None and stop.at is Point.BEFORE_HEADERS:
        return _stop_before_headers(stop.how)
    if stop is not None and stop.at is Point.IN_TOOL:
        return iter([Enter(), Prefill(), *_call_tools(plan)])
    data = json.dumps(kind(answer).body(), separators=(",", ":")).encode()
    body: list[Step] = [Write(data, len(answer.tokens))]
    if stop is not None:
        part = data[: len(data) // 2] if stop.at is Point.MID_BODY else b""
        body = [Write(part), Halt(stop.how)] if part else [Halt(stop.how)]
    encoded = plan.gzip_always or (plan.gzip and accepts_gzip)
    length = () if encoded else (("content-length", str(len(data))),)
    compute: list[Step] = [
        Enter(),
        Prefill(),
        *_call_tools(plan),
        *(Token(first=index == 0) for index in range(len(answer.tokens))),
    ]
    return _send((("content-type", _JSON), *length), iter(body), plan, accepts_gzip, before=compute)


def _refuse(refusal: Refusal) -> Iterator[Step]:
    if refusal.status == 204:
        yield Headers(204, ())
        return
    kinds = {429: "RateLimitError", 503: "ServiceUnavailable"}
    kind = kinds.get(refusal.status, "InternalServerError" if refusal.status >= 500 else "BadRequestError")
    body = json.dumps(error_object("simulated refusal", kind, refusal.status)).encode()
    retry = () if refusal.retry_after is None else (("retry-after", refusal.retry_after),)
    yield Headers(refusal.status, (("content-type", _JSON), ("content-length", str(len(body))), *retry))
    yield Write(body)


def _stop_before_headers(how: How) -> Iterator[Step]:
    # A hung engine holds a place among the running requests; a dying one cuts what waits, too.
    if how is How.HANG:
        yield Enter()
    yield Halt(how)


def _adapt(kind: type[StreamShape], answer: Answer, plan: Plan) -> Answer:
    if plan.empty:
        return replace(answer, tokens=(), finish=Finish.STOP)
    missing = plan.big_event_bytes - len(encode_event(kind(answer).delta(0), plan.newline))
    if missing <= 0:
        return answer
    return replace(answer, tokens=(answer.tokens[0] + "~" * missing, *answer.tokens[1:]))


def _stream_body(shape: StreamShape, plan: Plan) -> Iterator[Step]:
    stop = plan.stop
    yield Enter()
    if stop is not None and stop.at is Point.AFTER_HEADERS and stop.how is How.HANG:
        yield Halt(stop.how)
        return
    for _ in range(plan.pings):
        yield Pause(plan.ping_every_s)
        yield Write(f": ping{plan.newline}{plan.newline}".encode())
    yield Prefill()
    yield from _call_tools(plan)
    if stop is not None and stop.at is Point.IN_TOOL:
        return
    if stop is not None and stop.at is Point.AFTER_HEADERS:
        yield Halt(stop.how)
    elif plan.only is not None:
        yield from _only(shape, plan, plan.only)
    else:
        yield from _events(shape, plan)


def _call_tools(plan: Plan) -> Iterator[Step]:
    """Nothing of it without a request that asks for some; the answer goes on whatever came of it."""
    stop = plan.stop
    if stop is not None and stop.at is Point.IN_TOOL:
        yield CallTools(stop.after_s)
        yield Halt(stop.how)
    else:
        yield CallTools()


def _only(shape: StreamShape, plan: Plan, only: Only) -> Iterator[Step]:
    match only:
        case Only.DONE:
            yield from _writes([DONE], plan)
        case Only.ERROR:
            yield from _writes(shape.error(plan.error), plan)
        case Only.RAW_JSON_ERROR:
            yield Write(_UNFRAMED_ERROR)
        case _:
            assert_never(only)


def _events(shape: StreamShape, plan: Plan) -> Iterator[Step]:
    stop, whole = plan.stop, len(shape.answer.tokens)
    limit = whole if plan.deltas is None else min(plan.deltas, whole)
    if stop is not None:
        # A cut that lies beyond the answer's end falls on its last delta.
        limit = 0 if stop.at is Point.AFTER_ROLE else min(stop.deltas, whole)
    yield from _writes(shape.preamble(), plan)
    for index in range(limit):
        yield Token(first=index == 0)
        yield from _writes([shape.delta(index)], plan, deltas=1)
    if stop is None:
        yield from _writes(_closing(shape, plan.close, plan), plan)
        return
    if stop.at is Point.MID_EVENT:
        event = shape.delta(limit) if limit < whole else shape.finish(shape.answer.finish)[0]
        data = encode_event(event, plan.newline)
        yield Token(first=limit == 0)
        yield Write(data[: len(data) // 2])
    yield Halt(stop.how)


def _closing(shape: StreamShape, close: Close, plan: Plan) -> list[Event]:
    match close:
        case Close.GOOD:
            return [*shape.finish(shape.answer.finish), *shape.done()]
        case Close.NO_DONE:
            return shape.finish(shape.answer.finish)
        case Close.ABORT:
            return [*shape.finish(Finish.ABORT), *shape.done()]
        case Close.FINISH_NULL:
            return shape.done()
        case Close.NOTHING:
            return []
        case Close.ERROR:
            return shape.error(plan.error)
        case _:
            assert_never(close)


def _writes(events: Iterable[Event], plan: Plan, deltas: int = 0) -> Iterator[Step]:
    for event in events:
        if not plan.ndjson:
            yield Write(encode_event(event, plan.newline), deltas)
        elif event is not DONE:
            yield Write(f"{event.data}\n".encode(), deltas)


def _send(
    headers: tuple[tuple[str, str], ...],
    body: Iterator[Step],
    plan: Plan,
    accepts_gzip: bool,
    before: Iterable[Step] = (),
) -> Iterator[Step]:
    """Put headers before the body, and the body into its encodings."""
    if plan.bom:
        body = _with_bom(body)
    if plan.gzip_always or (plan.gzip and accepts_gzip):
        headers = (*headers, ("content-encoding", "gzip"))
        body = _gzipped(body)
    if plan.content_length and "content-length" not in dict(headers):
        steps = list(body)
        length = sum(len(step.data) for step in steps if isinstance(step, Write))
        headers = (*headers, ("content-length", str(length)))
        body = iter(steps)
    if plan.one_byte:
        body = _single_bytes(body)
    yield from before
    yield Headers(200, headers)
    yield from body


def _with_bom(body: Iterator[Step]) -> Iterator[Step]:
    first = True
    for step in body:
        if first and isinstance(step, Write):
            step, first = replace(step, data=_BOM + step.data), False
        yield step


def _gzipped(body: Iterator[Step]) -> Iterator[Step]:
    # 16 + 15: the gzip container with the largest window. Each event is flushed, as servers that
    # compress a stream do; the trailer follows only when the body comes to an orderly end.
    compressor = zlib.compressobj(wbits=31)
    for step in body:
        if isinstance(step, Write):
            data = compressor.compress(step.data) + compressor.flush(zlib.Z_SYNC_FLUSH)
            yield replace(step, data=data)
        else:
            yield step
            if isinstance(step, Halt):
                return
    yield Write(compressor.flush(zlib.Z_FINISH))


def _single_bytes(body: Iterator[Step]) -> Iterator[Step]:
    for step in body:
        if isinstance(step, Write):
            for position in range(len(step.data)):
                last = position == len(step.data) - 1
                yield Write(step.data[position : position + 1], step.deltas if last else 0)
        else:
            yield step
