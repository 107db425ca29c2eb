"""What one engine knows about itself: its counters, its queue, the requests it was sent."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.sim.tool_calls import ToolResult

MAX_RECORDS: Final = 10_000


@dataclass(slots=True)
class RequestRecord:
    """One request as the replica saw it; never what was in its body."""

    number: int
    path: str
    request_id: str | None
    started_at: float
    own_headers: dict[str, str]
    """Every `x-envoy-ext-*` header."""
    attempt_count: str | None = None
    idempotency_key: str | None = None
    accept_encoding: str | None = None
    body_sha256: str | None = None
    """Of the bytes on the wire; None until all of them have arrived."""
    body_bytes: int = 0
    stream: bool = False
    model: str | None = None
    limit: int | None = None
    """The most tokens that it may have, by its own word."""
    items: int | None = None
    """How many messages or items its conversation has."""
    generation: int | None = None
    fault: str | None = None
    """The rule that was applied, as it was written."""
    status: int | None = None
    tokens_sent: int = 0
    tool_results: list[ToolResult] = field(default_factory=list)
    """What came of the calls of tools that it asked for."""
    finished_at: float | None = None
    ended: str | None = None
    """`done`, `client_disconnected`, `refused` (the request was a mistake), `engine_stopped`, or the
    name of the fault that spoiled the answer; None while it is being answered."""


@dataclass(slots=True)
class EngineState:
    """The mutable state of one engine; only tasks of the engine's own event loop may touch it."""

    max_running: int
    next_generation: int
    running: int = 0
    waiting: int = 0
    generations: int = 0
    """Requests that were given a generation number."""
    cancelled: int = 0
    """Requests whose client left before the end."""
    kv_tokens: int = 0
    aborts: list[str] = field(default_factory=list)
    """The rids that it was asked to end."""
    wait_before_loss: Callable[[RequestRecord], Awaitable[None]] | None = None
    """What a connection that is lost behind deltas waits for: a loss can overtake what was sent just before,
    and whoever is to have read that can only be waited for. None: nothing."""
    requests: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=MAX_RECORDS))
    _received: int = field(init=False, default=0)
    _slots: asyncio.Semaphore = field(init=False)
    _kept: list[tuple[str | None, "Slot", asyncio.TimerHandle]] = field(init=False, default_factory=list)
    """Slots of requests whose clients have gone unnoticed."""
    _waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_running)

    def open(
        self, path: str, request_id: str | None, now: float, own_headers: dict[str, str]
    ) -> RequestRecord:
        """Remember a request; the oldest record is forgotten when there are too many."""
        self._received += 1
        record = RequestRecord(self._received, path, request_id, now, own_headers)
        self.requests.append(record)
        self.changed()
        return record

    def close(self, record: RequestRecord, ended: str, now: float) -> None:
        """Write down how a request ended; the first word on it stands."""
        if record.ended is None:
            record.ended, record.finished_at = ended, now
            self.cancelled += ended == "client_disconnected"
            self.changed()

    def take_generation(self) -> int:
        """The number of the next generation."""
        number = self.next_generation
        self.next_generation += 1
        self.generations += 1
        return number

    @asynccontextmanager
    async def slot(
        self, prompt_tokens: int, rid: str | None = None, notice_s: float = 0.0
    ) -> AsyncIterator["Slot"]:
        """A place among the running requests, given in order of arrival.

        It is kept for `notice_s` when the client has gone, or until the request is ended by its `rid`.
        """
        self.waiting += 1
        self.changed()
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        slot = Slot(self)
        self.running += 1
        slot.hold(prompt_tokens)
        kept = False
        try:
            yield slot
        except asyncio.CancelledError:
            kept = notice_s > 0
            if kept:
                self._keep(slot, rid, notice_s)
            raise
        finally:
            if not kept:
                self._let_go(slot)

    def _keep(self, slot: "Slot", rid: str | None, notice_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(notice_s, lambda: self._end_kept(slot))
        self._kept.append((rid, slot, timer))

    def _end_kept(self, slot: "Slot") -> None:
        self._kept = [kept for kept in self._kept if kept[1] is not slot]
        self._let_go(slot)

    def _let_go(self, slot: "Slot") -> None:
        self.running -= 1
        self.kv_tokens -= slot.tokens
        self._slots.release()
        self.changed()

    def abort(self, rid: str) -> None:
        """End the requests whose rid begins so and whose clients have gone unnoticed."""
        self.aborts.append(rid)
        for own, slot, timer in list(self._kept):
            if own is not None and own.startswith(rid):
                timer.cancel()
                self._end_kept(slot)
        self.changed()

    def stop(self) -> None:
        """The engine ends: nothing is computed any more."""
        for _rid, slot, timer in list(self._kept):
            timer.cancel()
            self._end_kept(slot)

    def changed(self) -> None:
        """Wake those who wait for a condition that holds by this change."""
        for condition, future in self._waiters:
            if not future.done() and condition():
                future.set_result(None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this state holds; it is tried at each change."""
        if condition():
            return
        waiter = (condition, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter[1]
        finally:
            self._waiters.remove(waiter)


@dataclass(slots=True)
class Slot:
    """The cache that one running request fills."""

    state: EngineState
    tokens: int = 0

    def hold(self, tokens: int) -> None:
        """Fill some more of the cache."""
        self.tokens += tokens
        self.state.kv_tokens += tokens
        self.state.changed()
