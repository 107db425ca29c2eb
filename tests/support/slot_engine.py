"""An engine that is no ASGI application and tells of its slots as llama.cpp does.

It hears late, or never, that its client has left.
"""

import asyncio
import json
import time

from tests.support.raw_http import RawExchange, build_response

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class SlotEngine:
    """Plays a `RawServer`: works on each chat until a test stops it, whoever has left meanwhile."""

    def __init__(self) -> None:
        self.working = 0
        self.left = asyncio.Event()
        """The connection of a chat was closed."""
        self.unread = asyncio.Event()
        """A request lies there whose work has not begun."""
        self.stop = asyncio.Event()
        self.stopped_at = 0.0
        """Monotonic seconds."""
        self.tells_slots = True
        self.chats: list[RawExchange] = []

    async def __call__(self, exchange: RawExchange) -> None:
        path = exchange.line.split()[1]
        if path == "/slots" and self.tells_slots:
            page = [{"id": 0, "id_task": 1, "is_processing": bool(self.working)}]
            await exchange.send(build_response(json.dumps(page).encode()))
        elif path == "/v1/chat/completions":
            await self._chat(exchange)
        elif path == "/answer":
            await exchange.send(build_response(b"{}"))
        elif path == "/unread":
            self.unread.set()
            await exchange.wait_closed_by_peer()
        else:
            await exchange.send(build_response(b"", status=404))

    async def _chat(self, exchange: RawExchange) -> None:
        self.chats.append(exchange)
        self.working += 1
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
        event = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        await exchange.send(STREAM + b"%x\r\n" % len(event) + event + b"\r\n")
        await exchange.wait_closed_by_peer()
        self.left.set()
        await self.stop.wait()
        self.working -= 1
        self.stopped_at = time.monotonic()
