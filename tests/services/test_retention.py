"""What ended long ago goes, where there is too much the first that ended goes, and nothing else ever does."""

import asyncio
import logging
import math

import pytest
from prometheus_client import CollectorRegistry

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.config import Jobs, Journal
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.retention import KEEP_AT_LEAST_S, Excess, RetentionPolicy, Why, find_excess
from envoy_ext.observability.metrics import Metrics
from envoy_ext.ports import StoreSize
from envoy_ext.services.retention import LOOK_EVERY_S, PAUSE_S, STEP, STEPS_BETWEEN_MEASURES, Retention
from envoy_ext.wiring.retention import RetentionNotes, build_retention_policy
from tests.support.clock import ManualClock
from tests.support.jobs import begin_run, claim, job_end, submit
from tests.support.journals import ANSWER, keep
from tests.support.records import begun, ended

DAY = 86_400.0
WEEK = RetentionPolicy(7 * DAY, max_operations=1_000_000)


class Kept(MemoryJournal):
    """A store that says how it was asked to forget, and refuses when it is told to."""

    def __init__(self) -> None:
        super().__init__(exclusive=False)
        self.asked: list[tuple[float, int]] = []
        self.refusals = 0
        self.size: StoreSize | None = None

    async def forget(self, before: float, limit: int) -> int:
        if self.refusals:
            self.refusals -= 1
            raise JournalUnavailable("not this time")
        self.asked.append((before, limit))
        return await super().forget(before, limit)

    async def measure(self) -> StoreSize:
        return self.size or await super().measure()


class Gateway:
    """One gateway's upkeep of a store, and what it told."""

    def __init__(self, store: Kept, policy: RetentionPolicy = WEEK, clock: ManualClock | None = None) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.registry = CollectorRegistry()
        self.pauses: list[float] = []
        self.looked = asyncio.Event()
        notes = RetentionNotes(Metrics(self.registry, []))
        self.retention = Retention(store, self.clock, policy, notes, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if seconds > PAUSE_S:
            self.looked.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"envoy_ext_journal_{name}", labels)

    def count(self, why: Why) -> float | None:
        return self.value("forgotten_total", why=why)


async def ended_ago(store: Kept, clock: ManualClock, *ages: float) -> None:
    """One operation for each age, named after it."""
    seat = await store.take_seat("gw")
    for age in ages:
        operation_id = f"op_{age:g}"
        await store.begin(begun(operation_id, at=clock.wall() - age - 1), seat)
        await store.append([ended(operation_id, at=clock.wall() - age)], FIRST_TOKEN)


async def ids(store: Kept) -> list[str]:
    return [operation.operation_id for operation in await store.list_recent(2_000)]


async def test_what_ended_before_the_time_of_retention_goes() -> None:
    store = Kept()
    gateway = Gateway(store)
    await ended_ago(store, gateway.clock, 8 * DAY, 7 * DAY + 1, 7 * DAY - 1, 1.0)
    await keep(store, [begun("op_running", at=gateway.clock.wall() - 100 * DAY)])
    await gateway.retention.look()
    assert set(await ids(store)) == {f"op_{7 * DAY - 1:g}", "op_1", "op_running"}
    assert gateway.count(Why.AGE) == 2
    assert gateway.value("operations") == 3
    assert gateway.value("over_limit") == 0


async def test_many_go_in_small_steps_with_room_for_others_between_them() -> None:
    store = Kept()
    gateway = Gateway(store)
    await ended_ago(store, gateway.clock, *(8 * DAY + n for n in range(250)))
    await gateway.retention.look()
    assert await ids(store) == []
    assert {limit for _, limit in store.asked} == {STEP}
    assert gateway.pauses == [PAUSE_S] * 3


async def test_where_there_are_too_many_those_that_ended_first_go_before_their_time() -> None:
    store = Kept()
    gateway = Gateway(store, RetentionPolicy(7 * DAY, max_operations=100))
    ages = [KEEP_AT_LEAST_S + 10.0 * n for n in range(1, 251)]
    await ended_ago(store, gateway.clock, *ages)
    await gateway.retention.look()
    assert set(await ids(store)) == {f"op_{age:g}" for age in ages[:100]}
    assert gateway.count(Why.OPERATIONS) == 150
    assert gateway.count(Why.AGE) == 0


async def test_more_than_a_few_steps_are_measured_again_on_the_way() -> None:
    store = Kept()
    gateway = Gateway(store, RetentionPolicy(7 * DAY, max_operations=1))
    count = STEP * STEPS_BETWEEN_MEASURES + 150
    await ended_ago(store, gateway.clock, *(KEEP_AT_LEAST_S + 1.0 + n for n in range(count)))
    await gateway.retention.look()
    assert len(await ids(store)) == 1
    assert gateway.count(Why.OPERATIONS) == count - 1


async def test_what_ended_a_moment_ago_and_what_runs_stays_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "envoy_ext")
    store = Kept()
    gateway = Gateway(store, RetentionPolicy(KEEP_AT_LEAST_S, max_operations=3))
    await ended_ago(store, gateway.clock, 0.0, KEEP_AT_LEAST_S - 1)
    await keep(store, [begun(f"op_running_{n}", at=1.0) for n in range(3)])
    for _ in range(3):
        await gateway.retention.look()
    assert len(await ids(store)) == 5
    assert gateway.value("over_limit") == 1
    gateway.clock.advance(KEEP_AT_LEAST_S + 1)
    await gateway.retention.look()
    assert len(await ids(store)) == 3
    assert gateway.value("over_limit") == 0
    said = [(record.message, getattr(record, "limit", None)) for record in caplog.records]
    assert said == [("journal_over_limit", "journal.max_operations"), ("journal_within_limits", None)]


