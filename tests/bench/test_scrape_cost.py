"""The scrape benchmark runs, and what it prints are measured shares and ratios. None asserts a speed."""

import json
from pathlib import Path

import pytest

from bench.scrape.meter import Parts
from bench.scrape.replicas import PAGES, SWING_S, Page
from bench.scrape_cost import FLEETS, measure, report
from envoy_ext.adapters.engines import get_engine

FEW = 6


async def test_a_small_fleet_is_measured_whole_and_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    found = await measure("mixed", FEW, 2.0)
    json.dumps(found)
    assert found["replicas"] == FEW
    assert found["looks_per_s"] > 0
    assert 0 < sum(found["parts"].values()) == pytest.approx(found["share_of_a_core"])
    assert {"parse", "gates", "picture, weights", "endpoints, push"} < found["parts"].keys()
    assert found["ratio"] == pytest.approx(found["reference_us_per_look"] / found["us_per_look"])
    assert found["share_at_full_rate"] == pytest.approx(found["us_per_look"] * FEW / 1e6)
    assert found["control_calls_before"] >= FEW, "one whose time ran out on a busy machine is asked again"
    assert found["control_calls_meanwhile"] == 0, "a model that has answered is not asked again"
    report(found)
    printed = capsys.readouterr().out
    assert "% of one core" in printed
    assert "times as much" in printed


def test_each_engine_of_a_fleet_has_a_page() -> None:
    assert {engine for fleet in FLEETS.values() for engine in fleet} == PAGES.keys()


@pytest.mark.parametrize("engine", PAGES)
def test_pages_are_as_large_as_recorded_ones_and_their_numbers_move(engine: str) -> None:
    page, recorded = Page(engine), Path(__file__).parents[1] / "data" / PAGES[engine][0]
    written = [page.write(0, 1000.0 + SWING_S * place) for place in (0.15, 0.3, 0.8, 0.9)]
    assert all(abs(len(one) - recorded.stat().st_size) < 100 for one in written)
    looks = [get_engine(engine).parse(one, 0.0) for one in written]
    first, second, *idle = [(look.running, look.progress) for look in looks]
    assert first != second
    assert [running for running, _ in idle] == [0, 0]
    assert idle[0] == idle[1], "who has no work moves no counter"
    progress = [look.progress or 0 for look in looks]
    assert progress == sorted(progress)
    assert progress[0] < progress[1], "who has work gets somewhere, so that nothing of it hangs"
    assert len({(look.process_started_at, look.allocation_failures) for look in looks}) == 1


def test_a_part_inside_a_part_counts_once() -> None:
    parts = Parts()
    inner = parts.wrap("inner", lambda: sum(range(100_000)))
    outer = parts.wrap("outer", inner)
    outer()
    assert parts.calls == {"inner": 1, "outer": 1}
    assert parts.seconds["outer"] < parts.seconds["inner"]
