"""The Redis journal on a bad day: answers that are lost, servers that stop, restart, or take no writes."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from envoy_ext.adapters import (
    journal_redis_lane,
)
from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_faults import explain_fault
from envoy_ext.adapters.journal_redis_lane import Lane
from envoy_ext.adapters.journal_redis_scripts import Script
from envoy_ext.adapters.journal_redis_way import Login, RedisPlace
from envoy_ext.domain.errors import JournalUnavailable, SeatLost
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.tool_calls import CallEnd, CallGranted, CallRefusal, CallRefused, CallState, NewCall
from tests.support.journals import keep, leave, use_everything
from tests.support.losing_relay import LosingRelay
from tests.support.records import START, attempt_ended, attempt_started, begun, ended, fold, owned, whole_life
from tests.support.redis_server import RedisServer, redis_server

SECRET = "s3cret-detail"
OPERATION = OperationId("op_1")


def at(port: int, **more: object) -> RedisPlace:
    return RedisPlace(nodes=(("127.0.0.1", port),), **more)  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may stop and change."""
    with redis_server(tmp_path / "redis", appendonly="yes", appendfsync="always") as one:
        yield one


@pytest.fixture
async def journal(server: RedisServer) -> AsyncIterator[RedisJournal]:
    opened = await RedisJournal.open(at(server.port))
    yield opened
    await opened.close()


async def refusal(place: RedisPlace, prefix: str = "envoy-ext") -> str:
    with pytest.raises(JournalUnavailable) as caught:
        await RedisJournal.open(place, prefix)
    return str(caught.value)


async def test_the_kernel_sends_nothing_later_of_what_was_given_up(journal: RedisJournal) -> None:
    """A begin that arrives when a cut network heals would be of an operation that nobody runs."""
    client = await journal._way.find()
    (connection,) = client.connection_pool._available_connections
    own = connection._writer.get_extra_info("socket")
    limit_ms = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert 0 < limit_ms <= journal_redis_lane.CALL_S * 1000


# --- answers that are lost ------------------------------------------------------------------


async def test_a_call_whose_answer_is_lost_is_sent_again_and_counts_once(
    behind: RedisJournal, relay: LosingRelay
) -> None:
    first = await behind.take_seat("gw")
    assert first.startswith("gw/1-")
    record = begun(key_hash="key")
    relay.lose = 2
    assert await behind.begin(record, first) is None
    relay.lose = 1
    await behind.append([attempt_started()], FIRST_TOKEN)
    assert await behind.get(OPERATION) == fold(record, owned(first), attempt_started())
    relay.lose = 1
    await behind.beat(first, 2)
    relay.lose = 1
    assert await behind.remove_seat(first, 2)
    second = await behind.take_seat("gw")
    relay.lose = 1
    taken = await behind.take_over(OPERATION, FIRST_TOKEN, second, START)
    assert (taken.owner, taken.token) == (second, 2)
    relay.lose = 1
    assert await behind.get(OPERATION) == taken
    assert relay.lost == 7
    assert [one.operation_id for one in await behind.list_recent(9)] == ["op_1"]


async def test_a_seat_whose_answer_is_lost_is_given_out_to_nobody(
    behind: RedisJournal, relay: LosingRelay
) -> None:
    relay.lose = 1
    seat = await behind.take_seat("gw")
    lost, *kept = sorted(await behind.read_seats())
    assert kept == [seat]
    assert lost != seat


