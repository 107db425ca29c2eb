"""The clients: a process that sends the requests of a plan when they are due, and writes down what came.

`python -m bench.crowd.client FILE`, whose JSON has `gateway`, `engine`, `out` and `setting`. All times are
CLOCK_MONOTONIC, as in the engines' logs.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp

from bench.crowd.plan import KINDS, Asked, Setting, draw_plan

HANG_S: Final = 30.0
CALM_CLIENTS: Final = 4
BEFORE: Final = "before-"
"""How the names of requests begin that come before the crowd."""
End = Literal["whole", "refused", "broken", "cut", "left", "hung"]
"""`broken`: part of an answer, then an error. `cut`: no orderly end."""


@dataclass(frozen=True, slots=True)
class Told:
    """One request by its client's eyes."""

    name: str
    kind: str
    caller: str
    direct: bool
    deadline_s: float | None
    sent_at: float
    late_s: float
    """Behind its plan: the generator's own fault."""
    total_s: float
    end: End
    status: int = 0
    code: str = ""
    retry_after: int | None = None
    first_byte_s: float | None = None
    large: bool = False
    operation: bool = False
    """The answer names one: an exchange was begun for it, so it has waited in line."""

    @property
    def ended_at(self) -> float:
        """When the client had its last byte, or left."""
        return self.sent_at + self.total_s


class _Leaves(Exception):
    """The client has had enough."""


class Clients:
    """All clients of one run."""

    def __init__(self, gateway: str, engine: str, http: aiohttp.ClientSession) -> None:
        self._gateway = gateway
        self._engine = engine
        self._http = http
        self.told: list[Told] = []

    async def calm(self, setting: Setting) -> None:
        """Requests that nothing is in the way of, through the gateway and beside it in turn."""
        async with asyncio.TaskGroup() as clients:
            for client in range(CALM_CLIENTS):
                clients.create_task(self._calm_one(client, setting.calm))

    async def _calm_one(self, client: int, requests: int) -> None:
        for number in range(requests):
            for direct in (False, True):
                name = f"{BEFORE}{client}-{number}-{'direct' if direct else 'gateway'}"
                kind = list(KINDS.values())[(client + number) % len(KINDS)]
                tokens = kind.tokens[number % 2]
                asked = Asked(name, 0.0, kind.name, "calm", number % 2 == 0, tokens, direct=direct)
                await self._ask(asked, time.monotonic())

    async def crowd(self, plan: list[Asked]) -> None:
        """Send each request when it is due."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as clients:
            for asked in plan:
                due = started + asked.at_s
                wait_s = due - time.monotonic()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                clients.create_task(self._ask(asked, due))

    async def _ask(self, asked: Asked, due: float) -> None:
        facts: dict[str, Any] = {}
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(HANG_S):
                facts |= await self._post(asked, sent_at)
        except _Leaves:
            facts["end"] = "left"
        except TimeoutError:
            facts["end"] = "hung"
        except aiohttp.ClientError:
            facts["end"] = "cut"
        total_s = time.monotonic() - sent_at
        self.told.append(
            Told(
                name=asked.name,
                kind=asked.kind,
                caller=asked.caller,
                direct=asked.direct,
                deadline_s=asked.deadline_s,
                large=asked.prompt_bytes > 0,
                sent_at=sent_at,
                late_s=sent_at - due,
                total_s=total_s,
                **facts,
            )
        )

    async def _post(self, asked: Asked, sent_at: float) -> dict[str, Any]:
        body = {
            "model": "sim",
            "stream": asked.stream,
            "max_tokens": asked.tokens,
            "messages": [{"role": "user", "content": asked.name.ljust(asked.prompt_bytes, "x")}],
        }
        headers = {
            "x-request-id": asked.name,
            "x-request-class": asked.kind,
            "authorization": f"Bearer {asked.caller}",
        }
        if asked.deadline_s is not None:
            headers["x-request-deadline"] = str(asked.deadline_s)
        url = self._engine if asked.direct else self._gateway
        facts: dict[str, Any] = {}
        received = bytearray()
        with _leaving(asked.leaves_after_s) as leaving:
            async with (
                leaving,
                self._http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer,
            ):
                facts |= {
                    "status": answer.status,
                    "operation": "x-operation-id" in answer.headers,
                    "retry_after": _read_int(answer.headers.get("retry-after")),
                }
                async for chunk in answer.content.iter_any():
                    facts.setdefault("first_byte_s", time.monotonic() - sent_at)
                    received += chunk
                    if answer.status == 200 and has_enough(asked, received):
                        raise _Leaves
        return facts | read_answer(facts["status"], bytes(received), asked.stream)


@contextlib.contextmanager
def _leaving(after_s: float | None):  # type: ignore[no-untyped-def]
    limit = asyncio.timeout(after_s)
    try:
        yield limit
    except TimeoutError:
        if limit.expired():
            raise _Leaves from None
        raise


def has_enough(asked: Asked, received: bytearray) -> bool:
    """Whether the client leaves with so much of its stream; the first chunk of an answer is its role."""
    deltas = received.count(b'"content"') - 1
    return asked.leaves_after_deltas is not None and deltas >= asked.leaves_after_deltas


def read_answer(status: int, body: bytes, stream: bool) -> dict[str, Any]:
    """How an answer that came to an orderly end has ended, and with which code."""
    if status != 200:
        return {"end": "refused", "code": _read_code(body)}
    if not stream:
        return {"end": "whole" if b'"finish_reason"' in body else "broken"}
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    if events and events[-1] == b"[DONE]" and b'"error"' not in body:
        return {"end": "whole"}
    return {"end": "broken", "code": _read_code(events[-1]) if events else ""}


def _read_code(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "unreadable"


def _read_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


async def generate(gateway: str, engine: str, setting: Setting, say: Callable[[str], None]) -> list[Told]:
    """The calm before, then the crowd; says when the crowd begins and when it has stopped coming."""
    plan = draw_plan(setting)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        clients = Clients(gateway, engine, http)
        await clients.calm(setting)
        say("crowd")
        await clients.crowd(plan)
    return clients.told


def read_told(path: Path) -> list[Told]:
    """What the process has written."""
    return [Told(**json.loads(line)) for line in path.read_text().splitlines()]


def main(given: dict[str, Any]) -> None:
    """One run."""
    setting = Setting(**given["setting"])
    told = asyncio.run(
        generate(given["gateway"], given["engine"], setting, lambda word: print(word, flush=True))
    )
    Path(given["out"]).write_text("".join(json.dumps(asdict(one)) + "\n" for one in told))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
