"""Whether the process that computes has let go: asked behind the abort, and known of a vLLM only."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from envoy_ext.worker.vllm_core import NoWord, VllmCore, find_vllm_core
from tests.worker.engine_client import EngineClient


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_core_is_asked_twice_and_its_answers_are_waited_for() -> None:
    client = EngineClient()
    client.stands_still.set()
    asking = asyncio.ensure_future(VllmCore(client).wait_stopped())
    await wait_for(lambda: client.asked == 1)
    assert not asking.done()
    client.stands_still.clear()
    await asyncio.wait_for(asking, 10)
    assert client.asked == 2


@pytest.mark.parametrize(("steps_at_once", "questions"), [(1, 2), (2, 2), (4, 4)])
async def test_a_core_is_asked_until_each_step_under_way_is_over(steps_at_once: int, questions: int) -> None:
    client = EngineClient(steps_at_once)
    await VllmCore(client).wait_stopped()
    assert client.asked == questions


async def test_who_comes_behind_a_question_waits_for_the_next_one_and_shares_it() -> None:
    """The question on its way may have been sent before what the newcomer ended."""
    client = EngineClient()
    core = VllmCore(client)
    client.stands_still.set()
    first = asyncio.ensure_future(core.wait_stopped())
    await wait_for(lambda: client.asked == 1)
    later = [asyncio.ensure_future(core.wait_stopped()) for _ in range(50)]
    await asyncio.sleep(0)
    client.stands_still.clear()
    await asyncio.wait_for(first, 10)
    assert not any(one.done() for one in later)
    await asyncio.wait_for(asyncio.gather(*later), 10)
    assert client.asked == 4


async def test_one_that_waits_no_longer_takes_nothing_from_the_others() -> None:
    client = EngineClient()
    core = VllmCore(client)
    client.stands_still.set()
    impatient, patient = (asyncio.ensure_future(core.wait_stopped()) for _ in range(2))
    await wait_for(lambda: client.asked == 1)
    impatient.cancel()
    await asyncio.wait((impatient,))
    client.stands_still.clear()
    await asyncio.wait_for(patient, 10)


async def test_a_dead_core_computes_nothing() -> None:
    client = EngineClient()
    client.dead = client.errored = True
    await asyncio.wait_for(VllmCore(client).wait_stopped(), 10)


async def test_a_core_that_dies_leaves_a_question_open_and_refuses_the_next() -> None:
    client = EngineClient()
    client.stands_still.set()
    asking = asyncio.ensure_future(VllmCore(client).wait_stopped())
    await wait_for(lambda: client.asked == 1)
    client.dead = client.errored = True
    await asyncio.wait_for(asking, 10)


async def test_a_core_that_lives_behind_a_broken_server_is_waited_for() -> None:
    """The server counts as errored too when only its own reader has failed."""
    client = EngineClient()
    client.errored = True
    client.stands_still.set()
    asking = asyncio.ensure_future(VllmCore(client).wait_stopped())
    await wait_for(lambda: client.asked > 1)
    assert not asking.done()
    client.stands_still.clear()
    await asyncio.wait_for(asking, 10)


async def test_any_other_error_is_no_word() -> None:
    client = EngineClient()
    client.fails = True
    with pytest.raises(NoWord, match="RuntimeError: no such method"):
        await VllmCore(client).wait_stopped()


@pytest.mark.parametrize("client", [None, object(), SimpleNamespace(is_sleeping=None)])
async def test_what_is_no_vllm_is_not_asked(client: object) -> None:
    assert find_vllm_core({"app": SimpleNamespace(state=SimpleNamespace(engine_client=client))}) is None
    assert find_vllm_core({}) is None


async def test_a_vllm_server_is_known_by_its_client() -> None:
    client = EngineClient()
    core = find_vllm_core({"app": SimpleNamespace(state=SimpleNamespace(engine_client=client))})
    assert core is not None
    await core.wait_stopped()
    assert client.asked == 2
