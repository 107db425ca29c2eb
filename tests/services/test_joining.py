"""Repeats that wait for what still runs: what wakes them, what they get, and what ends their wait."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.services.joiners import JoinPolicy
from tests.support.clock import ManualClock
from tests.support.keyed import SSE, WHOLE, Client, ask, let_tasks_run
from tests.support.outages import FailingJournal
from tests.support.sidecar import BODY, DELTA, Sidecar

WAIT = JoinPolicy(waits=True)


def build_sidecar(joining: JoinPolicy = WAIT, **options: Any) -> Sidecar:
    return Sidecar(joining=joining, **options)


def find_hold(client: Client) -> step.HoldRequest:
    """What Envoy was told of the wait."""
    (hold,) = [one for one in client.sent.replies if isinstance(one, step.HoldRequest)]
    return hold


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def settle(sidecar: Sidecar) -> None:
    """All has ended, and nobody waits any more."""
    async with asyncio.timeout(5):
        await sidecar.exchanges.wait_idle()
        await sidecar.exchanges.aclose()
    assert sidecar.watcher.bugs == []
    assert sidecar.queues.idle


async def test_a_repeat_waits_for_the_end_and_is_given_the_answer() -> None:
    sidecar = build_sidecar()
    first = await ask(sidecar)
    repeats = [await ask(sidecar, request_id=f"req-{n}") for n in range(2, 6)]
    assert [one.told for one in repeats] == [["HoldRequest"]] * 4
    await first.be_answered()
    assert [one.told for one in repeats] == [["HoldRequest", "GiveAnswer"]] * 4
    assert [one.given.request_id for one in repeats] == [f"req-{n}" for n in range(2, 6)]
    assert {one.given.answer.body for one in repeats} == {WHOLE}
    assert len(await sidecar.journal.list_recent(10)) == 1
    await settle(sidecar)


async def test_without_a_wish_or_a_policy_for_it_nobody_waits() -> None:
    sidecar = build_sidecar(JoinPolicy())
    first = await ask(sidecar)
    assert (await ask(sidecar)).told == ["operation_in_progress"]
    wishes = await ask(sidecar, prefer_wait_s=5.0)
    assert find_hold(wishes).preference == "wait=5"
    await first.be_answered()
    assert wishes.told == ["HoldRequest", "GiveAnswer"]


@pytest.mark.parametrize(
    ("policy", "wish", "waits_s", "applied"),
    [
        (JoinPolicy(waits=True, max_wait_s=60.0), None, 60.0, None),
        (JoinPolicy(waits=True, max_wait_s=60.0), 0.0, 0.0, None),
        (JoinPolicy(waits=True, max_wait_s=60.0), 90.0, 60.0, "wait=60"),
        (JoinPolicy(waits=False, max_wait_s=60.0), 7.0, 7.0, "wait=7"),
        (JoinPolicy(waits=True, max_wait_s=0.0), 7.0, 0.0, None),
    ],
)
async def test_the_clients_wish_counts_up_to_the_longest_wait(
    policy: JoinPolicy, wish: float | None, waits_s: float, applied: str | None
) -> None:
    sidecar = build_sidecar(policy, clock=ManualClock())
    first = await ask(sidecar)
    repeat = await ask(sidecar, prefer_wait_s=wish)
    if waits_s == 0:
        assert repeat.told == ["operation_in_progress"]
    else:
        # Behind it the repeat may run and stand in the line, and Envoy's patience is extended once.
        assert find_hold(repeat) == step.HoldRequest(waits_s + 30.0 + 5.0, applied)
    await first.be_answered()
    await settle(sidecar)


async def test_at_the_end_of_its_wait_a_repeat_is_told_to_come_back() -> None:
    sidecar = build_sidecar(JoinPolicy(waits=True, max_wait_s=0.02))
    first = await ask(sidecar)
    repeat = await ask(sidecar)
    await wait_until(lambda: len(repeat.told) == 2)
    error = repeat.error.error
    assert (error.code, error.retry_after_s in (1, 2, 3)) == ("operation_in_progress", True)
    assert error.operation_id == (await sidecar.journal.list_recent(1))[0].operation_id
    await first.be_answered()
    await settle(sidecar)


async def test_its_own_deadline_ends_its_wait() -> None:
    sidecar = build_sidecar()
    first = await ask(sidecar)
    repeat = await ask(sidecar, deadline_s=0.02)
    await wait_until(lambda: len(repeat.told) == 2)
    assert repeat.error.error.code == "deadline_exceeded"
    await first.be_answered()


async def test_a_repeat_that_runs_again_has_what_is_left_of_its_deadline() -> None:
    clock = ManualClock()
    sidecar = build_sidecar(clock=clock)
    first = await ask(sidecar)
    repeat = await ask(sidecar, deadline_s=10.0)
    await first.start()
    clock.advance(7.0)
    await first.leave()
    await wait_until(lambda: repeat.runs)
    await repeat.start()
    assert repeat.live is not None
    assert repeat.live.exchange.next_deadline() == clock.now() + 3.0


async def test_a_repeat_of_what_delivered_nothing_runs_and_the_others_wait_on() -> None:
    sidecar = build_sidecar()
    first = await ask(sidecar)
    repeats = [await ask(sidecar) for _ in range(3)]
    await first.start()
    await first.leave()
    await wait_until(lambda: any(one.runs for one in repeats))
    await let_tasks_run()
    (second,) = [one for one in repeats if one.runs]
    assert sorted(map(len, (one.told for one in repeats))) == [1, 1, 2]
    await second.be_answered()
    assert sorted(one.told[-1] for one in repeats) == ["ForwardBody", "GiveAnswer", "GiveAnswer"]
    await settle(sidecar)


async def test_a_repeat_of_what_was_cut_is_told_so() -> None:
    sidecar = build_sidecar()
    first = await ask(sidecar)
    repeat = await ask(sidecar)
    await first.start()
    await first.begin_answer(DELTA, SSE)
    await first.leave()
    assert repeat.told == ["HoldRequest", "operation_incomplete"]


async def test_those_that_find_no_room_to_wait_do_not_come_back_as_one() -> None:
    sidecar = build_sidecar(JoinPolicy(waits=True, max_waiting=0))
    first = await ask(sidecar)
    refused = [(await ask(sidecar)).error.error.retry_after_s for _ in range(50)]
    assert set(refused) == {1, 2, 3}
    await first.be_answered()


async def test_another_body_does_not_wait() -> None:
    sidecar = build_sidecar()
    first = await ask(sidecar)
    assert (await ask(sidecar, body=BODY + b" ")).told == ["idempotency_key_reused"]
    await first.be_answered()


async def test_a_repeat_that_leaves_frees_its_place_and_starts_nothing() -> None:
    sidecar = build_sidecar(JoinPolicy(waits=True, max_waiting=1))
    first = await ask(sidecar)
    leaves = await ask(sidecar)
    assert (await ask(sidecar)).told == ["operation_in_progress"], "one more than may wait"
    await leaves.leave()
    waits = await ask(sidecar)
    assert waits.told == ["HoldRequest"]
    await first.start()
    await first.leave()
    await wait_until(lambda: waits.runs)
    assert leaves.told == ["HoldRequest"]
    await waits.be_answered()
    await settle(sidecar)


async def test_a_gateway_that_stops_sends_those_that_wait_elsewhere() -> None:
    sidecar = build_sidecar()
    first = await ask(sidecar)
    repeat = await ask(sidecar)
    sidecar.exchanges.start_draining()
    await let_tasks_run()
    assert repeat.told == ["HoldRequest", "draining"]
    await first.be_answered()
    await settle(sidecar)


async def test_a_repeat_that_waits_for_a_look_at_the_journal_is_woken_when_that_fails() -> None:
    """The first of the key is not an exchange yet, and never becomes one."""
    journal = FailingJournal()
    looks = asyncio.Event()

    async def find_by_key(*_key: str) -> None:
        await looks.wait()

    journal.find_by_key, find = find_by_key, journal.find_by_key  # type: ignore[method-assign, assignment]
    sidecar = build_sidecar(journal=journal)
    first = await ask(sidecar)
    journal.find_by_key = find  # type: ignore[method-assign]
    repeat = await ask(sidecar)
    assert repeat.told == ["HoldRequest"]
    first.delivery.left = True
    looks.set()
    await wait_until(lambda: repeat.runs)
    assert first.told == []
    await repeat.be_answered()


async def test_a_repeat_waits_for_what_another_gateway_runs() -> None:
    journal = MemoryJournal(exclusive=False)
    a, b = (build_sidecar(journal=journal, name=name) for name in "ab")
    first = await ask(a)
    repeats = [await ask(b) for _ in range(3)]
    assert [one.told for one in repeats] == [["HoldRequest"]] * 3
    await first.be_answered()
    await wait_until(lambda: all(len(one.told) == 2 for one in repeats))
    assert {one.given.answer.body for one in repeats} == {WHOLE}
    await settle(b)


async def test_only_one_repeat_of_a_gateway_asks_the_store_for_what_another_runs() -> None:
    class Counting(MemoryJournal):
        looks = 0

        async def find_by_key(self, *key: str) -> Any:
            self.looks += 1
            return await super().find_by_key(*key)

    journal = Counting(exclusive=False)
    a, b = (build_sidecar(journal=journal, name=name) for name in "ab")
    first = await ask(a)
    repeats = [await ask(b) for _ in range(20)]
    before = journal.looks
    await asyncio.sleep(0.35)  # three looks of one, and of twenty it would be sixty
    assert 0 < journal.looks - before <= 8
    await first.be_answered()
    await wait_until(lambda: all(len(one.told) == 2 for one in repeats))
    await settle(b)


async def test_a_wait_holds_no_body() -> None:
    sidecar = build_sidecar()
    first = await ask(sidecar)
    repeat = await ask(sidecar)
    held = [
        task.get_coro().cr_frame.f_locals["one"].arrival.body  # type: ignore[union-attr]
        for task in asyncio.all_tasks()
        if "_arrive_with_key" in repr(task.get_coro())
    ]
    assert held == [b""]
    await first.be_answered()
    assert repeat.told[-1] == "GiveAnswer"


async def test_a_key_that_comes_free_while_the_store_is_read_is_not_missed() -> None:
    """Whoever had it says so once, and the repeat does not wait for that yet."""

    class Slow(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.looks = [asyncio.Event(), asyncio.Event()]

        async def find_by_key(self, *key: str) -> Any:
            found = await super().find_by_key(*key)
            if self.looks:
                await self.looks.pop(0).wait()
            return found

    journal = Slow()
    of_first, of_repeat = journal.looks
    sidecar = build_sidecar(journal=journal)
    first, repeat = await ask(sidecar), await ask(sidecar)
    await first.leave()
    of_first.set()
    await let_tasks_run()
    of_repeat.set()
    await wait_until(lambda: repeat.runs)
    assert first.told == []
