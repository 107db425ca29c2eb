"""One Envoy outlives large request bodies and dying replicas, and passes every body on unchanged.

The short form of `bench/survival.py`, which plays the same loads for longer and on every Envoy
version that `docs/envoy-versions.md` names.
"""

import random
from pathlib import Path

import pytest

from bench.survival import SHAPES, survive
from envoy_ext.adapters.envoy_process import find_envoy

pytestmark = [pytest.mark.storm, pytest.mark.timeout(240)]

SECONDS = 5.0


async def test_envoy_outlives_large_bodies_and_dying_replicas_and_every_body_arrives_as_sent(
    tmp_path: Path,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    played = await survive(find_envoy(), tmp_path, SECONDS, seed)
    for load in played:
        print(load.row("installed"))
        assert not load.complaints, "\n".join(load.complaints[:40])
        assert load.verdict.ends["complete"] > 0
        assert load.bodies_checked >= load.verdict.ends["complete"] / 2
    assert [load.shape for load in played] == list(SHAPES)
    assert sum(load.kills for load in played) > 0
