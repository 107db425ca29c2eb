"""The clients: some with the real `openai` SDK and its own retries, some that ignore all advice.

Calls come at random and whatever becomes of those before them, as people's do. An SDK client repeats what
the SDK repeats, when the SDK does. A raw client tells no deadline, hangs up when its patience is over, and
repeats every refusal after a moment, whatever it was told.
"""

import asyncio
import contextlib
import itertools
import json
import random
import time
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
import openai

from bench.loss.evidence import Try
from bench.loss.shape import Shape

KINDS: Final = ("sdk", "sdk-stream", "raw", "sdk", "sdk-stream")
"""Of the calls, in turn: two in five each, and one in five takes no advice."""
CALLERS: Final = 6
SDK_RETRIES: Final = 2
"""The SDK's own default."""
RAW_TRIES: Final = 4
RAW_PAUSE_S: Final = 0.1
SDK_SLACK_S: Final = 0.5
"""How much longer than its deadline an SDK client listens for the word that it has passed."""
MESSAGES: Final[list[Any]] = [{"role": "user", "content": "Tell me the truth."}]

_CALL: ContextVar["_Call"] = ContextVar("call")


class _Call:
    """One call and its tries."""

    def __init__(self, number: int, kind: str, tries: list[Try]) -> None:
        self.number = number
        self.kind = kind
        self._all = tries
        self._own = 0

    def begin(self) -> Try:
        """One more try."""
        self._own += 1
        request_id = f"call-{self.number}-{self._own}"
        self.last = Try(request_id, self.number, self.kind, time.monotonic())
        self._all.append(self.last)
        return self.last

    def end(self, *, whole: bool = False, left: bool = False) -> None:
        """The last try is over, unless it was before."""
        if not self.last.ended_at:
            self.last.ended_at = time.monotonic()
            self.last.whole, self.last.left = whole, left


