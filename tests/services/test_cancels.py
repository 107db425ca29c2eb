"""The engine's abort call for an attempt that was dropped: once, and only counted."""

import pytest

from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.sample import ScrapeFailure, ScrapeTarget
from envoy_ext.domain.slots import CancelBegan
from envoy_ext.services.background import Background
from envoy_ext.services.cancels import Cancels
from tests.services.test_fleet import POOL, A
from tests.services.test_slots import CANCELLING, ONE, dropped
from tests.support.sidecar import Watcher


class Engines:
    """Takes calls, or fails them."""

    def __init__(self, failure: ScrapeFailure | None = None) -> None:
        self.asked: list[tuple[ScrapeTarget, AttemptId]] = []
        self._failure = failure

    async def abort(self, target: ScrapeTarget, attempt_id: AttemptId) -> ScrapeFailure | None:
        self.asked.append((target, attempt_id))
        return self._failure


FAILURE = ScrapeFailure(1.0, "timeout", "after 2 s")


@pytest.mark.parametrize(("failure", "result"), [(None, "asked"), (FAILURE, "timeout")])
async def test_an_engine_is_asked_once_and_its_answer_frees_nothing(
    failure: ScrapeFailure | None, result: str
) -> None:
    played, engines, background = dropped(), Engines(failure), Background(Watcher())
    results: list[tuple[PoolName, str]] = []
    cancels = Cancels(engines, played.fleet, {POOL: "sglang"}, background, lambda *told: results.append(told))
    cancels.note_began(CancelBegan(ONE, POOL, A))
    await background.wait()
    assert engines.asked == [(ScrapeTarget("http://10.0.0.1:8000", "sglang", pool=POOL), ONE)]
    assert results == [(POOL, result)]
    assert played.fleet.streams.count(A) == CANCELLING


@pytest.mark.parametrize(
    ("calls", "pool", "replica"),
    [
        ({}, POOL, A),
        ({POOL: "sglang"}, PoolName("other"), A),
        ({POOL: "sglang"}, POOL, None),
        ({POOL: "sglang"}, POOL, ReplicaId("gone")),
    ],
    ids=["no call", "no such pool", "no place", "a replica that is gone"],
)
async def test_nobody_is_asked_without_a_call_or_a_place(
    calls: dict[PoolName, str], pool: PoolName, replica: ReplicaId | None
) -> None:
    played, engines, background = dropped(), Engines(), Background(Watcher())
    cancels = Cancels(engines, played.fleet, calls, background, lambda *told: None)
    cancels.note_began(CancelBegan(ONE, pool, replica))
    await background.wait()
    assert engines.asked == []
