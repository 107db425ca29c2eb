"""Performs the steps of one answer on one connection."""

import asyncio
import os
import signal
import socket
import struct
from asyncio import sleep
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, assert_never

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from envoy_ext.sim.event_log import RequestLog
from envoy_ext.sim.metrics import SimMetrics
from envoy_ext.sim.plan import How
from envoy_ext.sim.script import CallTools, Enter, Halt, Headers, Pause, Prefill, Step, Token, Write
from envoy_ext.sim.state import EngineState, RequestRecord, Slot
from envoy_ext.sim.tool_calls import Turns, call_tools

# With SO_LINGER on and a time of 0, close() sends RST and drops what is not sent yet (socket(7)).
RID_HEADER: Final = "x-override-rid"
"""By which SGLang is told a request's name (SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES)."""
_LINGER_RESET = struct.pack("ii", 1, 0)


def kill_this_process() -> None:
    """End the process as an out-of-memory killer would: no handler runs, the kernel closes the sockets."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the parts of one answer take."""

    prefill_s: float
    token_s: float
    prompt_tokens: int
    notice_s: float = 0.0
    token_s_a_neighbour: float = 0.0

    def compute_token_s(self, running: int) -> float:
        """How long a token takes while so many requests are computed."""
        return self.token_s + self.token_s_a_neighbour * max(0, running - 1)


@dataclass(slots=True)
class Player:
    """Plays one answer; the client's leaving arrives as the task's cancellation, at any step."""

    request: web.Request
    record: RequestRecord
    log: RequestLog
    state: EngineState
    metrics: SimMetrics
    pace: Pace
    reply_headers: dict[str, str]
    end: Callable[[], None]
    """Told once, when the answer was played to its end or to its cut."""
    die: Callable[[], None]
    arrived_s: float
    """When the request came, on the event loop's clock."""
    _tokens: int = field(init=False, default=0)
    tools: Turns = ()
    """What it calls before its first delta."""
    attempt: int = 1
    _slot: Slot | None = field(init=False, default=None)
    _response: web.StreamResponse | None = field(init=False, default=None)
    _writer: AbstractStreamWriter | None = field(init=False, default=None)

    async def play(self, steps: Iterable[Step]) -> web.StreamResponse:
        """Perform every step; the response returned has been sent, as far as it was meant to be."""
        async with AsyncExitStack() as stack:
            for step in steps:
                await self._perform(step, stack)
            assert self._response is not None, "a script without headers and without a halt"
            await self._response.write_eof()
            self.end()
            return self._response

    async def _perform(self, step: Step, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        match step:
            case Enter():
                self._slot = await stack.enter_async_context(
                    self.state.slot(
                        self.pace.prompt_tokens, self.request.headers.get(RID_HEADER), self.pace.notice_s
                    )
                )
            case Prefill():
                await sleep(self.pace.prefill_s)
                self.metrics.prompt_tokens.inc(self.pace.prompt_tokens)
                self.metrics.iteration_tokens.observe(self.pace.prompt_tokens)
            case CallTools(limit_s):
                await self._call_tools(limit_s)
            case Pause(seconds):
                await sleep(seconds)
            case Token(first):
                await sleep(0 if first else self.pace.compute_token_s(self.state.running))
                if first:
                    self.metrics.first_token_s.observe(loop.time() - self.arrived_s)
                self._count_token()
            case Headers():
                await self._send_headers(step)
            case Write():
                await self._write(step)
            case Halt(how):
                await self._halt(how)
                # The closed connection cancels this task; a hang lasts until somebody closes it.
                await loop.create_future()
            case _:
                assert_never(step)

    async def _call_tools(self, limit_s: float | None) -> None:
        if not self.tools:
            return
        calling = asyncio.ensure_future(call_tools(self.tools, self.attempt, self.request.headers))
        try:
            await asyncio.wait((calling,), timeout=limit_s)
            if calling.done():
                self.record.tool_results += calling.result()
                for result in calling.result():
                    self.log.tool(result)
                self.state.changed()
        finally:
            calling.cancel()

    def _count_token(self) -> None:
        self.log.token(self._tokens)
        self._tokens += 1
        self.metrics.generation_tokens.inc()
        self.metrics.iteration_tokens.observe(1)
        if self._slot is not None:
            self._slot.hold(1)

    async def _send_headers(self, step: Headers) -> None:
        response = web.StreamResponse(status=step.status, headers=self.reply_headers | dict(step.headers))
        if self.request.transport is not None:
            # A write returns when the kernel has all of it. So what was written before a FIN or a
            # SIGKILL arrives (RST drops what the client's window had no room for), and a client
            # that reads slowly slows its own generation down.
            self.request.transport.set_write_buffer_limits(high=0)
        self._response = response
        self._writer = await response.prepare(self.request)
        self.record.status = step.status

    async def _write(self, step: Write) -> None:
        assert self._writer is not None, "a body before its headers"
        self.log.chunk(step.data)
        await self._writer.write(step.data)
        await self._writer.drain()
        if step.deltas:
            self.record.tokens_sent += step.deltas
            self.state.changed()

    async def _halt(self, how: How) -> None:
        wait = self.state.wait_before_loss
        if wait is not None and how is not How.HANG and self.record.tokens_sent:
            await wait(self.record)
        transport = self.request.transport
        if transport is None:
            raise ConnectionResetError("the client left before the fault")
        match how:
            case How.HANG:
                return
            case How.FIN:
                self.end()
                transport.close()
            case How.RST:
                self.end()
                connection = transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                transport.abort()
            case How.KILL:
                self.log.end("killed")
                self.die()
            case _:
                assert_never(how)
