"""Many replicas that only tell their metrics: real pages with moving numbers, over real HTTP.

    python -m bench.scrape.replicas     reads a JSON list of engine names, one for each replica, from
                                        standard input; prints a JSON list of their URLs, and serves
                                        until standard input ends

Each replica has a port of its own, so a client needs a connection for each, as with a real fleet.
The server is as cheap as it can be, so that it takes little of the machine that is measured. Gauges
swing, counters grow, and one replica of fifty fills up and empties again.
"""

import asyncio
import json
import math
import re
import sys
import time
from pathlib import Path

from envoy_ext.adapters.engines import llamacpp, sglang, vllm
from envoy_ext.adapters.engines.figures import PROCESS_START

DATA = Path(__file__).parents[2] / "tests" / "data"
PAGES = {
    "vllm": ("real/vllm_metrics_busy.raw", vllm.FAMILIES),
    "sglang": ("metrics/sglang_single_0.5.txt", sglang.FAMILIES),
    "llamacpp": ("real/xllamacpp_metrics.raw", llamacpp.FAMILIES),
}
RUNNING = (vllm.RUNNING, sglang.RUNNING, llamacpp.PROCESSING)
WAITING = (vllm.WAITING, sglang.QUEUED, llamacpp.DEFERRED)
SHARES = (vllm.KV_CACHE, vllm.KV_CACHE_OLD, sglang.TOKEN_USAGE, llamacpp.KV_CACHE)
FIXED = (vllm.SLEEP_STATE, vllm.PREEMPTIONS, sglang.RETRACTED, PROCESS_START)

SWING_S = 20.0
"""How long a replica takes from one peak of load to the next."""
BUSY = 0.7
"""The share of each swing in which it has work; then it is idle, and its counters stand still."""
OVERLOADED_EVERY = 50
"""One replica of so many has, for half of each swing, more in its queue than it may have."""

HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"
    b"content-length: %d\r\n\r\n"
)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","owned_by":"bench","root":"bench"}]}'
TOKEN = b'{"object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"length"}]}'


class Page:
    """A recorded page, cut at the numbers that move."""

    def __init__(self, engine: str) -> None:
        path, families = PAGES[engine]
        moving = b"|".join(re.escape(name) for name in sorted(families - set(FIXED)))
        number = rb"(?m)^((?:%s)(?:\{[^\n]*\})? )([^ \n]+)" % moving
        page = (DATA / path).read_bytes()
        self._pieces: list[bytes] = []
        self._names: list[bytes] = []
        end = 0
        for match in re.finditer(number, page):
            self._pieces.append(page[end : match.start(2)])
            self._names.append(match[1].split(b"{")[0].strip())
            end = match.end(2)
        self._rest = page[end:]

    def write(self, replica: int, now: float) -> bytes:
        """What the replica tells at this moment."""
        swings, place = divmod(now / SWING_S + replica / math.tau, 1.0)
        worked_s = SWING_S * (swings * BUSY + min(place, BUSY))
        swing = math.sin(math.pi * place / BUSY) if place < BUSY else 0.0
        overloaded = replica % OVERLOADED_EVERY == 0 and swing > 0.5
        pieces = []
        for piece, name in zip(self._pieces, self._names, strict=True):
            if name in RUNNING:
                value = float(round(24 * swing))
            elif name in WAITING:
                value = 40.0 if overloaded else float(round(3 * swing))
            elif name in SHARES:
                value = round(0.1 + 0.6 * swing, 6)
            else:
                value = float(int(100 * worked_s) + replica)
            pieces += (piece, b"%r" % value)
        return b"".join((*pieces, self._rest))


class Served(asyncio.Protocol):
    """One connection to one replica."""

    control_calls = 0
    connections = 0

    def __init__(self, page: Page, replica: int) -> None:
        self._page, self._replica = page, replica
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        Served.connections += 1

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(b"\r\n\r\n")) != -1:
            head = self._unread[:end].lower()
            length = re.search(rb"\r\ncontent-length: *(\d+)", head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._unread) < whole:
                return
            self._unread = self._unread[whole:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"get /metrics "):
            answer = build_answer(self._page.write(self._replica, time.monotonic()))
        elif head.startswith(b"get /v1/models "):
            answer = build_answer(MODELS)
        elif head.startswith(b"post"):
            Served.control_calls += 1
            answer = build_answer(TOKEN)
        else:
            answer = NOT_FOUND
        self._transport.write(answer)
        if b"\r\nconnection: close" in head:
            self._transport.close()


def build_answer(body: bytes) -> bytes:
    return HEAD % len(body) + body


async def main() -> None:
    """Serve until nobody listens any more; then say what else was asked for."""
    loop = asyncio.get_running_loop()
    engines = json.loads(sys.stdin.readline())
    pages = {engine: Page(engine) for engine in set(engines)}
    urls = []
    for replica, engine in enumerate(engines):
        server = await loop.create_server(
            lambda replica=replica, engine=engine: Served(pages[engine], replica), "127.0.0.1", 0
        )
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    print(json.dumps(urls), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        told = {"control_calls": Served.control_calls, "connections": Served.connections}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
