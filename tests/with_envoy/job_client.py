"""A client of jobs, and what it may check of whatever happened: each whole, each once."""

import asyncio
from typing import Any

from tests.with_envoy.asking import CHAT, Reply, ask, build_body
from tests.with_envoy.gateway import WAIT_S, Gateway

UNFINISHED = ("queued", "running")


async def submit(
    gateway: Gateway, path: str = CHAT, *, wants: str = "respond-async", **options: Any
) -> Reply:
    """A request whose client would rather come back."""
    headers = {"prefer": wants, **options.pop("headers", {})}
    options.setdefault("body", build_body(path, stream=False))
    return await ask(gateway, path, headers=headers, **options)


async def look(gateway: Gateway, reply: Reply, **headers: str) -> Reply:
    """What is said of a job."""
    return await ask(gateway, reply.headers["location"], method="GET", headers=headers)


async def fetch(gateway: Gateway, reply: Reply, **headers: str) -> Reply:
    """Its result."""
    return await ask(gateway, reply.headers["location"] + "/result", method="GET", headers=headers)


async def cancel(gateway: Gateway, reply: Reply, **headers: str) -> Reply:
    return await ask(gateway, reply.headers["location"] + "/cancel", method="POST", body={}, headers=headers)


async def wait_state(gateway: Gateway, reply: Reply, *states: str, **headers: str) -> dict[str, Any]:
    """What is said of a job once it is in one of these states."""
    async with asyncio.timeout(WAIT_S):
        while True:
            shown: dict[str, Any] = (await look(gateway, reply, **headers)).json
            if shown["job"]["state"] in states:
                return shown
            assert shown["job"]["state"] in UNFINISHED, shown["job"]
            await asyncio.sleep(0.02)


async def wait_headers(gateway: Gateway, reply: Reply) -> None:
    """Until an engine is in the middle of a job's answer."""
    async with asyncio.timeout(WAIT_S):
        while not any(one.status == 200 for one in gateway.find_requests(reply.request_id)):
            await asyncio.sleep(0.01)