class Clients:
    """All of them. `async with Clients(url, shape, seed) as clients`."""

    def __init__(self, url: str, shape: Shape, seed: int) -> None:
        self.tries: list[Try] = []
        self._url = url
        self._shape = shape
        self._dice = random.Random(seed)
        self._numbers = itertools.count(1)
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._sdks = [self._build_sdk(f"caller-{number}") for number in range(CALLERS)]

    def _build_sdk(self, key: str) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(
            event_hooks={"request": [_note_request], "response": [_note_response]}
        )
        return openai.AsyncOpenAI(
            base_url=f"{self._url}/v1",
            api_key=key,
            max_retries=SDK_RETRIES,
            timeout=self._shape.deadline_s + SDK_SLACK_S,
            http_client=http,
        )

    async def __aenter__(self) -> "Clients":
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._http.close()
        for sdk in self._sdks:
            await sdk.close()

    # --- loads --------------------------------------------------------------------------------

    async def saturate(self, seconds: float) -> float:
        """Keep twice as many requests in flight as one replica computes; whole answers a second, behind a
        fifth of the time in which the engine fills."""
        start = time.monotonic()
        until = start + seconds

        async def ask_on() -> None:
            while time.monotonic() < until:
                await self._ask_raw(_Call(next(self._numbers), "raw", self.tries), tries=1, patient=True)

        async with asyncio.TaskGroup() as workers:
            for _ in range(2 * self._shape.slots):
                workers.create_task(ask_on())
        since = start + seconds / 5
        whole = sum(one.whole and since <= one.ended_at < until for one in self.tries)
        return whole / (until - since)

    async def call_at_random(self, per_s: float, stop: asyncio.Event) -> None:
        """Calls at this rate until told to stop; then until the last one has ended."""
        async with asyncio.TaskGroup() as calls:
            due = time.monotonic()
            while not stop.is_set():
                due += self._dice.expovariate(per_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(0.0, due - time.monotonic()))
                number = next(self._numbers)
                call = _Call(number, KINDS[number % len(KINDS)], self.tries)
                calls.create_task(self._ask_raw(call) if call.kind == "raw" else self._ask_by_sdk(call))

    # --- one call -----------------------------------------------------------------------------

    async def _ask_by_sdk(self, call: _Call) -> None:
        _CALL.set(call)
        sdk = self._sdks[call.number % CALLERS]
        limit_s = self._shape.deadline_s
        headers = {"x-request-deadline": f"{limit_s:g}", "x-request-class": "sdk"}
        try:
            if call.kind == "sdk":
                answer = await sdk.chat.completions.create(
                    model="sim", messages=MESSAGES, extra_headers=headers
                )
                call.last.tokens = answer.usage.completion_tokens if answer.usage is not None else 0
                call.end(whole=answer.choices[0].finish_reason is not None)
                return
            stream = await sdk.chat.completions.create(
                model="sim", messages=MESSAGES, stream=True, extra_headers=headers
            )
            left_s = call.last.sent_at + limit_s + SDK_SLACK_S - time.monotonic()
            async with asyncio.timeout(left_s), stream:
                finished = False
                async for chunk in stream:
                    for choice in chunk.choices:
                        call.last.tokens += bool(choice.delta.content)
                        finished |= choice.finish_reason is not None
            call.end(whole=finished)
        except openai.APIStatusError as error:
            call.last.code = _read_code(error.body)
            call.end()
        except (openai.APITimeoutError, TimeoutError):
            call.end(left=True)
        except (openai.APIConnectionError, openai.APIError) as error:
            call.last.code = _read_code(error.body)
            call.end()
        except Exception as error:
            # What the SDK lets through where a connection breaks under a stream is its transport's own.
            if "httpx" not in type(error).__module__:
                raise
            call.end()

    async def _ask_raw(self, call: _Call, tries: int = RAW_TRIES, *, patient: bool = False) -> None:
        for _ in range(tries):
            one = call.begin()
            try:
                async with asyncio.timeout(None if patient else self._shape.deadline_s):
                    await self._read_raw(one)
            except TimeoutError:
                one.left = True
            except aiohttp.ClientError:
                pass
            one.ended_at = time.monotonic()
            if one.whole or one.tokens:
                return
            await asyncio.sleep(RAW_PAUSE_S)

    async def _read_raw(self, one: Try) -> None:
        body = {"model": "sim", "stream": True, "messages": MESSAGES}
        headers = {"x-request-id": one.request_id, "authorization": "Bearer raw"}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body, headers=headers) as answer:
            one.status = answer.status
            one.retry_after = answer.headers.get("retry-after")
            one.should_retry = answer.headers.get("x-should-retry")
            one.attempts = int(answer.headers.get("x-attempt-count", 0))
            if answer.status != 200:
                with contextlib.suppress(ValueError):
                    one.code = _read_code((json.loads(await answer.text()) or {}).get("error"))
                return
            async for line in answer.content:
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or data == b"[DONE]":
                    continue
                event = json.loads(data)
                one.code = _read_code(event.get("error")) or one.code
                for choice in event.get("choices", ()):
                    one.tokens += bool(choice["delta"].get("content"))
                    one.whole |= choice["finish_reason"] is not None


async def _note_request(request: Any) -> None:
    """The SDK sends a try: the one before it is over."""
    call = _CALL.get()
    if hasattr(call, "last"):
        call.end(left=call.last.status == 0)
    request.headers["x-request-id"] = call.begin().request_id


async def _note_response(response: Any) -> None:
    one = _CALL.get().last
    one.status = response.status_code
    one.retry_after = response.headers.get("retry-after")
    one.should_retry = response.headers.get("x-should-retry")
    one.attempts = int(response.headers.get("x-attempt-count", 0))
    if response.status_code != 200:
        await response.aread()
        with contextlib.suppress(ValueError):
            one.code = _read_code((response.json() or {}).get("error"))
        one.ended_at = time.monotonic()


def _read_code(error: object) -> str:
    return str(error.get("code") or "") if isinstance(error, dict) else ""
