"""Clients that send requests under idempotency keys, and one exchange each as Envoy plays it."""

import asyncio
import json
from typing import Any

from envoy_ext.domain import step
from envoy_ext.domain.events import (
    AttemptAnswered,
    AttemptBody,
    AttemptClosed,
    AttemptLogged,
    DeliveryClosed,
    ExchangeLogged,
    LogCause,
    ResponseBody,
    ResponseStarted,
)
from envoy_ext.domain.ids import AttemptId, ReplicaId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.services.live_exchange import LiveExchange
from tests.support.sidecar import SSE, Sent, Sidecar

JSON = "application/json"
WHOLE = json.dumps(
    {
        "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 1},
    }
).encode()
KEPT_HEADERS = (("content-type", JSON), ("x-engine", "a"))


async def let_tasks_run() -> None:
    """Give every task that can go on its turns."""
    for _ in range(30):
        await asyncio.sleep(0)


class Client:
    """One request and what it was told."""

    def __init__(self, sidecar: Sidecar, **arrival: Any) -> None:
        self.sidecar = sidecar
        self.sent, self.hop = Sent(), Sent()
        arrival = {"key": "k", **arrival}
        self.delivery = sidecar.arrivals.arrive(sidecar.build_arrival(**arrival), self.sent)
        self.live: LiveExchange | None = None
        self.attempt_id: AttemptId | None = None

    @property
    def told(self) -> list[str]:
        """What it was told, in words: an error's code, or the kind of reply."""
        return [
            reply.error.code if isinstance(reply, step.RespondLocally) else type(reply).__name__
            for reply in self.sent.replies
        ]

    @property
    def error(self) -> step.RespondLocally:
        (reply,) = [one for one in self.sent.replies if isinstance(one, step.RespondLocally)]
        return reply

    @property
    def given(self) -> step.GiveAnswer:
        """The kept answer it was given."""
        (reply,) = [one for one in self.sent.replies if isinstance(one, step.GiveAnswer)]
        return reply

    @property
    def runs(self) -> bool:
        """Whether it was sent on as an exchange."""
        return "ForwardRequest" in self.told

    async def start(self) -> None:
        """Its attempt comes to the gate and is let go."""
        (forward,) = [one for one in self.sent.replies if isinstance(one, step.ForwardRequest)]
        joined = self.sidecar.exchanges.join(forward.exchange_id, self.hop)
        assert joined is not None
        self.live, self.attempt_id = joined
        self.sidecar.exchanges.arrive_attempt(self.live, self.attempt_id)
        await let_tasks_run()
        assert isinstance(self.hop.replies[-1], step.StartAttempt)

    async def begin_answer(self, first: bytes, kind: str = JSON, status: int = 200, coding: str = "") -> None:
        """The replica's first bytes are with the client."""
        assert self.live is not None
        assert self.attempt_id is not None
        self.live.receive(AttemptAnswered(self.attempt_id, status, kind, coding, ReplicaId("a"), end=False))
        self.live.receive(AttemptBody(self.attempt_id, first, end=False))
        await let_tasks_run()
        headers = (("content-type", kind), *KEPT_HEADERS[1:]) if self.delivery.keeps_answer else ()
        started = ResponseStarted(status, kind, coding, False, None, end=False, headers=headers)
        self.delivery.receive(started)
        self.delivery.receive(ResponseBody(first, end=False))

    async def end_answer(self, rest: bytes = b"") -> None:
        """The replica's end, and the logs that follow it."""
        self.delivery.receive(ResponseBody(rest, end=True))
        await self.over(LogCause.COMPLETED)

    async def over(self, cause: LogCause) -> None:
        """Both hops log how it ended, and the client's stream closes."""
        assert self.live is not None
        assert self.attempt_id is not None
        self.live.receive(AttemptClosed(self.attempt_id))
        self.live.receive(AttemptLogged(self.attempt_id, cause, ReplicaId("a"), 0, ""))
        self.delivery.receive(DeliveryClosed())
        self.live.receive(ExchangeLogged(cause, ""))
        await let_tasks_run()

    async def be_answered(self, body: bytes = WHOLE, kind: str = JSON, **how: Any) -> None:
        """One whole life, from the gate to the logs; the body comes in two pieces."""
        await self.start()
        half = len(body) // 2
        await self.begin_answer(body[:half], kind, **how)
        await self.end_answer(body[half:])

    async def leave(self) -> None:
        """Its client closes the connection."""
        if self.live is not None:
            await self.over(LogCause.DOWNSTREAM_GONE)
            return
        self.delivery.receive(DeliveryClosed())
        await let_tasks_run()


async def ask(sidecar: Sidecar, **arrival: Any) -> Client:
    """Send a request; as far as it comes by itself."""
    client = Client(sidecar, **arrival)
    await let_tasks_run()
    return client


async def read_kept(sidecar: Sidecar) -> list[KeptAnswer | None]:
    """The kept answer of each operation in the journal, oldest first."""
    operations = await sidecar.journal.list_recent(100)
    return [await sidecar.journal.read_answer(one.operation_id) for one in reversed(operations)]


__all__ = ["JSON", "KEPT_HEADERS", "SSE", "WHOLE", "Client", "ask", "let_tasks_run", "read_kept"]
