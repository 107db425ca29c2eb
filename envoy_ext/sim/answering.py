"""One generation request, from its arrival to the record of its end."""

import asyncio
import hashlib
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from envoy_ext.domain.names import OWN_PREFIX
from envoy_ext.sim.answer import Answer, Finish, seeded_text, token_text
from envoy_ext.sim.control import FaultControl
from envoy_ext.sim.event_log import EventLog, RequestLog
from envoy_ext.sim.faults import (
    ATTEMPT_COUNT_HEADER,
    FAULT_HEADER,
    FaultError,
    Rule,
    choose_rule,
    parse_faults,
)
from envoy_ext.sim.metrics import SimMetrics
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.plan import Close, How, Plan
from envoy_ext.sim.player import Pace, Player
from envoy_ext.sim.script import build_json, build_stream
from envoy_ext.sim.shape import Shape, StreamShape
from envoy_ext.sim.shapes import BadCall, Call, read_call
from envoy_ext.sim.state import EngineState, RequestRecord
from envoy_ext.sim.tool_calls import TOOL_HEADER, parse_tool_calls

REPLICA_HEADER: Final = "x-sim-replica"


@dataclass(slots=True)
class Answering:
    """Answers the generation requests of one engine and remembers how each of them ended."""

    options: SimOptions
    state: EngineState
    metrics: SimMetrics
    faults: FaultControl
    log: EventLog
    die: Callable[[], None] | None
    """What a `:kill` fault calls; without it such a fault is refused."""
    _tasks: dict[asyncio.Task[Any], RequestRecord] = field(init=False, default_factory=dict)
    _stopping: bool = field(init=False, default=False)

    def cut(self, request_id: str) -> None:
        """Cut the answers to one request that are being sent, as a crash would."""
        for task, record in self._tasks.items():
            if record.request_id == request_id:
                task.cancel()

    def cut_all(self) -> None:
        """Cut every answer that is being sent; the engine stops."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    async def answer(self, request: web.Request, shape: type[Shape]) -> web.StreamResponse:
        """Answer one request in the shape of its API, or spoil the answer as it asks for."""
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        record = self._tasks[task] = self._open_record(request)
        try:
            return await self._play(request, shape, record)
        except (BadCall, FaultError) as error:
            self._close(record, "refused")
            bad = error if isinstance(error, BadCall) else BadCall(400, str(error), "BadRequestError")
            record.status = bad.status
            return web.json_response(bad.body, status=bad.status, headers={REPLICA_HEADER: self.options.name})
        except (asyncio.CancelledError, ConnectionError) as error:
            # aiohttp cancels the handler when the connection is lost; a write that comes first
            # raises instead. Our own cuts have closed the record before.
            if record.ended is None:
                self._close(record, "engine_stopped" if self._stopping else "client_disconnected")
                self.metrics.count_finished("abort")
            if isinstance(error, ConnectionError):
                return web.Response()
            raise
        finally:
            # Only for what nobody foresaw (aiohttp answers 500 and logs it): no record stays open.
            self._close(record, "internal_error")
            del self._tasks[task]

    async def _play(
        self, request: web.Request, shape: type[Shape], record: RequestRecord
    ) -> web.StreamResponse:
        body = await request.read()
        record.body_bytes = len(body)
        record.body_sha256 = hashlib.sha256(body).hexdigest()
        call = read_call(shape, _decoded(request, body), self.options)
        record.stream, record.model = call.stream, call.model
        record.limit, record.items = call.limit, call.items
        rule = self._choose_rule(request, call)
        plan = rule.plan if rule is not None else Plan()
        record.fault = rule.text if rule is not None else None
        answer = self._compute_answer(call, body)
        record.generation = answer.generation
        log = RequestLog(self.log, record)
        log.start()
        player = Player(
            request=request,
            record=record,
            log=log,
            state=self.state,
            metrics=self.metrics,
            pace=self._compute_pace(call, plan),
            reply_headers={REPLICA_HEADER: self.options.name},
            end=lambda: self._end(record, plan, answer),
            die=self.die or _never,
            arrived_s=asyncio.get_running_loop().time(),
            tools=parse_tool_calls(request.headers.get(TOOL_HEADER, call.tools)),
            attempt=_read_attempt(request),
        )
        gzip = "gzip" in request.headers.get("accept-encoding", "").lower()
        if call.stream and issubclass(shape, StreamShape):
            return await player.play(build_stream(shape, answer, plan, accepts_gzip=gzip))
        return await player.play(build_json(shape, answer, plan, accepts_gzip=gzip))

    def _open_record(self, request: web.Request) -> RequestRecord:
        headers = request.headers
        own = {key.lower(): value for key, value in headers.items() if key.lower().startswith(OWN_PREFIX)}
        record = self.state.open(request.path, headers.get("x-request-id"), time.time(), own)
        record.attempt_count = headers.get(ATTEMPT_COUNT_HEADER)
        record.idempotency_key = headers.get("idempotency-key")
        record.accept_encoding = headers.get("accept-encoding")
        return record

    def _choose_rule(self, request: web.Request, call: Call) -> Rule | None:
        """The request's own fault if it names one for this attempt, else an armed one."""
        attempt = _read_attempt(request)
        rules = parse_faults(",".join(request.headers.getall(FAULT_HEADER, [])))
        rule = choose_rule(rules, self.options.name, attempt)
        if rule is not None and not rule.fits(call.stream):
            kind = "a stream" if call.stream else "a JSON answer"
            raise FaultError(f"fault {rule.text!r} cannot be shown by {kind}")
        if rule is None:
            rule = self.faults.take(self.options.name, attempt, stream=call.stream)
        if rule is not None and self.die is None and rule.plan.stop and rule.plan.stop.how is How.KILL:
            raise FaultError(f"fault {rule.text!r}: this engine shares its process with others")
        return rule

    def _compute_answer(self, call: Call, body: bytes) -> Answer:
        options = self.options
        count = options.tokens if call.limit is None else min(options.tokens, call.limit)
        capped = count < options.tokens
        if not issubclass(call.shape, StreamShape):
            count = 0  # embeddings are prefill and nothing more
        generation, fingerprint = self.state.take_generation(), hashlib.sha256(body).digest()
        return Answer(
            replica=options.name,
            generation=generation,
            created=int(time.time()),
            model=call.model,
            tokens=tuple(
                seeded_text(options.seed, fingerprint, index)
                if options.seed
                else token_text(options.name, generation, index)
                for index in range(count)
            ),
            finish=Finish.LENGTH if capped else Finish.STOP,
            prompt_tokens=call.prompt_tokens,
            include_usage=call.include_usage,
            continuous_usage=call.continuous_usage,
            base64=call.base64,
            fingerprint=fingerprint,
            revision=options.revision,
        )

    def _compute_pace(self, call: Call, plan: Plan) -> Pace:
        options = self.options
        prefill_s = options.prefill_s + options.prefill_s_per_1k_tokens * call.prompt_tokens / 1000
        return Pace(
            prefill_s,
            options.token_s * plan.slow,
            call.prompt_tokens,
            options.notice_s,
            options.token_s_a_neighbour * plan.slow,
        )

    def _end(self, record: RequestRecord, plan: Plan, answer: Answer) -> None:
        self._close(record, plan.broken or "done")
        spoiled = "abort" if plan.close is Close.ABORT else "error"
        self.metrics.count_finished(spoiled if plan.broken else answer.finish)
        self.metrics.request_s.observe(time.time() - record.started_at)

    def _close(self, record: RequestRecord, ended: str) -> None:
        if record.ended is None:
            self.log.write(record, "end", ended=ended)
        self.state.close(record, ended, time.time())


def _decoded(request: web.Request, body: bytes) -> bytes:
    if request.headers.get("content-encoding", "").lower() != "gzip":
        return body
    try:
        return zlib.decompress(body, wbits=31)
    except zlib.error:
        raise BadCall(400, "the body is not gzip", "BadRequestError") from None


def _read_attempt(request: web.Request) -> int:
    text = request.headers.get(ATTEMPT_COUNT_HEADER, "1")
    return int(text) if text.isascii() and text.isdigit() else 1


def _never() -> None:
    raise AssertionError("a kill fault was let through")
