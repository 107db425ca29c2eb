"""What llama.cpp's own pages prove of a request that it should have stopped to work on."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from envoy_ext.worker.engine_kinds import LlamaCppWatch, PortWatch, read_deferred, read_working, wait_stopped
from envoy_ext.worker.engine_port import EnginePort
from tests.support.raw_http import RawExchange, RawServer, build_response

Look = tuple[Sequence[int | None], int | None]
"""Of each slot its task, None for one that works on nothing; and how many wait, None where nobody tells."""

FREE = None


def build_slots(tasks: Sequence[int | None]) -> bytes:
    """As llama.cpp writes it: a slot that is free names the task that it had."""
    slots = [
        {
            "id": number,
            "n_ctx": 2048,
            "is_processing": task is not None,
            "id_task": 7 if task is None else task,
        }
        for number, task in enumerate(tasks)
    ]
    return build_response(json.dumps(slots).encode(), content_type="application/json")


class FakeLlamaCpp:
    """Answers each look with the next page; with the last one for ever."""

    def __init__(self, looks: Sequence[Look]) -> None:
        self.looks = list(looks)
        self.keys: list[str | None] = []

    async def __call__(self, exchange: RawExchange) -> None:
        self.keys.append(exchange.headers.get("authorization"))
        tasks, deferred = self.looks[0]
        if exchange.line.startswith("GET /slots "):
            if len(self.looks) > 1:
                self.looks.pop(0)
            await exchange.send(build_slots(tasks))
        elif deferred is None:
            await exchange.send(build_response(b"{}", status=501))
        else:
            page = f"# TYPE x gauge\nllamacpp:requests_processing 1\nllamacpp:requests_deferred {deferred}\n"
            await exchange.send(build_response(page.encode()))


@pytest.mark.parametrize(
    ("looks", "proofs"),
    [
        pytest.param([([FREE, FREE], 0)], [True], id="nothing works"),
        pytest.param([([FREE, FREE], None)], [True], id="nothing works, without metrics"),
        pytest.param([([5, FREE], 0), ([5, FREE], 0), ([FREE, FREE], 0)], [False, False, True], id="it ends"),
        pytest.param([([5, 6], 0), ([FREE, 6], 0)], [False, False], id="either of two may be ours"),
        pytest.param([([5, 6], 0), ([9, 8], 3)], [False, True], id="what began later is not ours"),
        pytest.param([([5, 6], 0), ([6, 5], 0)], [False, True], id="a task is of its slot"),
        pytest.param([([5, 6], 1), ([9, 8], 1)], [False, False], id="ours may wait for a slot"),
        pytest.param([([5, 6], 1), ([9, 6], 0), ([10, 11], 4)], [False, False, True], id="then it has begun"),
        pytest.param([([5, 6], None), ([9, 8], None)], [False, False], id="who waits is not told"),
        pytest.param([([5, 6], None), ([FREE, FREE], None)], [False, True], id="until nothing works"),
    ],
)
async def test_all_that_may_be_ours_is_waited_for(looks: list[Look], proofs: list[bool]) -> None:
    async with RawServer(FakeLlamaCpp(looks)) as engine:
        port = EnginePort(engine.url)
        watch = LlamaCppWatch(port, {})
        assert [await watch.look() for _ in proofs] == proofs
        await port.close()


@pytest.mark.parametrize(
    "answer", [build_response(b"[]", status=501), build_response(b"Loading", status=503)]
)
async def test_a_server_that_does_not_show_its_slots_proves_nothing(answer: bytes) -> None:
    async with RawServer(answer) as engine:
        port = EnginePort(engine.url)
        assert not await LlamaCppWatch(port, {}).look()
        await port.close()


@pytest.mark.parametrize("watch_of", [lambda port: LlamaCppWatch(port, {}), PortWatch])
async def test_a_port_that_refuses_is_the_end_of_whatever_ran(watch_of: type[PortWatch]) -> None:
    async with RawServer(build_slots([5])) as engine:
        port = EnginePort(engine.url)
        watch = watch_of(port)
        assert not await watch.look()
    assert await watch.look()
    await port.close()


async def test_the_pages_are_asked_for_with_the_key_that_let_the_request_in() -> None:
    play = FakeLlamaCpp([([5], 0)])
    async with RawServer(play) as engine:
        port = EnginePort(engine.url)
        await LlamaCppWatch(port, {"authorization": "Bearer k"}).look()
        await port.close()
    assert play.keys == ["Bearer k", "Bearer k"]


async def test_many_that_look_at_once_are_one_question_at_a_time_and_none_is_told_of_the_past() -> None:
    play = FakeLlamaCpp([([5], None), ([FREE], None)])
    async with RawServer(play) as engine:
        port = EnginePort(engine.url)
        pages = await asyncio.gather(*(port.ask("/slots", {}) for _ in range(20)))
        assert {read_working(page) for _, page in pages} == {frozenset({(0, 5)})}
        assert len(engine.exchanges) == 1
        first = asyncio.ensure_future(port.ask("/slots", {}))
        await engine.wait_for_requests(2)
        later = [asyncio.ensure_future(port.ask("/slots", {})) for _ in range(20)]
        await asyncio.gather(first, *later)
        assert len(engine.exchanges) == 3, "those that came later have an answer that is later"
        await port.close()


async def test_a_request_that_may_not_have_been_read_yet_is_not_judged() -> None:
    looks: list[float] = []

    class Watch:
        async def look(self) -> bool:
            looks.append(asyncio.get_running_loop().time())
            return True

    began = asyncio.get_running_loop().time()
    await wait_stopped(Watch(), had_s=0.8)
    assert looks[0] - began >= 0.19
    await asyncio.wait_for(wait_stopped(Watch(), had_s=10.0), 10)


@pytest.mark.parametrize(
    ("page", "working"),
    [
        (b"[]", frozenset()),
        (b'[{"id": 0, "is_processing": true, "id_task": 3}]', frozenset({(0, 3)})),
        (b'[{"id": 0, "is_processing": false}]', frozenset()),
        (b'[{"id": 0, "is_processing": true}]', None),
        (b'[{"id": 0, "state": 1}]', None),
        (b'{"error": {}}', None),
        (b"null", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_slots_are_read_or_not_at_all(page: bytes, working: frozenset[tuple[int, int]] | None) -> None:
    assert read_working(page) == working


@pytest.mark.parametrize(
    ("page", "deferred"),
    [
        (b"llamacpp:requests_deferred 2\n", 2),
        (b"# HELP llamacpp:requests_deferred x\nllamacpp:requests_deferred 0\n", 0),
        (b"llamacpp:requests_deferred 1.0", 1),
        (b"llamacpp:requests_deferred nan", None),
        (b"llamacpp:requests_processing 2\n", None),
        (b"", None),
    ],
)
def test_the_count_of_those_that_wait_is_read_or_not_at_all(page: bytes, deferred: int | None) -> None:
    assert read_deferred(page) == deferred
