"""A chat engine in a process of its own that logs what it does with every request: one JSON object a line.

`time` is CLOCK_MONOTONIC, which all processes of a machine share, so that logs of several engines and
the times of a test can be compared. `until` is until when the newest lease that its worker was granted
lasts, counted from before the question; null where it has no worker. A chunk is logged before it is
handed to the server, outside of all middleware: what is logged is what was sent.

    start    a request has come whole
    chunk    a part of an answer is sent
    end      nothing of it is computed any more

Its metrics are the time at which its process started. As a program it is the engine; `LoggedEngine`
starts one, on the same port when it is started again, and reads its log.
"""

import argparse
import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from envoy_ext.domain.worker_lease import Renewal, WorkerLease
from envoy_ext.worker import LeaseMiddleware
from envoy_ext.worker.channel import Answer, LeaseChannel
from envoy_ext.worker.settings import WorkerSettings, build_channel

RENEW_S = 0.5


@dataclass
class LoggedEngine:
    """The process, as a test sees it."""

    role: str
    log: Path
    host: str = "127.0.0.1"
    within: tuple[str, ...] = ()
    port: int = 0
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    async def start(self) -> None:
        self.log.touch()
        self._process = await asyncio.create_subprocess_exec(
            *(*self.within, sys.executable, "-m", "tests.support.logged_engine"),
            *(self.role, self.host, str(self.port), str(self.log)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(await self._process.stdout.readline())

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def read(self, request_id: str, what: str) -> list[dict[str, Any]]:
        """What it has logged of a request."""
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [one for one in entries if (one["request"], one["what"]) == (request_id, what)]

    async def wait(self, request_id: str, what: str, limit_s: float = 30.0) -> dict[str, Any]:
        """The first entry of a kind, once it is there."""
        async with asyncio.timeout(limit_s):
            while not (found := self.read(request_id, what)):
                await asyncio.sleep(0.02)
        return found[0]

    async def go(self, address: str, request_id: str) -> None:
        """Let a prefill end that waits for this word."""
        await _post(f"http://{address}:{self.port}/go", request=request_id)

    async def renew_at(self, address: str, gateway: str) -> None:
        """Requests that come to this address of the engine are under leases of that gateway."""
        await _post(f"http://{address}:{self.port}/lease", address=address, gateway=gateway)


async def _post(url: str, **body: str) -> None:
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.status == 204


# --- inside the process -----------------------------------------------------------------------------


class _Channel:
    """Keeps when each attempt's last renewal was asked for that was granted."""

    def __init__(self, gateway: str, granted: dict[str, float]) -> None:
        self._channel: LeaseChannel = build_channel(WorkerSettings((gateway,)), call_s=RENEW_S)
        self._granted = granted

    async def renew(self, renewal: Renewal) -> Answer:
        asked_at = time.monotonic()
        answer = await self._channel.renew(renewal)
        if answer is Answer.GRANTED:
            self._granted[renewal.attempt_id] = max(asked_at, self._granted.get(renewal.attempt_id, 0.0))
        return answer

    async def acknowledge(self, lease: WorkerLease) -> bool:
        return await self._channel.acknowledge(lease)

    async def close(self) -> None:
        await self._channel.close()


class _Engine:
    """An ASGI application. Each address that it is reached at may have a worker of its own."""

    def __init__(self, role: str, write: Callable[[dict[str, Any]], None]) -> None:
        self._role = role
        self._started_at = time.time()
        self._write = write
        self._told: dict[str, asyncio.Event] = {}
        self._granted: dict[str, float] = {}
        self._workers: dict[str, LeaseMiddleware] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] in ("/go", "/lease"):
            await self._take_order(scope["path"], receive, send)
            return
        if scope["path"] == "/metrics":
            await _send_whole(send, 200, b"process_start_time_seconds %.3f\n" % self._started_at)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status = 0

        async def send_logged(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            if status == 200 and message.get("body"):
                self._log(headers, "chunk")
            await send(message)

        application: Any = self._workers.get(scope["server"][0], self._answer)
        await application(scope, receive, send_logged)

    def _log(self, headers: dict[str, str], what: str) -> None:
        asked_at = self._granted.get(headers["x-envoy-ext-attempt"])
        until = None if asked_at is None else asked_at + float(headers["x-envoy-ext-lease-ttl"])
        request = headers["x-request-id"]
        self._write({"time": time.monotonic(), "request": request, "what": what, "until": until})

    async def _take_order(self, path: str, receive: Any, send: Any) -> None:
        order = json.loads(await _read_body(receive))
        if path == "/go":
            self._told.setdefault(order["request"], asyncio.Event()).set()
        else:
            channel = _Channel(order["gateway"], self._granted)
            self._workers[order["address"]] = LeaseMiddleware(self._answer, channel=channel, renew_s=RENEW_S)
        await _send_whole(send, 204, b"")

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        request, plan = headers["x-request-id"], json.loads(headers[f"x-{self._role}"])
        await _read_body(receive)
        self._log(headers, "start")
        computing = asyncio.ensure_future(self._compute(request, plan, send))
        leaving = asyncio.ensure_future(_wait_left(receive))
        try:
            await asyncio.wait((computing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (computing, leaving):
                task.cancel()
            await asyncio.wait((computing, leaving))
            self._log(headers, "end")
        with suppress(asyncio.CancelledError, OSError):
            computing.result()

    async def _compute(self, request: str, plan: dict[str, Any], send: Any) -> None:
        """`headers`: before the prefill, or with the first token. `prefill_s`: none waits for a word."""
        if plan["headers"] == "early":
            await _send_head(send)
        if plan["prefill_s"] is None:
            await self._told.setdefault(request, asyncio.Event()).wait()
        else:
            await asyncio.sleep(plan["prefill_s"])
        if plan["headers"] != "early":
            await _send_head(send)
        for number in range(plan["tokens"]):
            await _send_event(send, {"content": f"{self._role}{number} "})
            await asyncio.sleep(plan["token_s"])
        await _send_event(send, {}, "stop")
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _send_whole(send: Any, status: int, body: bytes) -> None:
    kind = [(b"content-type", b"text/plain; version=0.0.4")]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": body})


async def _send_head(send: Any) -> None:
    kind = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": kind})


async def _send_event(send: Any, delta: dict[str, str], finish: str | None = None) -> None:
    event = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    body = b"data: " + json.dumps(event).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _wait_left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("role", "host", "port", "log"):
        parser.add_argument(name)
    options = parser.parse_args()
    listener = socket.create_server((options.host, int(options.port)))
    with Path(options.log).open("a", buffering=1) as log:
        engine = _Engine(options.role, lambda entry: print(json.dumps(entry), file=log))
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(engine, log_config=None, lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    main()
