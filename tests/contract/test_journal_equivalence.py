"""Whatever is asked of them, in whatever order, memory, SQLite and Redis give equal answers."""

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_way import RedisPlace
from envoy_ext.adapters.journal_sqlite import SqliteJournal, SqliteJournalReader
from envoy_ext.domain.errors import NotOwner, SeatLost
from envoy_ext.domain.ids import AttemptId, FencingToken, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.tool_calls import CallEnd, CallState, NewCall, mint_call_id
from tests.support.record_strategies import CALLERS, KEY_HASHES, OPERATION_IDS, PATHS, appended, begins
from tests.support.redis_server import RedisServer

EXAMPLES = itertools.count(1)
Journal = Any
"""Of a store, or of a reader of one."""
Call = Callable[[Journal], Awaitable[object]]
WRITES = ("begin", "begin", "append", "append", "take over", "sit", "beat", "remove", "call", "end")

_operations = st.sampled_from(OPERATION_IDS)
_seats = st.sampled_from([SeatId(f"gw/{number}") for number in range(1, 4)])
_tokens = st.integers(min_value=0, max_value=3).map(FencingToken)
_numbers = st.integers(min_value=1, max_value=4)
_attempts = st.sampled_from([AttemptId(f"att_{number}") for number in range(3)])
_answers = st.none() | st.builds(KeptAnswer, st.just(200), st.just((("a", "b"),)), st.binary(max_size=4))


@st.composite
def calls(draw: st.DrawFn, kinds: Sequence[str]) -> Call:
    """One call that writes, with few enough names to meet what is there."""
    operation, seat, token = draw(_operations), draw(_seats), draw(_tokens)
    match draw(st.sampled_from(kinds)):
        case "begin":
            begun = draw(begins(st.just(operation)))
            after = draw(st.none() | _operations)
            return lambda journal: journal.begin(begun, seat, after)
        case "append":
            some = draw(st.lists(appended(st.just(operation)), max_size=3))
            answer = draw(_answers)
            return lambda journal: journal.append(some, token, answer)
        case "forget":
            before, limit = draw(st.just(1e10) | st.floats(0, 4e9)), draw(st.integers(-1, 3))
            return lambda journal: journal.forget(before, limit)
        case "call":
            what = draw(st.sampled_from("ab"))
            wanted = NewCall(operation, draw(_attempts), 8.5, "mail", what, "", False, False)
            return lambda journal: journal.begin_call(wanted)
        case "end":
            of = mint_call_id(operation, draw(st.sampled_from("ab")), 1)
            result = draw(_answers)
            state = CallState.UNKNOWN if result is None else CallState.RECORDED
            end = CallEnd(of, 1, 9.5, state)
            return lambda journal: journal.end_call(operation, end, result)
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


async def ask_everything(journal: Journal) -> list[Any]:
    """The answers to every question there is about these few operations."""
    answers: list[Any] = [await journal.get(operation_id) for operation_id in OPERATION_IDS]
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
    answers += [await journal.read_answer(operation_id) for operation_id in OPERATION_IDS]
    for operation_id in OPERATION_IDS:
        calls = await journal.read_calls(operation_id)
        answers.append(calls)
        answers += [await journal.read_result(operation_id, call.call_id) for call in calls]
    answers += [await journal.list_since(at, limit) for at in (0.0, 1e9, 3e9) for limit in (-1, 1, 10)]
    answers += [await journal.list_since(one.created_at, 2, one.operation_id) for one in answers[-1]]
    answers.append((await journal.measure()).operations)
    return answers


async def call_and_compare(called: list[Call], path: Path, place: RedisPlace) -> None:
    memory = MemoryJournal()
    redis = await RedisJournal.open(place, f"equal-{next(EXAMPLES)}", suffix=lambda: "")
    others: list[Journal] = [await SqliteJournal.open(path), redis]
    try:
        for call in called:
            expected = await answer_of(memory, call)
            for other in others:
                assert await answer_of(other, call) == expected
        answers = await ask_everything(memory)
        for other in others:
            assert await ask_everything(other) == answers
    finally:
        for other in others:
            await other.close()
    reader = await SqliteJournalReader.open(path)
    try:
        assert await ask_everything(reader) == answers
    finally:
        await reader.close()


def some_calls(*kinds: str) -> st.SearchStrategy[list[Call]]:
    several = st.lists(calls(kinds), max_size=16)
    return several.map(lambda some: [lambda journal: journal.take_seat("gw"), *some])


@pytest.mark.parametrize("kinds", [WRITES, (*WRITES, "forget", "forget")], ids=["that keep", "that forget"])
def test_all_stores_answer_alike(redis: RedisServer, kinds: tuple[str, ...]) -> None:
    place = RedisPlace(nodes=(("127.0.0.1", redis.port),))

    @settings(max_examples=40, deadline=None)
    @given(some_calls(*kinds))
    def answer_alike(called: list[Call]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(call_and_compare(called, Path(directory) / "journal.db", place))

    answer_alike()
