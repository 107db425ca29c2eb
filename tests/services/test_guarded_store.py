"""A store that hangs or refuses: who waits, who is told at once, and when it is taken for whole again."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, RunNotOver, SeatLost, StoreSilent
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.loop_health import LATE_S
from envoy_ext.domain.notes import Note, StoreBack, StoreLost
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import OperationBegun, Record
from envoy_ext.services import guarded_store
from envoy_ext.services.guarded_store import GuardedStore
from tests.support.clock import ManualClock
from tests.support.jobs import begin_run, claim, submit
from tests.support.records import START, attempt_started, begun, ended
from tests.support.sidecar import Watcher

LIMIT_S = 0.03
KEY = ("caller-hash", "/v1/chat/completions", "key")


class Ailing(MemoryJournal):
    """Hangs or refuses, in all that it is asked, until it is mended. Counts what reached it."""

    def __init__(self) -> None:
        super().__init__(exclusive=False)
        self.hangs = False
        self.refuses = False
        self.refuses_after_s: float | None = None
        self.clock = ManualClock()
        self.asked: list[str] = []
        self.mended = asyncio.Event()

    async def ail(self, call: str) -> None:
        self.asked.append(call)
        if self.refuses:
            raise JournalUnavailable("the disk is full")
        if self.refuses_after_s is not None:
            self.clock.advance(self.refuses_after_s)
            raise JournalUnavailable("nobody is there")
        if self.hangs:
            await self.mended.wait()

    def mend(self) -> None:
        self.hangs = self.refuses = False
        self.mended.set()

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | None:
        await self.ail("begin")
        return await super().begin(begun, owner, after)

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        await self.ail("append")
        await super().append(records, token, answer)

    async def beat(self, seat: SeatId, number: int) -> None:
        await self.ail("beat")
        await super().beat(seat, number)

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
        await self.ail("find_by_key")
        return await super().find_by_key(caller, path, key_hash)

    async def list_recent(self, limit: int, before: OperationId | None = None) -> list[Operation]:
        await self.ail("list_recent")
        return await super().list_recent(limit, before)

    async def orphaned(self) -> AsyncIterator[Operation]:
        async for operation in super().orphaned():
            await self.ail("orphaned")
            yield operation


class Guarded:
    """A guarded store, and all that it tells."""

    def __init__(self) -> None:
        self.inner, self.clock, self.watcher = Ailing(), ManualClock(), Watcher()
        self.store = GuardedStore(self.inner, self.clock, self.watcher, timeout_s=LIMIT_S)
        self.backs = 0
        self.store.on_back(self.count_back)
        self.seat = SeatId("")

    def count_back(self) -> None:
        self.backs += 1

    async def start(self) -> "Guarded":
        self.seat = await self.store.take_seat("gw")
        return self

    async def begin(self, operation: str = "op_1") -> None:
        await self.store.begin(begun(operation), self.seat)

    async def read_orphans(self) -> list[Operation]:
        return [one async for one in self.store.orphaned()]

    @property
    def notes(self) -> list[Note]:
        return self.watcher.notes


async def test_a_call_that_hangs_is_given_up_and_the_next_is_told_at_once() -> None:
    guarded = await Guarded().start()
    guarded.inner.hangs = True
    with pytest.raises(JournalUnavailable, match="has not answered within") as given_up:
        await guarded.begin()
    assert not isinstance(given_up.value, StoreSilent), "it was asked: what became of it is not known"
    assert guarded.store.down
    for call in (
        guarded.begin(),
        guarded.store.append([attempt_started()], FIRST_TOKEN),
        guarded.store.find_by_key(*KEY),
        guarded.store.list_recent(1),
    ):
        with pytest.raises(StoreSilent):
            await call
    assert guarded.inner.asked == ["begin"]


async def test_an_outage_is_told_once_at_its_start_and_once_at_its_end() -> None:
    guarded = await Guarded().start()
    guarded.inner.refuses = True
    for number in range(3):
        with pytest.raises(JournalUnavailable):
            await guarded.begin(f"op_{number}")
        guarded.clock.advance(2.0)
    guarded.inner.mend()
    await guarded.begin()
    await guarded.begin("op_2")
    assert guarded.notes == [StoreLost("the disk is full"), StoreBack(6.0)]
    assert guarded.backs == 1
    assert not guarded.store.down


async def test_a_store_that_refuses_is_asked_each_time() -> None:
    guarded = await Guarded().start()
    guarded.inner.refuses = True
    for _ in range(2):
        with pytest.raises(JournalUnavailable, match="the disk is full"):
            await guarded.begin()
    assert guarded.inner.asked == ["begin", "begin"]


async def test_one_that_takes_its_time_to_refuse_makes_nobody_else_wait_for_that() -> None:
    for work in ("begin", "find_by_key"):
        guarded = await Guarded().start()
        guarded.inner.refuses_after_s = 3.0
        guarded.inner.clock = guarded.clock
        with pytest.raises(JournalUnavailable, match="nobody is there"):
            await (guarded.begin() if work == "begin" else guarded.store.find_by_key(*KEY))
        with pytest.raises(StoreSilent):
            await guarded.begin()
        assert guarded.store.down
        assert guarded.inner.asked == [work]


async def test_what_fails_late_of_an_outage_that_is_over_begins_no_other() -> None:
    guarded = await Guarded().start()
    guarded.inner.hangs = True
    late = [asyncio.ensure_future(call) for call in (guarded.begin("op_2"), guarded.store.find_by_key(*KEY))]
    while len(guarded.inner.asked) < len(late):
        await asyncio.sleep(0)
    guarded.inner.hangs = False  # and those two are still on their way
    guarded.clock.advance(0.1)
    await guarded.begin()
    for one in late:
        with pytest.raises(JournalUnavailable):
            await one
    assert guarded.notes == []
    await guarded.begin("op_3")


async def test_a_beat_reaches_a_silent_store_and_its_answer_ends_the_silence() -> None:
    guarded = await Guarded().start()
    guarded.inner.hangs = True
    with pytest.raises(JournalUnavailable):
        await guarded.begin()
    with pytest.raises(JournalUnavailable):
        await guarded.store.beat(guarded.seat, 2)
    guarded.inner.mend()
    await guarded.store.beat(guarded.seat, 3)
    await guarded.begin()
    assert guarded.inner.asked == ["begin", "beat", "beat", "begin"]


async def test_a_silent_store_is_probed_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_store, "PROBE_EVERY_S", 0.01)
    guarded = await Guarded().start()
    probing = asyncio.get_running_loop().create_task(guarded.store.run())
    guarded.inner.hangs = True
    with pytest.raises(JournalUnavailable):
        await guarded.begin()
    back = asyncio.Event()
    guarded.store.on_back(back.set)
    async with asyncio.timeout(10):
        while guarded.inner.asked.count("beat") < 3:
            await asyncio.sleep(0.01)
        assert not back.is_set()
        guarded.inner.mend()
        await back.wait()
    asked = len(guarded.inner.asked)
    await asyncio.sleep(0.05)
    assert len(guarded.inner.asked) == asked, "a store that works is not probed"
    probing.cancel()


async def test_a_probe_keeps_no_seat() -> None:
    """The others are to see that this gateway does not beat."""
    guarded = await Guarded().start()
    await guarded.store.beat(guarded.seat, 5)
    await guarded.store.probe()
    assert dict(await guarded.inner.read_seats()) == {guarded.seat: 5}


async def test_a_store_that_answers_with_a_refusal_works() -> None:
    for refused, call in (
        (SeatLost, lambda guarded: guarded.store.begin(begun(), SeatId("gone"))),
        (NotOwner, lambda guarded: guarded.store.append([attempt_started()], FIRST_TOKEN)),
    ):
        guarded = await Guarded().start()
        guarded.inner.refuses = True
        with pytest.raises(JournalUnavailable):
            await guarded.begin()
        guarded.inner.mend()
        with pytest.raises(refused):
            await call(guarded)
        assert not guarded.store.down


async def test_a_job_that_may_not_be_given_back_is_no_outage() -> None:
    guarded = await Guarded().start()
    running = await claim(guarded.store, await submit(guarded.store), guarded.seat)
    await begin_run(guarded.store, running, guarded.seat)
    guarded.inner.refuses = True
    with pytest.raises(JournalUnavailable):
        await guarded.begin("op_2")
    guarded.inner.mend()
    with pytest.raises(RunNotOver):
        await guarded.store.release_job(running.job_id, running.token, START)
    assert not guarded.store.down


async def test_a_read_that_works_is_no_word_on_writes() -> None:
    guarded = await Guarded().start()
    guarded.inner.refuses = True
    with pytest.raises(JournalUnavailable):
        await guarded.begin()
    guarded.inner.mend()
    await guarded.store.find_by_key(*KEY)
    assert guarded.store.down


@pytest.mark.parametrize("look", ["list_recent", "orphaned"])
async def test_a_large_look_that_takes_too_long_is_no_outage(look: str) -> None:
    guarded = await Guarded().start()
    await guarded.begin()
    await guarded.inner.remove_seat(guarded.seat, 1)  # its operation has no owner any more
    guarded.inner.hangs = True
    looks = {"list_recent": lambda: guarded.store.list_recent(1), "orphaned": guarded.read_orphans}
    with pytest.raises(JournalUnavailable):
        await looks[look]()
    assert not guarded.store.down


async def test_a_timeout_of_the_stores_own_is_not_taken_for_ours() -> None:
    class Odd(Ailing):
        async def ail(self, call: str) -> None:
            raise TimeoutError("of something within")

    guarded = Guarded()
    guarded.inner = Odd()
    store = GuardedStore(guarded.inner, guarded.clock, guarded.watcher, timeout_s=LIMIT_S)
    with pytest.raises(TimeoutError, match="of something within"):
        await store.begin(begun(), SeatId("gw/1"))
    assert not store.down


async def test_what_a_store_has_kept_is_asked_of_it_and_is_no_word_on_its_health() -> None:
    guarded = await Guarded().start()
    await guarded.begin()
    await guarded.store.append([ended()], FIRST_TOKEN)
    assert (await guarded.store.measure()).operations == 1
    assert [one.operation_id for one in await guarded.store.list_since(0.0, 5)] == ["op_1"]
    assert await guarded.store.forget(START + 100, 5) == 1
    assert await guarded.store.get(OperationId("op_1")) is None
    await guarded.inner.close()
    with pytest.raises(JournalUnavailable, match="closed"):
        await guarded.store.forget(START, 1)
    assert not guarded.store.down


async def test_an_answer_that_came_while_this_process_was_stopped_is_heard() -> None:
    """Stopped for longer than the limit, it finds both when it wakes: the answer, and the end of patience."""
    guarded = await Guarded().start()
    guarded.inner.hangs = True
    asked = asyncio.ensure_future(guarded.begin())
    await asyncio.sleep(0)
    time.sleep(guarded.store._timeout_s + LATE_S + 0.1)  # noqa: ASYNC251
    asyncio.get_running_loop().call_soon(guarded.inner.mend)  # a thread has answered meanwhile
    await asked
    assert not guarded.store.down


async def test_a_store_that_says_nothing_behind_a_stop_is_given_up_a_moment_later() -> None:
    guarded = await Guarded().start()
    guarded.inner.hangs = True
    asked = asyncio.ensure_future(guarded.begin())
    await asyncio.sleep(0)
    time.sleep(guarded.store._timeout_s + LATE_S + 0.1)  # noqa: ASYNC251
    with pytest.raises(JournalUnavailable):
        await asked
    assert guarded.store.down


async def test_who_is_cancelled_while_it_waits_is_not_told_of_a_silent_store() -> None:
    guarded = await Guarded().start()
    guarded.inner.hangs = True
    asked = asyncio.ensure_future(guarded.begin())
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not guarded.store.down