async def test_what_is_too_large_loses_its_share_of_operations() -> None:
    store = Kept()
    gateway = Gateway(store, RetentionPolicy(7 * DAY, max_operations=1_000, max_bytes=3_000))
    await ended_ago(store, gateway.clock, *(KEEP_AT_LEAST_S + 1.0 + n for n in range(40)))
    before = await store.measure()
    assert before.bytes is not None
    assert before.bytes > 3_000
    await gateway.retention.look()
    after = await store.measure()
    assert after.bytes is not None
    assert 2_000 < after.bytes <= 3_000
    assert gateway.count(Why.BYTES) == before.operations - after.operations
    assert gateway.value("bytes") == after.bytes


async def test_a_store_that_cannot_tell_its_size_has_none() -> None:
    store = Kept()
    store.size = StoreSize(5, None)
    gateway = Gateway(store, RetentionPolicy(7 * DAY, 10, 100))
    assert math.isnan(gateway.value("bytes") or 0.0)
    await gateway.retention.look()
    assert gateway.value("operations") == 5
    assert math.isnan(gateway.value("bytes") or 0.0)


async def test_two_gateways_at_one_store_take_out_what_is_too_much_once() -> None:
    store, clock = Kept(), ManualClock()
    policy = RetentionPolicy(7 * DAY, max_operations=5_000)
    gateways = [Gateway(store, policy, clock) for _ in range(2)]
    await ended_ago(store, clock, *(8 * DAY + n for n in range(300)), *(DAY + n for n in range(100)))
    await asyncio.gather(*(gateway.retention.look() for gateway in gateways))
    assert len(await ids(store)) == 100
    assert sum(gateway.count(Why.AGE) or 0 for gateway in gateways) == 300


async def test_a_store_that_is_down_is_asked_again_at_the_next_look_and_looks_are_spread() -> None:
    store = Kept()
    store.refusals = 1
    gateway = Gateway(store)
    await ended_ago(store, gateway.clock, 8 * DAY)
    seen = set()
    for expected in ([f"op_{8 * DAY:g}"], [], []):
        gateway.looked.clear()
        running = asyncio.create_task(gateway.retention.run())
        await gateway.looked.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await ids(store) == expected
        seen.add(gateway.pauses[-1])
    assert all(0.7 * LOOK_EVERY_S < pause < 1.3 * LOOK_EVERY_S for pause in seen)
    assert len(seen) == 3, "gateways that were started at once do not look at once for ever"


async def test_a_step_that_fails_leaves_what_went_before_it_gone() -> None:
    store = Kept()
    gateway = Gateway(store)
    await ended_ago(store, gateway.clock, *(8 * DAY + n for n in range(150)))
    sleep = gateway.retention._sleep

    async def refuse_after_the_first(seconds: float) -> None:
        store.refusals = 1
        gateway.retention._sleep = sleep
        await sleep(seconds)

    gateway.retention._sleep = refuse_after_the_first
    with pytest.raises(JournalUnavailable):
        await gateway.retention.look()
    assert len(await ids(store)) == 50
    await gateway.retention.look()
    assert await ids(store) == []
    assert await store.get(OperationId("op_1")) is None


@pytest.mark.parametrize(
    ("operations", "used", "expected"),
    [
        (100, None, None),
        (101, None, Excess(Why.OPERATIONS, 1)),
        (100, 1_000, None),
        (100, 2_000, Excess(Why.BYTES, 50)),
        (1, 1_000_000, Excess(Why.BYTES, 1)),
        (0, 1_000_000, None),
        (150, 2_000, Excess(Why.OPERATIONS, 50)),
    ],
)
def test_what_is_too_much(operations: int, used: int | None, expected: Excess | None) -> None:
    assert find_excess(RetentionPolicy(DAY, 100, 1_000), operations, used) == expected


def test_each_store_has_limits_of_its_own_where_the_file_names_none() -> None:
    in_memory = build_retention_policy(Journal(store="memory"))
    in_a_file = build_retention_policy(Journal())
    assert in_a_file == RetentionPolicy(7 * DAY, 1_000_000, 4 << 30)
    assert in_memory == RetentionPolicy(7 * DAY, 50_000, 256 << 20)
    assert build_retention_policy(Journal(), Jobs(keep_results=3_600.0)).keep_results_s == 3_600.0
    named = Journal(store="memory", max_operations=2_000, max_bytes=1 << 30, retention=3_600.0)
    assert build_retention_policy(named) == RetentionPolicy(3_600.0, 2_000, 1 << 30)


async def test_results_of_jobs_go_when_their_time_is_over_and_the_jobs_stay() -> None:
    store = Kept()
    gateway = Gateway(store, RetentionPolicy(7 * DAY, 1_000_000, keep_results_s=3_600.0))
    seat, wall = await store.take_seat("gw"), gateway.clock.wall()
    for age in (3_599.0, 3_601.0):
        job = await claim(store, await submit(store, f"op_{age:g}"), seat)
        await begin_run(store, job, seat)
        await store.append([ended(job.job_id, at=wall - age)], FIRST_TOKEN, ANSWER)
        await store.finish_job(job.job_id, job.token, job_end(at=wall - age))
    await gateway.retention.look()
    assert await store.read_answer(OperationId("op_3599")) == ANSWER
    assert await store.read_answer(OperationId("op_3601")) is None
    assert await store.read_job(OperationId("op_3601")) is not None
    await Gateway(store, WEEK, gateway.clock).retention.look()
    assert await store.read_answer(OperationId("op_3599")) == ANSWER, "nothing is said of results"
    gateway.clock.advance(2.0)
    await gateway.retention.look()
    assert await store.read_answer(OperationId("op_3599")) is None
