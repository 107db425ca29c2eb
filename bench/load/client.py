"""The load generator: a process that keeps a number of requests in flight for some time.

`python -m bench.load.client JSON` with the fields of `Load`; what each client saw is written to
`out`, one JSON line for each request, when all have ended.
"""

import asyncio
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import aiohttp

from bench.load.seen import BodyEnd, Seen

_CONNECTION_LOST: Final = (
    aiohttp.ClientPayloadError,
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientResponseError,
)


Kind = Literal["plain", "keyed", "chat"]
"""`keyed`: with an idempotency key, which its client repeats for as long as it is told when to come back.
`chat`: of that traffic class."""
MAX_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What to send."""

    url: str
    streams: int
    """Requests in flight, all the time: who gets an answer sends the next request."""
    seconds: float
    """For how long requests are begun; the last ones come to their end after that."""
    out: str
    name: str
    """Prefix of the request ids."""
    seed: int
    model: str = "sim"
    body_bytes: int = 0
    """Size of each request's body; 0 is a short prompt."""
    max_tokens: int = 64
    hang_s: float = 60.0
    """A request that takes longer hangs."""
    kinds: Sequence[Kind] = ("plain",)
    """Of the requests, one after the other, and again."""


class Prompts:
    """Bodies of one size, no two alike; the text is random so that no encoder on the way shrinks it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        rng = random.Random(load.seed)
        empty = len(self._build("", ""))
        self._filler = rng.randbytes(max(0, (load.body_bytes - empty) // 2)).hex()

    def take(self, request_id: str) -> bytes:
        """The body of one request."""
        return self._build(request_id, self._filler[len(request_id) :])

    def _build(self, request_id: str, filler: str) -> bytes:
        body = {
            "model": self._load.model,
            "stream": True,
            "max_tokens": self._load.max_tokens,
            "messages": [{"role": "user", "content": request_id + filler}],
        }
        return json.dumps(body, separators=(",", ":")).encode()


async def generate(load: Load) -> list[Seen]:
    """Run the load; what each request's client saw."""
    found: list[Seen] = []
    prompts = Prompts(load)
    numbers = iter(range(1 << 62))
    stop_at = time.monotonic() + load.seconds
    connector = aiohttp.TCPConnector(limit=0)
    http = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 16)
    async with http, asyncio.TaskGroup() as clients:
        for _ in range(load.streams):
            clients.create_task(_ask_until(stop_at, http, load, prompts, numbers, found))
    return found


async def _ask_until(
    stop_at: float,
    http: aiohttp.ClientSession,
    load: Load,
    prompts: Prompts,
    numbers: Iterator[int],
    found: list[Seen],
) -> None:
    while time.monotonic() < stop_at:
        number = next(numbers)
        name, kind = f"{load.name}-{number}", load.kinds[number % len(load.kinds)]
        body = prompts.take(name)
        if kind == "keyed":
            found += await _ask_with_key(http, load, body, name)
        else:
            headers = {"x-request-class": kind} if kind == "chat" else {}
            found.append(await _ask(http, load, body, name, headers))


async def _ask_with_key(http: aiohttp.ClientSession, load: Load, body: bytes, name: str) -> list[Seen]:
    """Each try of one key, as an SDK makes them."""
    tries: list[Seen] = []
    while len(tries) < MAX_TRIES:
        request_id = f"{name}-{len(tries)}" if tries else name
        tries.append(await _ask(http, load, body, request_id, {"idempotency-key": name}))
        wait_s = _read_retry_after_s(tries[-1])
        if wait_s is None:
            break
        await asyncio.sleep(wait_s)
    return tries


def _read_retry_after_s(seen: Seen) -> float | None:
    told = [hint.removeprefix("retry-after: ") for hint in seen.hint.split(", ") if "retry-after" in hint]
    return float(told[0]) if told else None


async def _ask(
    http: aiohttp.ClientSession, load: Load, body: bytes, request_id: str, asked: Mapping[str, str]
) -> Seen:
    facts: dict[str, object] = {
        "request_id": request_id,
        "sent_sha256": hashlib.sha256(body).hexdigest(),
        "key": asked.get("idempotency-key", ""),
    }
    received = bytearray()
    started = time.monotonic()
    try:
        async with asyncio.timeout(load.hang_s):
            headers = {"content-type": "application/json", "x-request-id": request_id, **asked}
            async with http.post(f"{load.url}/v1/chat/completions", data=body, headers=headers) as answer:
                facts |= _read_headers(answer)
                async for chunk in answer.content.iter_any():
                    facts.setdefault("first_byte_s", time.monotonic() - started)
                    received += chunk
        facts["body_end"] = BodyEnd.ORDERLY
    except TimeoutError:
        facts["body_end"] = BodyEnd.HUNG
    except _CONNECTION_LOST as error:
        facts |= {"body_end": BodyEnd.CUT, "detail": f"{type(error).__name__}: {error}"}
    facts |= {"body": received.decode("utf-8", "replace"), "total_s": time.monotonic() - started}
    return Seen(**facts)  # type: ignore[arg-type]


def _read_headers(answer: aiohttp.ClientResponse) -> dict[str, object]:
    headers = answer.headers
    hints = (f"{name}: {headers[name]}" for name in ("retry-after", "x-should-retry") if name in headers)
    return {
        "status": answer.status,
        "content_type": answer.content_type,
        "operation_id": headers.get("x-operation-id", ""),
        "attempts": int(headers.get("x-attempt-count", "0")),
        "hint": ", ".join(hints),
        "recorded": headers.get("x-operation-recorded") != "false",
    }


def write_seen(path: Path, found: list[Seen]) -> None:
    """One line for each."""
    path.write_text("".join(json.dumps(asdict(seen)) + "\n" for seen in found))


def read_seen(path: Path) -> list[Seen]:
    """What `write_seen` wrote."""
    found = []
    for line in path.read_text().splitlines():
        facts = json.loads(line)
        found.append(Seen(**facts | {"body_end": BodyEnd(facts["body_end"])}))
    return found


async def run_load(load: Load) -> list[Seen]:
    """Run the load in a process of its own.

    Raises:
        RuntimeError: the process failed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.load.client", json.dumps(asdict(load)), cwd=Path(__file__).parents[2]
    )
    try:
        status = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if status != 0:
        raise RuntimeError(f"the load generator ended with status {status}")
    return read_seen(Path(load.out))


if __name__ == "__main__":
    given = Load(**json.loads(sys.argv[1]))
    write_seen(Path(given.out), asyncio.run(generate(given)))
