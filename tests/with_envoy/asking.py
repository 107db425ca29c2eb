"""One request by a client that keeps every byte, and reads events as a person would, line by line.

It shares no code with the product's parsers: what they misread, it must not misread in the same way.
"""

import asyncio
import contextlib
import io
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy

from envoy_ext.sim.answer import TokenMark, read_text
from envoy_ext.sim.state import RequestRecord
from tests.with_envoy.gateway import MODEL, Gateway

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TGI = "/generate_stream"
EMBEDDINGS = "/v1/embeddings"

_PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Tell me the truth."}]},
    COMPLETIONS: {"prompt": "Tell me the truth."},
    RESPONSES: {"input": "Tell me the truth."},
    MESSAGES: {"max_tokens": 64, "messages": [{"role": "user", "content": "Tell me the truth."}]},
    TGI: {"inputs": "Tell me the truth."},
    EMBEDDINGS: {"input": "Tell me the truth."},
}


def build_body(path: str = CHAT, *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """A request of the API at this path."""
    streams = {} if path in (TGI, EMBEDDINGS) else {"stream": stream}
    common = {} if path == TGI else {"model": MODEL, **streams}
    return {**common, **_PROMPTS[path], **fields}


@dataclass
class Reply:
    """One answer, read to its end or to its cut."""

    request_id: str
    status: int = 0
    headers: CIMultiDictProxy[str] = field(default_factory=lambda: CIMultiDictProxy(CIMultiDict()))
    body: bytes = b""
    cut: bool = False
    """The body did not end as HTTP wants it."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def blocks(self) -> list[str]:
        """The pieces between blank lines; the last one is what stands behind the last blank line."""
        text = self.body.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        return text.split("\n\n")

    @property
    def datas(self) -> list[str]:
        """The data of each event that a blank line ends."""
        lines = (line for block in self.blocks[:-1] for line in block.split("\n"))
        return [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON events."""
        return [json.loads(data) for data in self.datas if data != "[DONE]"]

    @property
    def names(self) -> list[str]:
        """The events' names, in the APIs that name them."""
        lines = (line for block in self.blocks[:-1] for line in block.split("\n"))
        return [line.removeprefix("event:").strip() for line in lines if line.startswith("event:")]

    @property
    def dones(self) -> int:
        return self.datas.count("[DONE]")

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The error objects of all events."""
        return [event["error"] for event in self.events if "error" in event]

    @property
    def parts(self) -> list[str]:
        """The readable part of each event that has one."""
        return [part for part in map(read_part, self.events) if part]

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def marks(self) -> tuple[TokenMark, ...]:
        """Which replica and generation each token came from; fails on text that no engine wrote."""
        return read_text(self.text)

    @property
    def sources(self) -> set[tuple[str, int]]:
        """The generations that the text came from; more than one is text from two attempts."""
        return {(mark.replica, mark.generation) for mark in self.marks}

    @property
    def role_chunks(self) -> int:
        """Chat chunks that only open the answer."""
        deltas = [c["delta"] for e in self.events for c in e.get("choices", ()) if "delta" in c]
        return sum("role" in delta and not delta.get("content") for delta in deltas)


def read_part(event: dict[str, Any]) -> str:
    """What a person could read of one event, in any of the APIs."""
    for choice in event.get("choices", ()):
        content: str = choice.get("delta", {}).get("content") or choice.get("text") or ""
        return content
    if "token" in event:
        return "" if event["token"].get("special") else str(event["token"]["text"])
    delta = event.get("delta")
    if isinstance(delta, dict):
        return str(delta.get("text", ""))
    return delta if isinstance(delta, str) else ""


def mint_request_id() -> str:
    return f"req-{secrets.token_hex(6)}"


def build_headers(request_id: str, fault: str = "", headers: dict[str, str] | None = None) -> dict[str, str]:
    """The headers of a request that asks for a fault."""
    asked = {"x-sim-fault": fault} if fault else {}
    return {"x-request-id": request_id, **asked, **(headers or {})}


async def ask(
    gateway: Gateway,
    path: str = CHAT,
    *,
    fault: str = "",
    method: str = "POST",
    body: Any = None,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
    request_id: str | None = None,
    stream: bool = True,
) -> Reply:
    """Send one request and read its answer. `body` is sent as JSON, `data` as it is."""
    reply = Reply(request_id or mint_request_id())
    if method == "POST" and data is None and body is None:
        body = build_body(path, stream=stream)
    sent = build_headers(reply.request_id, fault, headers)
    chunks: list[bytes] = []
    # As a file: aiohttp warns of large bytes, which it would write in one go.
    payload = None if data is None else io.BytesIO(data)
    try:
        async with gateway.http.request(
            method, gateway.url + path, json=body, data=payload, headers=sent
        ) as answer:
            reply.status, reply.headers = answer.status, answer.headers
            async for chunk in answer.content.iter_any():
                chunks.append(chunk)
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        reply.cut = True
    reply.body = b"".join(chunks)
    return reply


@contextlib.asynccontextmanager
async def asking(
    gateway: Gateway,
    path: str = CHAT,
    *,
    fault: str = "",
    request_id: str,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """An answer that is still coming in when the block begins; leaving the block closes the connection."""
    sent = build_headers(request_id, fault, headers)
    answer = await gateway.http.post(gateway.url + path, json=build_body(path), headers=sent)
    try:
        yield answer
    finally:
        answer.close()


async def read_deltas(answer: aiohttp.ClientResponse, count: int) -> None:
    """Read until this many readable events have come."""
    async for line in answer.content:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]" and read_part(json.loads(data)):
            count -= 1
            if count == 0:
                return
    raise AssertionError("the answer ended early")


async def wait_request(
    gateway: Gateway, request_id: str, condition: Callable[[RequestRecord], bool] = lambda _: True
) -> RequestRecord:
    """The first record, at any engine, of a request that fits the condition."""

    def found() -> RequestRecord | None:
        return next((record for record in gateway.find_requests(request_id) if condition(record)), None)

    async with asyncio.timeout(10):
        waits = [
            asyncio.ensure_future(engine.state.wait_until(lambda: found() is not None))
            for engine in gateway.engines.values()
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
    record = found()
    assert record is not None
    return record
