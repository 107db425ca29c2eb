"""ASGI middleware for an engine: no chunk without a lease, and generation stops when its lease is lost.

An engine that is an ASGI application takes it as it takes any other: vLLM by `--middleware
envoy_ext.worker.LeaseMiddleware`. Requests without a lease (health checks, metrics, other clients)
pass untouched.

A lease that is lost looks to the engine like a client that has left, which is how every engine learns
to free a slot: `receive` says `http.disconnect`, and `send` fails. The end is acknowledged to the gateway
when the application has returned, each of its generators has come to its end, and the process that
computes has let go where that is another one (`vllm_core`), and not before.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from envoy_ext.domain.worker_lease import TokenMemory, WorkerLease
from envoy_ext.worker.channel import LeaseChannel
from envoy_ext.worker.generators import GeneratorWatch
from envoy_ext.worker.held_attempt import HeldAttempt
from envoy_ext.worker.offer import BadOffer, LeaseOffer, read_offer
from envoy_ext.worker.settings import WorkerSettings, build_channel
from envoy_ext.worker.tool_headers import serving
from envoy_ext.worker.vllm_core import NoWord, VllmCore, find_vllm_core

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PROOF_S: Final = 60.0
"""How long the end of what it computes is waited for; after that nothing is acknowledged, and the gateway
waits for the lease to run out."""
STOP_S: Final = 5.0
"""How long an application may take to end by itself, once it was told that its client has left."""
RENEW_SHARE: Final = 3.0
"""Renewals in one time to live: one that is lost, and one that is late, end no lease."""

log = logging.getLogger("envoy_ext.worker")


class LeaseLost(OSError):
    """What an application's `send` raises when its attempt may send nothing any more.

    An `OSError`, as for a connection that has gone: frameworks end a stream quietly on those.
    """


class LeaseMiddleware:
    """Wraps an ASGI application. Without settings of its own it reads them from the environment."""

    def __init__(
        self,
        app: Application,
        *,
        settings: WorkerSettings | None = None,
        channel: LeaseChannel | None = None,
        renew_s: float | None = None,
        wait_stopped: Callable[[Scope], Awaitable[None]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._wait_stopped = wait_stopped or self._wait_core_stopped
        """For an application that has its work done by another process: waits until that one has stopped."""
        self._channel = channel or build_channel(settings or WorkerSettings.from_environment())
        self._renew_s = renew_s
        """From one renewal to the next; None: a third of what a lease lasts."""
        self._now = now
        self._tokens = TokenMemory()
        self._running: dict[str, HeldAttempt] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._core: VllmCore | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or hand on what is none."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            offer = read_offer(scope["headers"])
        except BadOffer as mistake:
            await _refuse(send, 400, "invalid_lease", str(mistake))
            return
        if offer is None:
            await self._app(scope, receive, send)
        elif not self._tokens.admit(offer.operation_id, offer.token):
            await _refuse(send, 409, "attempt_superseded", "a newer attempt of this operation was here")
        else:
            await self._run(offer, scope, receive, send)

    async def close(self) -> None:
        """Say what can be said within a while, and let go of the connections to the gateways."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=STOP_S)
        for task in self._telling:
            task.cancel()
        await self._channel.close()

    async def _run(self, offer: LeaseOffer, scope: Scope, receive: Receive, send: Send) -> None:
        older = self._running.get(offer.operation_id)
        if older is not None:
            older.revoke("superseded")
        lease = WorkerLease(
            offer.operation_id,
            offer.attempt_id,
            offer.token,
            offer.ttl_s,
            offer.ttl_s / RENEW_SHARE if self._renew_s is None else self._renew_s,
            self._now(),
        )
        attempt = HeldAttempt(lease, self._channel, self._now)
        self._running[offer.operation_id] = attempt
        keeping = asyncio.get_running_loop().create_task(attempt.keep())
        answer = _Answer(attempt, receive, send)
        try:
            await self._answer(answer, scope)
        finally:
            if self._running.get(offer.operation_id) is attempt:
                del self._running[offer.operation_id]
            keeping.cancel()
            answer.close()
            lost_because = lease.lost_because
            # Not waited for: the connection may take its next request, or be cut, while an engine lets go.
            task = asyncio.get_running_loop().create_task(self._acknowledge(attempt, answer, scope))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)
        if lost_because is not None and not answer.started:
            await _refuse(send, 503, "lease_lost", f"the lease of this attempt was lost: {lost_because}")

    async def _acknowledge(self, attempt: HeldAttempt, answer: "_Answer", scope: Scope) -> None:
        """Say that this attempt has stopped, once it has."""
        lease = attempt.lease
        because = lease.lost_because or ("finished" if answer.complete else "client_gone")
        attempt.revoke(because)
        told = {"attempt_id": lease.attempt_id, "because": because}
        try:
            async with asyncio.timeout(PROOF_S):
                await answer.generators.close()
                await self._wait_stopped(scope)
        except (TimeoutError, NoWord) as trouble:
            log.warning("attempt_not_stopped", extra={**told, "detail": str(trouble)})
            return
        attempt.note_stopped()
        if not answer.complete:
            log.info("attempt_stopped", extra=told)
        await self._channel.acknowledge(lease)

    async def _wait_core_stopped(self, scope: Scope) -> None:
        if self._core is None:  # looked for here, as a framework may name its application in the scope late
            self._core = find_vllm_core(scope)
        if self._core is not None:
            await self._core.wait_stopped()

    async def _answer(self, answer: "_Answer", scope: Scope) -> None:
        """Run the application; once the lease is lost it has a while to end by itself."""
        running = asyncio.ensure_future(self._run_watched(answer, scope))
        lost = asyncio.ensure_future(answer.attempt.lost.wait())
        try:
            await asyncio.wait((running, lost), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await asyncio.wait((running,), timeout=STOP_S)
        finally:
            lost.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait((running,))
        with suppress(LeaseLost, asyncio.CancelledError):
            running.result()

    async def _run_watched(self, answer: "_Answer", scope: Scope) -> None:
        answer.generators.enter()
        with serving(scope["headers"]):
            await self._app(scope, answer.receive, answer.send)


class _Answer:
    """The two ends of one request, as its application sees them."""

    def __init__(self, attempt: HeldAttempt, receive: Receive, send: Send) -> None:
        self.attempt = attempt
        self.started = False
        self.complete = False
        self._left = False
        self._coming: asyncio.Future[Message] | None = None
        """Kept when its caller waits no longer: who only looks whether a client has left never waits."""
        self.generators = GeneratorWatch()
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """The next message of the client, or its leaving once the lease is lost."""
        if self.attempt.lost.is_set():
            return {"type": "http.disconnect"}
        coming = self._coming
        if coming is None:
            coming = self._coming = asyncio.ensure_future(self._receive())
        if not coming.done():
            lost = asyncio.ensure_future(self.attempt.lost.wait())
            try:
                await asyncio.wait((coming, lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                lost.cancel()
        if not coming.done():
            return {"type": "http.disconnect"}
        if self._coming is coming:
            self._coming = None
        message = coming.result()
        self._left = self._left or message["type"] == "http.disconnect"
        return message

    def close(self) -> None:
        """Its application has returned."""
        if self._coming is not None:
            self._coming.cancel()

    async def send(self, message: Message) -> None:
        """One message towards the client, if the lease allows it at this moment."""
        if not await self.attempt.wait_may_publish():
            raise LeaseLost("the lease of this attempt is lost")
        await self._send(message)
        self.started = True
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = not self._left  # what frameworks send to a client that has left is no answer


async def _refuse(send: Send, status: int, code: str, text: str) -> None:
    body = json.dumps({"error": {"code": code, "type": "lease_error", "message": text}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