def lose_the_answers_of(lane: Lane, relay: LosingRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on each call of this lane is done, and its first answer lost."""
    submit = lane.submit

    def lose(*words: Any) -> asyncio.Future[Any]:
        relay.lose = 1
        return submit(*words)

    monkeypatch.setattr(lane, "submit", lose)


@pytest.mark.parametrize("lane", ["_reads", "_writes"])
async def test_a_tool_call_whose_answer_is_lost_is_let_through_once(
    behind: RedisJournal, relay: LosingRelay, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    await keep(behind, [begun(), attempt_started()])
    wanted = NewCall(OPERATION, AttemptId("att_1"), START, "mail", "print", "sha", False, False)
    with monkeypatch.context() as patch:
        lose_the_answers_of(getattr(behind, lane), relay, patch)
        claim = await behind.begin_call(wanted)
    assert relay.lost == 1
    assert isinstance(claim, CallGranted)
    assert claim.call.ordinal == 1
    assert await behind.read_calls(OPERATION) == (claim.call,)
    another = await behind.begin_call(wanted)
    assert isinstance(another, CallGranted)
    assert another.call.ordinal == 2


@pytest.mark.parametrize("lane", ["_reads", "_writes"])
async def test_the_end_of_a_tool_call_whose_answer_is_lost_has_counted(
    behind: RedisJournal, relay: LosingRelay, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    await keep(behind, [begun(), attempt_started()])
    wanted = NewCall(OPERATION, AttemptId("att_1"), START, "mail", "print", "sha", False, False)
    claim = await behind.begin_call(wanted)
    assert isinstance(claim, CallGranted)
    end = CallEnd(claim.call.call_id, claim.call.grants, START, CallState.RECORDED, 200)
    with monkeypatch.context() as patch:
        lose_the_answers_of(getattr(behind, lane), relay, patch)
        assert await behind.end_call(OPERATION, end, KeptAnswer(200, (), b"sent"))
    assert relay.lost == 1
    assert await behind.read_result(OPERATION, claim.call.call_id) == KeptAnswer(200, (), b"sent")
    assert not await behind.end_call(OPERATION, end, KeptAnswer(200, (), b"another"))


async def test_a_forgetting_whose_answer_is_lost_removes_no_more_than_was_asked_for(
    behind: RedisJournal, relay: LosingRelay
) -> None:
    for number in range(6):
        await keep(behind, whole_life(f"op_{number}"))
    relay.lose = 1
    assert await behind.forget(START + 1e6, 2) == 2
    assert relay.lost == 1
    assert (await behind.measure()).operations == 4


async def test_calls_of_one_ledger_at_once_are_all_there(redis: RedisServer, prefix: str) -> None:
    gateways = [await RedisJournal.open(at(redis.port), prefix) for _ in range(2)]
    await keep(gateways[0], [begun(), attempt_started()])
    wanted = [
        NewCall(OPERATION, AttemptId("att_1"), START, "mail", f"print {number}", "sha", False, False)
        for number in range(20)
    ]
    claims = await asyncio.gather(*(gateways[n % 2].begin_call(call) for n, call in enumerate(wanted)))
    assert {type(claim) for claim in claims} == {CallGranted}
    calls = await gateways[0].read_calls(OPERATION)
    assert {call.fingerprint for call in calls} == {call.fingerprint for call in wanted}
    for gateway in gateways:
        await gateway.close()


async def test_what_happens_between_the_look_and_the_write_of_a_call_is_seen(
    journal: RedisJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(journal, [begun(), attempt_started()])
    read = journal._read

    async def look_late(script: Script, *words: Any) -> Any:
        found = await read(script, *words)
        monkeypatch.undo()
        await journal.append([ended()], FIRST_TOKEN)
        return found

    monkeypatch.setattr(journal, "_read", look_late)
    wanted = NewCall(OPERATION, AttemptId("att_1"), START, "mail", "print", "sha", False, False)
    assert await journal.begin_call(wanted) == CallRefused(CallRefusal.FENCED)
    assert await journal.read_calls(OPERATION) == ()


async def test_a_server_whose_answers_all_get_lost_is_given_up(relay: LosingRelay, prefix: str) -> None:
    journal = await RedisJournal.open(at(relay.port), prefix, call_s=1.0)
    seat = await journal.take_seat("gw")
    relay.lose = 10_000
    with pytest.raises(JournalUnavailable, match=rf"redis://127.0.0.1:{relay.port} cannot be written: "):
        await journal.begin(begun(), seat)
    relay.lose = 0
    assert await journal.begin(begun(), seat) is None
    await journal.close()


# --- servers that stop ----------------------------------------------------------------------


async def test_a_server_that_stands_still_is_given_up_in_time_and_goes_on_later(server: RedisServer) -> None:
    journal = await RedisJournal.open(at(server.port), call_s=1.0)
    seat = await keep(journal, [begun("op_before")])
    server.signal(signal.SIGSTOP)
    try:
        calls = [journal.begin(begun(f"op_{number}"), seat) for number in range(300)]
        outcomes = await asyncio.gather(*calls, journal.get(OPERATION), return_exceptions=True)
    finally:
        server.signal(signal.SIGCONT)
    assert {type(outcome) for outcome in outcomes} == {JournalUnavailable}
    assert all("no answer in time" in str(outcome) for outcome in outcomes)
    await keep(journal, [begun("op_after")], seat)
    assert await journal.get(OperationId("op_299")) is None, "its time was over before it was its turn"
    await journal.close()


async def test_a_server_that_is_killed_under_load_has_all_that_it_acknowledged(
    server: RedisServer, journal: RedisJournal
) -> None:
    seat = await journal.take_seat("gw")
    acknowledged: set[str] = set()
    refused = 0

    async def live(lane: int) -> None:
        nonlocal refused
        for number in range(60):
            try:
                await journal.begin(begun(f"op_{lane}_{number}"), seat)
                acknowledged.add(f"op_{lane}_{number}")
            except JournalUnavailable:
                refused += 1

    lanes = [asyncio.create_task(live(lane)) for lane in range(8)]
    for rounds in (40, 120, 240):
        while len(acknowledged) < rounds:
            await asyncio.sleep(0)
        server.kill()
        await asyncio.to_thread(server.start)
    await asyncio.gather(*lanes)
    assert len(acknowledged) + refused == 480
    assert acknowledged <= {one.operation_id for one in await journal.list_recent(1_000)}
    await journal.append([ended("op_0_0")], FIRST_TOKEN)


async def test_the_last_word_of_a_server_is_what_is_told(server: RedisServer, journal: RedisJournal) -> None:
    seat = await journal.take_seat("gw")
    server.kill()
    with (server.directory / "redis.conf").open("a") as file:
        file.write("requirepass another-pa55\n")
    call = asyncio.create_task(journal.begin(begun(), seat))
    async with asyncio.timeout(10):
        while journal._writes._fault is None:
            await asyncio.sleep(0)
    server.start(wait=False)
    with pytest.raises(JournalUnavailable, match="NOAUTH: it asks for a password"):
        await call


async def test_a_server_that_has_forgotten_everything_gives_no_seat_twice(
    redis: RedisServer, prefix: str
) -> None:
    """So does one whose disk is a second behind, or one that followed another too early."""
    journal = await RedisJournal.open(at(redis.port), prefix)
    before = await keep(journal, [begun()])
    with redis.ask() as asked:
        asked.delete(*asked.keys(f"{{{prefix}}}:*"))
    with pytest.raises(SeatLost):
        await journal.beat(before, 2)
    after = await keep(journal, [begun("op_2")])
    assert after != before
    assert after.partition("-")[0] == before.partition("-")[0], "the number is, the name is not"
    assert [one.operation_id for one in await journal.list_recent(9)] == ["op_2"]
    await journal.close()


async def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(
    server: RedisServer, journal: RedisJournal
) -> None:
    seat = await journal.take_seat("gw")
    with server.ask() as asked:
        for number in range(3):
            asked.script_flush()
            calls = [journal.begin(begun(f"op_{number}_{n}"), seat) for n in range(20)]
            await asyncio.gather(*calls, journal.beat(seat, number + 2))
    assert len(await journal.list_recent(100)) == 60
    assert await journal.read_seats() == {seat: 4}


async def test_a_call_that_is_cancelled_while_it_waits_is_done_and_troubles_nobody(
    server: RedisServer, journal: RedisJournal
) -> None:
    seat = await keep(journal, [begun(f"op_{number}") for number in range(20)])
    server.signal(signal.SIGSTOP)
    try:
        appends = [
            asyncio.create_task(journal.append([ended(f"op_{number}")], FIRST_TOKEN)) for number in range(20)
        ]
        await asyncio.sleep(0)
        for task in appends[::2]:
            task.cancel()
        await asyncio.sleep(0)
    finally:
        server.signal(signal.SIGCONT)
    await asyncio.gather(*appends[1::2])
    await leave(journal, seat)
    assert [operation async for operation in journal.orphaned()] == []


async def test_a_thousand_calls_at_once_share_two_connections(redis: RedisServer, prefix: str) -> None:
    async with LosingRelay(redis.port) as relay:
        journal = await RedisJournal.open(at(relay.port), prefix, call_s=60.0)
        seat = await journal.take_seat("gw")
        calls = [journal.begin(begun(f"op_{number}"), seat) for number in range(1_000)]
        await asyncio.gather(*calls, *(journal.get(OPERATION) for _ in range(1_000)))
        assert relay.connections == 2
        assert len(await journal.list_recent(2_000)) == 1_000
        await journal.close()


async def test_calls_are_refused_when_the_server_is_too_far_behind(
    server: RedisServer, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_redis_lane, "MAX_QUEUED_CALLS", 5)
    seat = await journal.take_seat("gw")
    server.signal(signal.SIGSTOP)
    try:
        tasks = [asyncio.create_task(journal.begin(begun(f"op_{n}"), seat)) for n in range(30)]
        await asyncio.sleep(0)
        refused = [task for task in tasks if task.done()]
    finally:
        server.signal(signal.SIGCONT)
    assert len(refused) == 25
    assert all("5 calls behind" in str(task.exception()) for task in refused)
    await asyncio.gather(*(task for task in tasks if task not in refused))
    assert len(await journal.list_recent(100)) == 5


# --- servers that take no writes ------------------------------------------------------------


async def says(journal: RedisJournal, *parts: str) -> None:
    """A write is refused with these words, without what it holds, and leaves nothing behind."""
    before = await journal.get(OPERATION)
    with pytest.raises(JournalUnavailable) as caught:
        await journal.append([attempt_ended(detail=SECRET)], FIRST_TOKEN)
    said = str(caught.value)
    assert "cannot be written" in said
    for part in parts:
        assert part in said
    assert SECRET not in said
    assert await journal.get(OPERATION) == before


async def test_a_full_memory_is_named_with_its_mend(server: RedisServer, journal: RedisJournal) -> None:
    await keep(journal, [begun()])
    with server.ask() as asked:
        asked.config_set("maxmemory", "1")
        await says(journal, "OOM: its memory is full (maxmemory): give it more")
        assert "OOM" in await refusal(at(server.port))
        asked.config_set("maxmemory", "0")
    await journal.append([ended()], FIRST_TOKEN)


async def test_a_full_memory_can_be_helped_by_forgetting(server: RedisServer, journal: RedisJournal) -> None:
    for number in range(3):
        await keep(journal, whole_life(f"op_{number}", key_hash="key"))
    with server.ask() as asked:
        asked.config_set("maxmemory", "1")
        assert await journal.forget(START + 1e6, 10) == 3
        asked.config_set("maxmemory", "0")
    assert (await journal.measure()).operations == 0


async def test_what_is_forgotten_leaves_no_key_behind(server: RedisServer, journal: RedisJournal) -> None:
    with server.ask() as asked:
        for operation in ("op_1", "op_2"):
            await use_everything(journal, operation, key=operation)
        repeat = begun("op_3", key_hash="op_2", ledger_id=OperationId("op_2"))
        await journal.begin(repeat, await journal.take_seat("gw"), OperationId("op_2"))
        before = {one for one in asked.keys("*") if b"op_3" in one}
        assert await journal.forget(START + 1e6, 1_000) == 2
        left = {name.decode().removeprefix("{envoy-ext}:") for name in set(asked.keys("*")) - before}
        of_one_that_runs = {"begun", "created", "keys", "uses", "owners", "calls:op_2", "results:op_2"}
        seat = (await journal.read_seats()).popitem()[0]
        assert left - {f"open:{seat}"} == {"journal", "seats"} | of_one_that_runs
        await journal.append([ended("op_3")], FIRST_TOKEN)
        assert await journal.forget(START + 1e6, 1_000) == 1
        assert set(asked.keys("*")) == {b"{envoy-ext}:journal", b"{envoy-ext}:seats"}


async def test_a_server_that_became_a_replica_is_named_until_it_is_a_master_again(
    server: RedisServer,
) -> None:
    journal = await RedisJournal.open(at(server.port), call_s=1.0)
    await keep(journal, [begun()])
    with server.ask() as asked:
        asked.replicaof("127.0.0.1", "1")
        await says(journal, "READONLY: it is a replica, which takes no writes: name the master")
        assert "READONLY" in await refusal(at(server.port))
        append = asyncio.create_task(journal.append([ended()], FIRST_TOKEN))
        asked.replicaof("NO", "ONE")
        await append
    await journal.close()


async def test_too_few_replicas_for_the_servers_own_rule_are_named(
    server: RedisServer, journal: RedisJournal
) -> None:
    await keep(journal, [begun()])
    with server.ask() as asked:
        asked.config_set("min-replicas-to-write", "1")
        await says(journal, "NOREPLICAS", "min-replicas-to-write")


async def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis", enable_protected_configs="yes") as server,
        server.ask() as asked,
    ):
        journal = await RedisJournal.open(at(server.port))
        await keep(journal, [begun()])
        gone = tmp_path / "gone"
        gone.mkdir()
        asked.config_set("dir", str(gone))
        asked.config_set("save", "1 1")
        gone.rmdir()
        asked.bgsave()
        async with asyncio.timeout(10):
            while asked.info("persistence")["rdb_last_bgsave_status"] != "err":
                await asyncio.sleep(0.01)
        await says(journal, "MISCONF: it cannot write to its disk")
        await journal.close()


async def test_keys_of_another_program_are_named_and_left_alone(server: RedisServer) -> None:
    with server.ask() as asked:
        asked.set("{envoy-ext}:journal", SECRET)
        said = await refusal(at(server.port))
        assert "WRONGTYPE: another program's data" in said
        assert "name another journal.prefix" in said
        assert SECRET not in said
        assert asked.keys("*") == [b"{envoy-ext}:journal"]


@pytest.mark.parametrize(
    "key", ["begun", "created", "owners", "keys", "uses", "records:op_1", "op:op_1", "seats", "open:SEAT"]
)
async def test_a_key_of_a_wrong_type_ends_a_call_before_it_has_written(
    server: RedisServer, journal: RedisJournal, key: str
) -> None:
    seat = await journal.take_seat("gw")
    with server.ask() as asked:
        name = "{envoy-ext}:" + key.replace("SEAT", seat)
        asked.delete(name)
        asked.set(name, "another program's")
        before = {one: asked.dump(one) for one in asked.keys("*")}
        with pytest.raises(JournalUnavailable, match="WRONGTYPE"):
            await journal.begin(begun(key_hash="key"), seat)
        assert {one: asked.dump(one) for one in asked.keys("*")} == before


async def test_the_journal_of_a_later_release_is_left_alone(
    server: RedisServer, journal: RedisJournal
) -> None:
    seat = await keep(journal, [begun()])
    with server.ask() as asked:
        asked.hset("{envoy-ext}:journal", "schema", "3")
        before = {one: asked.dump(one) for one in asked.keys("*")}
        words = "it has schema 3, this program knows up to 2: run the later release that wrote it"
        assert words in await refusal(at(server.port))
        with pytest.raises(JournalUnavailable, match="schema 3"):
            await journal.begin(begun("op_2"), seat)
        with pytest.raises(JournalUnavailable, match="schema 3"):
            await journal.append([ended()], FIRST_TOKEN)
        with pytest.raises(JournalUnavailable, match="schema 3"):
            await journal.list_recent(5)
        assert {one: asked.dump(one) for one in asked.keys("*")} == before


@pytest.mark.parametrize(
    "body", [b'{"v":2,"kind":"operation_begun"}', b'{"v":1,"kind":"moved"}', b"not json"]
)
async def test_a_record_that_cannot_be_read_is_never_passed_over(
    server: RedisServer, journal: RedisJournal, body: bytes
) -> None:
    await keep(journal, [begun()])
    with server.ask() as asked:
        asked.rpush("{envoy-ext}:records:op_1", body)
    with pytest.raises(JournalUnavailable, match="a journal record"):
        await journal.get(OPERATION)


@pytest.mark.parametrize(
    "answer",
    [
        f"unknown command 'EVALSHA', with args beginning with: 'sha' '1' '{SECRET}'",
        f"WRONGTYPE Operation against a key holding the wrong kind of value {SECRET}",
    ],
)
def test_an_answer_that_repeats_what_was_sent_is_not_passed_on(answer: str) -> None:
    said = explain_fault(ResponseError(answer))
    assert answer[:9] in said
    assert SECRET not in said


# --- servers that are not to be used --------------------------------------------------------


async def test_nobody_there_is_said_with_the_place(server: RedisServer) -> None:
    server.kill()
    said = await refusal(at(server.port))
    assert said.startswith(f"the journal at redis://127.0.0.1:{server.port} cannot be opened: ")
    assert "Connection refused" in said
    assert "see whether it runs, journal.url" in said


async def test_a_host_without_an_address_is_said(server: RedisServer) -> None:
    said = await refusal(RedisPlace(nodes=(("redis.invalid", 6379),)))
    assert said.startswith("the journal at redis://redis.invalid:6379 cannot be opened: ")
    assert "Name or service not known" in said or "Temporary failure in name resolution" in said


async def test_a_wrong_password_is_said_and_never_shown(server: RedisServer) -> None:
    with server.ask() as asked:
        asked.config_set("requirepass", "right-pa55")
    for login in (Login(None, "wrong-pa55"), Login("nobody-here", "wrong-pa55")):
        said = await refusal(at(server.port, login=login))
        assert "WRONGPASS: the user name or the password is wrong: see journal.username" in said
        assert "pa55" not in said
        assert "nobody-here" not in said
        assert "pa55" not in repr(at(server.port, login=login))
    assert "NOAUTH: it asks for a password: set journal.password_file" in await refusal(at(server.port))
    journal = await RedisJournal.open(at(server.port, login=Login(None, "right-pa55")))
    await keep(journal, [begun()])
    await journal.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru"])
async def test_a_server_that_may_drop_records_is_refused(server: RedisServer, policy: str) -> None:
    with server.ask() as asked:
        asked.config_set("maxmemory-policy", policy)
    said = await refusal(at(server.port))
    assert f"its maxmemory-policy is {policy}" in said
    assert "set maxmemory-policy to noeviction" in said


async def test_a_server_that_still_loads_its_data_says_so(tmp_path: Path) -> None:
    slow = {"key_load_delay": "2000", "loading_process_events_interval_bytes": "1024"}
    with redis_server(tmp_path / "redis", appendonly="yes", **slow) as server:
        with server.ask() as asked:
            asked.mset({f"key-{number}": "x" for number in range(2_000)})
            asked.bgrewriteaof()
            async with asyncio.timeout(20):
                while asked.info("persistence")["aof_rewrite_in_progress"]:
                    await asyncio.sleep(0.01)
        server.kill()
        server.start(wait=False)
        async with asyncio.timeout(20):
            while "LOADING" not in (said := await refusal(at(server.port))):
                assert "refused" in said or "in time" in said
                await asyncio.sleep(0.01)
        assert "it is still loading its data: wait until it has started" in said
