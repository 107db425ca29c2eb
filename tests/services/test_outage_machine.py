"""A store that fails at any write, in any way, under requests in any order: two sentences hold.

After a first delta no other attempt starts or is let out; and what has a key is run by one request at a time,
and by none once a part of an answer was let out. Whatever the store took, refused, took and did not say, or
took long after it was given up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import event, example, given, settings

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.errors import EnvoyExtError, JournalUnavailable
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.domain.records import OperationBegun, Record
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.services.owed_ends import LOOK_AGAIN_S
from envoy_ext.services.unrecorded import Unrecorded
from tests.support.clock import ManualClock
from tests.support.outages import Played, let_tasks_run, play_whole_answer, settle
from tests.support.sidecar import Sidecar

CLASSES = TrafficClasses([TrafficClass("chat", unrecorded=True)])
TAKES, REFUSES, TAKES_UNSAID, TAKES_LATE = "takes", "refuses", "takes unsaid", "takes late"

FATES = st.lists(st.sampled_from([TAKES, TAKES, REFUSES, TAKES_UNSAID, TAKES_LATE]), max_size=40)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "go on", "go on", "go on", "lose", "late", "back"]), st.integers(0, 5)
    ),
    min_size=4,
    max_size=40,
)
WHO = (("k", "chat"), ("k", None), (None, "chat"), ("k2", "chat"), (None, None), ("k", "chat"))
"""Key and class of a request, by number."""


class Fickle(MemoryJournal):
    """Each write has the next fate; when none is left, the store works."""

    def __init__(self, fates: list[str]) -> None:
        super().__init__()
        self.fates = list(fates)
        self.late: list[Callable[[], Awaitable[object]]] = []

    async def suffer(self, work: Callable[[], Awaitable[Operation | None]]) -> Operation | None:
        fate = self.fates.pop(0) if self.fates else TAKES
        event(fate)
        if fate == TAKES:
            return await work()
        if fate == TAKES_UNSAID:
            await work()
        elif fate == TAKES_LATE:
            self.late.append(work)
        raise JournalUnavailable(fate)

    async def take_the_late(self) -> None:
        late, self.late = self.late, []
        for work in late:
            try:
                await work()
            except EnvoyExtError:
                continue  # its caller is gone: nobody hears what it would have been told

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | None:
        return await self.suffer(lambda: MemoryJournal.begin(self, begun, owner, after))

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        await self.suffer(lambda: self.do_append(records, token, answer))

    async def do_append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None
    ) -> None:
        await MemoryJournal.append(self, records, token, answer)


@dataclass
class Request:
    played: Played
    key: str | None
    attempts: list[AttemptId] = field(default_factory=list)
    lost: int = 0
    delivered: bool = False
    over: bool = False

    @property
    def runs(self) -> bool:
        return len(self.attempts) > self.lost and not self.over


@dataclass
class World:
    journal: Fickle
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.sidecar = Sidecar(
            journal=self.journal, clock=self.clock, unrecorded=Unrecorded(CLASSES, lambda: True)
        )

    async def act(self, what: str, number: int) -> None:
        if what == "ask":
            key, request_class = WHO[number]
            self.requests.append(Request(Played(self.sidecar, key=key, request_class=request_class), key))
        elif what == "late":
            await self.journal.take_the_late()
        elif what == "back":
            self.sidecar.exchanges.note_store_back()
        elif self.requests:
            request = self.requests[-1 - number % len(self.requests)]
            if not request.over:
                await (self.lose(request) if what == "lose" else self.go_on(request))
        await let_tasks_run()

    async def go_on(self, request: Request) -> None:
        """The next thing that Envoy does for a request."""
        if not request.runs:
            await self.ask_for_an_attempt(request)
            return
        replica = "ab"[request.lost % 2]
        released = await request.played.answer(request.attempts[-1], replica)
        assert not (released and request.delivered), "two attempts were let out"
        request.delivered = released
        if released:
            again = await request.played.attempt()
            assert again is None, "an attempt started after the first delta"
        await self.end(request)

    async def ask_for_an_attempt(self, request: Request) -> None:
        others = [one for one in self.requests if one is not request and one.key == request.key]
        attempt_id = await request.played.attempt()
        if attempt_id is None:
            await self.end(request)
            return
        request.attempts.append(attempt_id)
        if request.key is not None:
            assert not any(one.delivered for one in others), "a key that was answered ran again"
            assert not any(one.runs for one in others), "a key ran twice at once"

    async def lose(self, request: Request) -> None:
        if request.runs:
            await request.played.lose(request.attempts[-1], "ab"[request.lost % 2])
            request.lost += 1

    async def end(self, request: Request) -> None:
        await request.played.end()
        request.over = True

    async def close(self) -> None:
        """The store works, all that is late has come, and every request is over."""
        self.journal.fates.clear()
        for request in self.requests:
            if not request.over:
                await self.end(request)
        self.clock.advance(10.0)
        await settle(self.sidecar)
        await self.journal.take_the_late()
        self.clock.advance(LOOK_AGAIN_S)
        for request in self.requests:
            replies = request.played.client.replies
            unrecorded = any(
                isinstance(reply, step.ForwardResponse) and not reply.recorded for reply in replies
            )
            assert not (unrecorded and request.key), "a request with a key went on unrecorded"
        for key in {one.key for one in self.requests if one.key}:
            await self.check_that_it_is_free(key)

    async def check_that_it_is_free(self, key: str) -> None:
        """A repeat is answered, or told how it ended: no key is blocked for good."""
        delivered = any(one.delivered for one in self.requests if one.key == key)
        sent = await play_whole_answer(self.sidecar, key=key)
        codes = [reply.error.code for reply in sent.replies if isinstance(reply, step.RespondLocally)]
        assert codes != ["operation_in_progress"]
        assert bool(codes) or not delivered, "a key that was answered ran again"
        newest = (await self.journal.list_recent(1))[0]
        assert newest.state is not OperationState.RUNNING


@settings(max_examples=150, deadline=None)
@given(fates=FATES, acts=ACTS)
@example([TAKES_LATE], [("ask", 2), ("ask", 0), ("go on", 0), ("go on", 0)]).via("a late begin without a key")
def test_a_store_that_fails_at_any_write_lets_nothing_run_twice(
    fates: list[str], acts: list[tuple[str, int]]
) -> None:
    async def play() -> None:
        world = World(Fickle(fates))
        for what, number in acts:
            await world.act(what, number)
        await world.close()

    asyncio.run(play())
