"""Jobs at Redis: answers that are lost, what comes between a look and its write, keys of others or left."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_scripts import Script
from envoy_ext.adapters.journal_redis_way import RedisPlace
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, RunNotOver, SeatLost
from envoy_ext.domain.ids import FencingToken, OperationId
from envoy_ext.domain.job import UNFINISHED, Job, JobBounds, JobsFull, JobState
from tests.support.jobs import REQUEST, ROOM, begin_run, claim, end_run, job_end, new_job, submit
from tests.support.journals import ANSWER, ended_job, leave, use_everything, use_jobs
from tests.support.losing_relay import LosingRelay
from tests.support.records import START, begun
from tests.support.redis_server import RedisServer, redis_server

JOB = OperationId("op_1")


def at(port: int) -> RedisPlace:
    return RedisPlace(nodes=(("127.0.0.1", port),))


@pytest.fixture
async def journal(redis: RedisServer, prefix: str) -> AsyncIterator[RedisJournal]:
    opened = await RedisJournal.open(at(redis.port), prefix)
    yield opened
    await opened.close()


@pytest.mark.parametrize("lane", ["_reads", "_writes"])
async def test_every_call_whose_answer_is_lost_has_counted_once(
    behind: RedisJournal, relay: LosingRelay, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    lane_of_calls = getattr(behind, lane)
    send = lane_of_calls._send
    lost: list[Any] = []

    async def lose_each_first_answer(calls: Any, *, known: bool) -> Any:
        script = calls[0].script
        wanted = script is not None and script.name in ("submit_job", "look_at_job", "put_job")
        if wanted and calls[0] not in lost:
            lost.append(calls[0])
            relay.lose = 1
        return await send(calls, known=known)

    first, second = await behind.take_seat("gw"), await behind.take_seat("gw")
    with monkeypatch.context() as patch:
        patch.setattr(lane_of_calls, "_send", lose_each_first_answer)
        job = await submit(behind)
        assert (await behind.count_jobs()).unfinished == 1
        running = await claim(behind, job, first)
        assert (running.token, running.run_ids) == (1, (JOB,))
        await leave(behind, first)
        taken = await behind.take_over_job(JOB, running.token, second)
        assert taken.token == 2
        released = await behind.release_job(JOB, taken.token, START)
        assert released.state is JobState.QUEUED
        again = await claim(behind, released, second, "op_2")
        assert (again.token, again.run_ids) == (3, ("op_2",))
        assert (await behind.cancel_job(JOB, START) or job).cancel_requested_at == START
        done = await behind.finish_job(JOB, again.token, job_end())
    assert done.end == job_end()
    assert relay.lost == len(lost) == (7 if lane == "_writes" else 6)
    assert await behind.read_job(JOB) == done
    assert (await behind.count_jobs()).unfinished == 0


async def test_results_that_are_forgotten_without_an_answer_are_no_more_than_was_asked_for(
    behind: RedisJournal, relay: LosingRelay
) -> None:
    seat = await behind.take_seat("gw")
    for number in range(4):
        await ended_job(behind, seat, f"op_{number}")
    relay.lose = 1
    assert await behind.forget_results(START + 1e6, 2) == 2
    assert relay.lost == 1
    answers = [await behind.read_answer(OperationId(f"op_{number}")) for number in range(4)]
    assert answers == [None, None, ANSWER, ANSWER]


async def test_of_claims_at_once_one_wins(redis: RedisServer, prefix: str) -> None:
    gateways = [await RedisJournal.open(at(redis.port), prefix) for _ in range(4)]
    seats = [await gateway.take_seat("gw") for gateway in gateways]
    jobs = [await submit(gateways[0], f"op_{number}") for number in range(10)]
    claims = [
        gateway.claim_job(job.job_id, job.token, seat, job.job_id)
        for job in jobs
        for gateway, seat in zip(gateways, seats, strict=True)
    ]
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    won = [one for one in outcomes if isinstance(one, Job)]
    assert [job.job_id for job in won] == [job.job_id for job in jobs]
    assert {type(one) for one in outcomes} == {Job, NotOwner}
    assert await gateways[0].list_jobs(frozenset({JobState.RUNNING}), 99) == won
    for gateway in gateways:
        await gateway.close()


async def test_gateways_that_submit_at_once_share_the_bounds(redis: RedisServer, prefix: str) -> None:
    gateways = [await RedisJournal.open(at(redis.port), prefix) for _ in range(2)]
    bounds = JobBounds(max_jobs=7, max_bytes=2**28)
    submits = [gateways[n % 2].submit_job(new_job(f"op_{n}"), REQUEST, bounds) for n in range(20)]
    outcomes = await asyncio.gather(*submits)
    assert sum(isinstance(one, Job) for one in outcomes) == 7
    assert sum(isinstance(one, JobsFull) for one in outcomes) == 13
    assert (await gateways[1].count_jobs()).unfinished == 7
    same = [gateways[n % 2].submit_job(new_job(f"op_k{n}", key_hash="k"), REQUEST, ROOM) for n in range(20)]
    assert len({one.job_id for one in await asyncio.gather(*same) if isinstance(one, Job)}) == 1
    for gateway in gateways:
        await gateway.close()


@pytest.mark.parametrize("what", ["run begins", "owner is back", "seat is lost", "job is cancelled"])
async def test_what_happens_between_the_look_and_the_write_is_seen(
    journal: RedisJournal, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    seat = await journal.take_seat("gw")
    other = await journal.take_seat("gw")
    job = await submit(journal)
    running = await claim(journal, job, seat) if what != "seat is lost" else job
    read = journal._read

    async def look_late(script: Script, *words: Any) -> Any:
        found = await read(script, *words)
        monkeypatch.undo()
        if what == "run begins":
            await begin_run(journal, running, seat)
        elif what == "seat is lost":
            await leave(journal, other)
        else:
            await journal.cancel_job(JOB, START + 3)
        return found

    monkeypatch.setattr(journal, "_read", look_late)
    if what == "run begins":
        with pytest.raises(RunNotOver):
            await journal.release_job(JOB, running.token, START)
        assert await journal.read_job(JOB) == running
    elif what == "seat is lost":
        with pytest.raises(SeatLost):
            await claim(journal, job, other)
        assert await journal.read_job(JOB) == job
    else:
        released = await journal.release_job(JOB, running.token, START + 4)
        assert released.state is JobState.CANCELLED, "it was asked for in between"


async def test_jobs_leave_no_key_behind(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server, server.ask() as asked:
        journal = await RedisJournal.open(at(server.port))
        await use_everything(journal, "op_0")
        await use_jobs(journal, "op_1")
        before = set(asked.keys("*"))
        assert {b"{envoy-ext}:jobs", b"{envoy-ext}:jobs:keys", b"{envoy-ext}:job:op_1"} <= before
        assert b"{envoy-ext}:jobs:counts" not in before, "there is no job that has not ended"
        assert await journal.forget(START + 1e6, 99) == 4
        assert set(asked.keys("*")) == {b"{envoy-ext}:journal", b"{envoy-ext}:seats"}
        await journal.close()


async def test_a_request_is_gone_from_the_server_with_its_job(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server, server.ask() as asked:
        journal = await RedisJournal.open(at(server.port))
        await submit(journal)
        key = b"{envoy-ext}:job:op_1"
        assert REQUEST.body in asked.hget(key, "request")
        await journal.cancel_job(JOB, START)
        assert not any(REQUEST.body in value for value in asked.hgetall(key).values())
        await journal.close()


async def test_a_journal_with_jobs_is_none_for_a_release_without_them(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server, server.ask() as asked:
        journal = await RedisJournal.open(at(server.port))
        await use_everything(journal)
        assert asked.hget("{envoy-ext}:journal", "schema") == b"1"
        await submit(journal, "op_9")
        assert asked.hget("{envoy-ext}:journal", "schema") == b"2"
        again = await RedisJournal.open(at(server.port))
        assert [job.job_id for job in await again.list_jobs(UNFINISHED, 9)] == ["op_9"]
        await again.close()
        await journal.close()


@pytest.mark.parametrize(
    "key",
    [
        *("jobs", "jobs:queued", "jobs:running", "jobs:keys", "jobs:counts", "jobs:answered"),
        *("job:op_1", "uses", "ended", "seats", "keys", "op:op_1"),
    ],
)
async def test_a_key_of_a_wrong_type_ends_a_call_before_it_has_written(tmp_path: Path, key: str) -> None:
    with redis_server(tmp_path / "redis") as server, server.ask() as asked:
        journal = await RedisJournal.open(at(server.port))
        seat = await journal.take_seat("gw")
        job = await submit(journal, key_hash="key", ledger_id=OperationId("op_0"))
        running = await claim(journal, job, seat)
        await begin_run(journal, running, seat)
        await end_run(journal, running)
        name = f"{{envoy-ext}}:{key}"
        asked.delete(name)
        asked.set(name, "another program's")
        before = {one: asked.dump(one) for one in asked.keys("*")}
        other = new_job("op_2", key_hash="key-2", ledger_id=OperationId("op_0"))
        failed = 0
        for work in (
            lambda: journal.submit_job(other, REQUEST, ROOM),
            lambda: journal.finish_job(JOB, running.token, job_end()),
            lambda: journal.release_job(JOB, running.token, START),
        ):
            (outcome,) = await asyncio.gather(work(), return_exceptions=True)
            after = {one: asked.dump(one) for one in asked.keys("*")}
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, JournalUnavailable)
                assert "WRONGTYPE" in str(outcome)
                assert after == before
                failed += 1
            before = after
        assert failed > 0
        await journal.close()


async def test_a_full_memory_refuses_jobs_and_lets_them_end_by_forgetting(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server, server.ask() as asked:
        journal = await RedisJournal.open(at(server.port))
        seat = await journal.take_seat("gw")
        job = await submit(journal)
        running = await claim(journal, job, seat)
        done = await journal.finish_job(JOB, running.token, job_end())
        asked.config_set("maxmemory", "1")
        with pytest.raises(JournalUnavailable, match="OOM"):
            await submit(journal, "op_2")
        assert (await journal.count_jobs()).unfinished == 0
        assert await journal.forget_results(START + 1e6, 9) == 1
        assert await journal.read_job(JOB) == done
        assert await journal.forget(START + 1e6, 9) == 1
        asked.config_set("maxmemory", "0")
        assert (await submit(journal, "op_2")).number == 2
        with pytest.raises(NotOwner):
            await journal.begin(begun("op_2", job_id=OperationId("op_2")), seat)
        assert await journal.finish_job(OperationId("op_2"), FencingToken(0), job_end())
        await journal.close()
