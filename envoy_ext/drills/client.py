"""A streaming client that writes down what it saw, as a person at the other end would tell it."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class Seen:
    """One request, by its client's eyes."""

    status: int = 0
    request_id: str = ""
    operation_id: str = ""
    attempts: int = 0
    text: str = ""
    deltas: int = 0
    finish: str | None = None
    done: bool = False
    error: dict[str, Any] | None = None
    """The error object of a terminal event or of an error body."""
    errors: int = 0
    cut: bool = False
    """The body did not end as HTTP wants it."""
    left: bool = False
    """The client itself went away."""
    events: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """One whole answer."""
        return self.status == 200 and bool(self.finish) and self.error is None and not self.cut

    def tell(self) -> str:
        """What it saw, in a line."""
        said = f'HTTP {self.status}, {self.deltas} deltas, "{shorten(self.text)}"'
        if self.left:
            return f"{said}, then it left"
        if self.cut:
            return f"{said}, then the connection was cut"
        if self.error is not None:
            return f"{said}, error {self.error.get('code')} ({self.error.get('reason')})"
        return f"{said}, finish {self.finish}{', [DONE]' if self.done else ''}"


def shorten(text: str, limit: int = 48) -> str:
    """A text's begin and end."""
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


async def ask_chat(
    http: aiohttp.ClientSession,
    url: str,
    *,
    model: str,
    headers: dict[str, str] | None = None,
    leave_after_deltas: int | None = None,
    max_tokens: int = 8,
) -> Seen:
    """Stream one chat completion. `leave_after_deltas`: close the connection after so many; 0 before any."""
    seen = Seen()
    body = {
        "model": model,
        "stream": True,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": "Tell me the truth."}],
    }
    request = http.post(f"{url}/v1/chat/completions", json=body, headers=headers or {})
    try:
        if leave_after_deltas == 0:
            async with asyncio.timeout(0.3):
                async with request as answer:
                    await answer.read()
            return seen
        async with request as answer:
            await _read_answer(answer, seen, leave_after_deltas)
    except TimeoutError:
        seen.left = True
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        seen.cut = True
    return seen


async def _read_answer(answer: aiohttp.ClientResponse, seen: Seen, leave_after_deltas: int | None) -> None:
    seen.status = answer.status
    seen.request_id = answer.headers.get("x-request-id", "")
    seen.operation_id = answer.headers.get("x-operation-id", "")
    seen.attempts = int(answer.headers.get("x-attempt-count", "0"))
    if answer.content_type != "text/event-stream":
        _read_error(json.loads(await answer.read()), seen)
        return
    async for line in answer.content:
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:"):
            continue
        if data == b"[DONE]":
            seen.done = True
            continue
        _read_event(json.loads(data), seen)
        if leave_after_deltas is not None and seen.deltas >= leave_after_deltas:
            seen.left = True
            answer.close()
            return


def _read_event(event: dict[str, Any], seen: Seen) -> None:
    if "error" in event:
        _read_error(event, seen)
        return
    for choice in event.get("choices", ()):
        content = choice.get("delta", {}).get("content")
        if content:
            seen.deltas += 1
            seen.text += content
        seen.finish = choice.get("finish_reason") or seen.finish


def _read_error(event: dict[str, Any], seen: Seen) -> None:
    seen.errors += 1
    error = event.get("error")
    seen.error = error if isinstance(error, dict) else {"message": error}
