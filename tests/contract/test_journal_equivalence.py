"""Whatever is asked of them, in whatever order, memory, SQLite and Redis give equal answers."""

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_way import RedisPlace
from envoy_ext.adapters.journal_sqlite import SqliteJournal, SqliteJournalReader
from envoy_ext.domain.errors import NotOwner, SeatLost
from envoy_ext.domain.ids import FencingToken, SeatId
from envoy_ext.ports import Journal
from tests.support.record_strategies import CALLERS, KEY_HASHES, OPERATION_IDS, PATHS, appended, begins
from tests.support.redis_server import RedisServer

EXAMPLES = itertools.count(1)
Call = Callable[[Journal], Awaitable[object]]

_operations = st.sampled_from(OPERATION_IDS)
_seats = st.sampled_from([SeatId(f"gw/{number}") for number in range(1, 4)])
_tokens = st.integers(min_value=0, max_value=3).map(FencingToken)
_numbers = st.integers(min_value=1, max_value=4)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """One call that writes, with few enough names to meet what is there."""
    operation, seat, token = draw(_operations), draw(_seats), draw(_tokens)
    match draw(st.sampled_from(["begin", "begin", "append", "append", "take over", "sit", "beat", "remove"])):
        case "begin":
            begun = draw(begins(st.just(operation)))
            after = draw(st.none() | _operations)
            return lambda journal: journal.begin(begun, seat, after)
        case "append":
            some = draw(st.lists(appended(st.just(operation)), max_size=3))
            return lambda journal: journal.append(some, token)
        case "take over":
            return lambda journal: journal.take_over(operation, token, seat, 7.5)
        case "sit":
            return lambda journal: journal.take_seat("gw")
        case "beat":
            number = draw(_numbers)
            return lambda journal: journal.beat(seat, number)
        case _:
            number = draw(_numbers)
            return lambda journal: journal.remove_seat(seat, number)


async def answer_of(journal: Journal, call: Call) -> object:
    try:
        return await call(journal)
    except (NotOwner, SeatLost) as refusal:
        return type(refusal)


async def ask_everything(journal: Journal) -> list[object]:
    """The answers to every question there is about these few operations."""
    answers: list[object] = [await journal.get(operation_id) for operation_id in OPERATION_IDS]
    answers += [
        await journal.find_by_key(caller, path, key_hash)
        for caller in CALLERS
        for path in PATHS
        for key_hash in KEY_HASHES
    ]
    answers += [await journal.list_recent(limit) for limit in (0, 1, 2, 10)]
    answers += [await journal.list_recent(2, before=operation_id) for operation_id in OPERATION_IDS]
    answers.append([operation async for operation in journal.orphaned()])
    answers.append(await journal.read_seats())
    return answers


async def call_and_compare(called: list[Call], path: Path, place: RedisPlace) -> None:
    memory, sqlite = MemoryJournal(), await SqliteJournal.open(path)
    redis = await RedisJournal.open(place, f"equal-{next(EXAMPLES)}", suffix=lambda: "")
    try:
        for call in called:
            expected = await answer_of(memory, call)
            assert await answer_of(sqlite, call) == expected
            assert await answer_of(redis, call) == expected
        answers = await ask_everything(memory)
        assert await ask_everything(sqlite) == answers
        assert await ask_everything(redis) == answers
    finally:
        await sqlite.close()
        await redis.close()
    reader = await SqliteJournalReader.open(path)
    try:
        assert await ask_everything(reader) == answers
    finally:
        await reader.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(calls(), max_size=16).map(lambda some: [lambda journal: journal.take_seat("gw"), *some]))
def test_all_stores_answer_alike(redis: RedisServer, called: list[Call]) -> None:
    place = RedisPlace(nodes=(("127.0.0.1", redis.port),))
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(call_and_compare(called, Path(directory) / "journal.db", place))
