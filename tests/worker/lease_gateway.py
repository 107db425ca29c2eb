"""A gateway's lease service over real HTTP, with the gateway's own leases behind it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.domain.lease import Lease, LeasePolicy

POLICY = LeasePolicy(ttl_s=2.4, renew_s=0.8, margin_s=0.4)


class LeaseGateway:
    """Leases by attempt. A test may silence it: then it takes questions and answers none."""

    def __init__(self) -> None:
        self.url = ""
        self.leases: dict[str, Lease] = {}
        self.granted = 0
        """Renewals."""
        self.stopped: dict[str, float] = {}
        self.stop_heard = asyncio.Event()
        self.silent = False
        self.leaving = asyncio.Event()

    def grant(
        self, attempt_id: str, operation_id: str = "op_1", token: int = 1, ttl_s: float = POLICY.ttl_s
    ) -> dict[str, str]:
        """Grant an attempt; the headers that carry the offer."""
        self.leases[attempt_id] = Lease(
            OperationId(operation_id), AttemptId(attempt_id), FencingToken(token), POLICY
        )
        return {
            "x-envoy-ext-attempt": attempt_id,
            "x-envoy-ext-operation": operation_id,
            "x-envoy-ext-lease": str(token),
            "x-envoy-ext-lease-ttl": str(ttl_s),
        }

    def revoke(self, attempt_id: str) -> None:
        """Renew it no more."""
        self.leases[attempt_id].revoke(time.monotonic())

    async def renew(self, request: web.Request) -> web.Response:
        asked = await self._read(request)
        lease = self.leases.get(asked["attempt_id"])
        if lease is None:
            return web.json_response({}, status=404)
        granted = lease.renew(FencingToken(asked["token"]), time.monotonic())
        self.granted += granted
        return web.json_response({"granted": granted})

    async def note_stopped(self, request: web.Request) -> web.Response:
        said = await self._read(request)
        lease = self.leases.get(said["attempt_id"])
        if lease is None or not lease.note_stopped(FencingToken(said["token"]), time.monotonic()):
            return web.json_response({}, status=404)
        self.stopped[said["attempt_id"]] = time.monotonic()
        self.stop_heard.set()
        return web.json_response({})

    async def _read(self, request: web.Request) -> dict[str, Any]:
        if self.silent:
            await self.leaving.wait()
        asked: dict[str, Any] = await request.json()
        return asked


@asynccontextmanager
async def run_lease_gateway() -> AsyncIterator[LeaseGateway]:
    gateway = LeaseGateway()
    app = web.Application()
    app.router.add_post("/v1/leases/renew", gateway.renew)
    app.router.add_post("/v1/leases/stopped", gateway.note_stopped)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield gateway
    finally:
        gateway.leaving.set()
        await runner.cleanup()
