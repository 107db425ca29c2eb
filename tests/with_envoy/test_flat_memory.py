"""Clients that take little or nothing, and a sidecar that is stopped: what is held for them has a bound.

The short form of `bench/slow_readers.py`: the gateway is `envoy-ext run`, whose memory is its own.
"""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench.slow_readers import Stage, run_stage, silent, slow, stopped

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    # Not pytest's own: a socket's path has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="envoy-ext-test-") as made:
        async with run_stage(Path(made), SECONDS, "native") as running:
            yield running


async def test_readers_of_a_flood_who_take_10_kb_a_second_cost_no_more_the_longer_it_lasts(
    stage: Stage,
) -> None:
    assert (await slow(stage, 4)).judge() == []
    await stage.gateway.wait_idle()


async def test_streams_go_on_behind_a_stop_of_the_sidecar_and_nothing_has_piled_up(stage: Stage) -> None:
    assert (await stopped(stage, 12)).judge() == []
    await stage.gateway.wait_idle()


async def test_clients_that_read_nothing_cost_their_buffers_and_no_more(stage: Stage) -> None:
    assert (await silent(stage, 20)).judge() == []
    await stage.gateway.wait_idle()
