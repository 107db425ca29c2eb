"""A journal that fails, and requests that are played before it as far as the sidecar lets them come."""

import asyncio
from collections.abc import Iterable, Sequence

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import (
    AttemptAnswered,
    AttemptBody,
    AttemptClosed,
    AttemptFenced,
    AttemptLogged,
    AttemptUnanswered,
    DeliveryClosed,
    ExchangeLogged,
    LogCause,
    ResponseBody,
    ResponseStarted,
)
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, ReplicaId, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.notes import Note, PhaseChanged
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.records import OperationBegun, Record
from tests.support.sidecar import DELTA, REST, SSE, Sent, Sidecar


class FailingJournal(MemoryJournal):
    """Refuses records of some kinds, or keeps their appends waiting, until it is mended."""

    def __init__(self, *refused: type[Record], exclusive: bool = True) -> None:
        super().__init__(exclusive=exclusive)
        self.refused = refused
        self.unanswered: tuple[type[Record], ...] = ()
        """Kinds of records that are written, and whose writer is told that they could not be."""
        self.slow: tuple[type[Record], ...] = ()
        self.go_on = asyncio.Event()

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | None:
        await self.fail_as_told([begun])
        holder = await super().begin(begun, owner, after)
        self.lose_the_answer([begun])
        return holder

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        await self.fail_as_told(records)
        await super().append(records, token, answer)
        self.lose_the_answer(records)

    async def fail_as_told(self, records: Sequence[Record]) -> None:
        if any(isinstance(record, self.slow) for record in records):
            await self.go_on.wait()
        if any(isinstance(record, self.refused) for record in records):
            raise JournalUnavailable("the disk is full")

    def lose_the_answer(self, records: Sequence[Record]) -> None:
        if any(isinstance(record, self.unanswered) for record in records):
            raise JournalUnavailable("the connection was lost")

    def mend(self) -> None:
        self.refused = self.unanswered = ()


def count_phases(notes: Iterable[Note]) -> dict[str, int]:
    """What the in-flight gauges show after these notes."""
    counts: dict[str, int] = {}
    for note in notes:
        if isinstance(note, PhaseChanged):
            for phase, change in ((note.before, -1), (note.after, 1)):
                if phase is not None:
                    counts[phase] = counts.get(phase, 0) + change
    return counts


async def let_tasks_run() -> None:
    """Give every task that can go on its turns."""
    for _ in range(20):
        await asyncio.sleep(0)


async def ask(sidecar: Sidecar, *, key: str | None = None) -> Sent:
    """Send a request; what it was told so far."""
    client = Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(key=key), client)
    await let_tasks_run()
    return client


class Played:
    """One request as Envoy plays it: as far as the sidecar lets it come."""

    def __init__(self, sidecar: Sidecar, *, key: str | None = None, request_class: str | None = None) -> None:
        self.sidecar = sidecar
        self.client = Sent()
        self.hops: list[Sent] = []
        arrival = sidecar.build_arrival(key=key, request_class=request_class)
        self.delivery = sidecar.arrivals.arrive(arrival, self.client)

    @property
    def forwarded(self) -> step.ForwardRequest | None:
        """What let the request go on to the egress hop."""
        return next((one for one in self.client.replies if isinstance(one, step.ForwardRequest)), None)

    @property
    def started(self) -> int:
        """How many attempts were let go."""
        replies = [reply for hop in self.hops for reply in hop.replies]
        return sum(isinstance(reply, step.StartAttempt) for reply in replies)

    async def attempt(self) -> AttemptId | None:
        """One more attempt asks to start; its id if it was let go."""
        await let_tasks_run()
        if self.forwarded is None:
            return None
        hop = Sent()
        joined = self.sidecar.exchanges.join(self.forwarded.exchange_id, hop)
        if joined is None:
            return None
        self.hops.append(hop)
        self.live, attempt_id = joined
        self.sidecar.exchanges.arrive_attempt(self.live, attempt_id)
        await let_tasks_run()
        return attempt_id if isinstance(hop.replies[-1], step.StartAttempt) else None

    async def lose(self, attempt_id: AttemptId, replica: str) -> None:
        """The replica's process dies before its answer."""
        lost = AttemptUnanswered(attempt_id, LogCause.UPSTREAM_RESET, ReplicaId(replica), "upstream_reset")
        self.live.receive(lost)
        self.live.receive(AttemptFenced(attempt_id, FenceProof.DEATH))
        self._end_attempt(attempt_id, LogCause.UPSTREAM_RESET, replica)
        await let_tasks_run()

    async def answer(self, attempt_id: AttemptId, replica: str = "a") -> bool:
        """A whole answer comes; whether it was let out."""
        self.live.receive(AttemptAnswered(attempt_id, 200, SSE, "", ReplicaId(replica), end=False))
        self.live.receive(AttemptBody(attempt_id, DELTA, end=False))
        await let_tasks_run()
        released = isinstance(self.hops[-1].replies[-1], step.ReleaseAttempt)
        if released:
            self.delivery.receive(ResponseStarted(200, SSE, "", replay_mark=False, refusal=None, end=False))
            self.delivery.receive(ResponseBody(DELTA + REST, end=True))
            await let_tasks_run()
        self._end_attempt(attempt_id, LogCause.COMPLETED if released else LogCause.SIDECAR, replica)
        return released

    async def end(self) -> None:
        """Both hops close."""
        if self.forwarded is not None and self.hops:
            self.live.receive(ExchangeLogged(LogCause.COMPLETED, ""))
        self.delivery.receive(DeliveryClosed())
        await let_tasks_run()

    def _end_attempt(self, attempt_id: AttemptId, cause: LogCause, replica: str) -> None:
        self.live.receive(AttemptClosed(attempt_id))
        self.live.receive(AttemptLogged(attempt_id, cause, ReplicaId(replica), 0, ""))


async def play_whole_answer(
    sidecar: Sidecar, *, key: str | None = None, request_class: str | None = None
) -> Sent:
    """One request that one replica answers in full, if it is let."""
    played = Played(sidecar, key=key, request_class=request_class)
    attempt_id = await played.attempt()
    if attempt_id is not None:
        await played.answer(attempt_id)
    elif played.hops:  # the gate refused it
        refused = AttemptId(played.live.attempt_ids[-1])
        played.live.receive(AttemptClosed(refused))
        played.live.receive(AttemptLogged(refused, LogCause.SIDECAR, None, 0, ""))
    await played.end()
    return played.client


async def settle(sidecar: Sidecar) -> None:
    async with asyncio.timeout(5):
        await sidecar.exchanges.wait_idle()
        await sidecar.exchanges.aclose()
    assert sidecar.watcher.bugs == []


def ended_body(sent: Sent) -> bool:
    return any(isinstance(reply, step.ForwardBody) and reply.end for reply in sent.replies)
