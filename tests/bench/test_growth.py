"""The judge of a soak: what grows is called so, and what only moves is let be."""

import random
from collections.abc import Callable

import pytest

from bench.inside.growth import ALLOWANCES, Allowance, find_allowance, judge, judge_all

EXACT = Allowance(0.0, 1.0)


def draw(read: Callable[[int], float], strays: float = 0.0, count: int = 60) -> list[float]:
    rng = random.Random(1)
    return [read(at) + rng.uniform(-strays, strays) for at in range(count)]


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        pytest.param(draw(lambda at: 100), False, id="the same all the time"),
        pytest.param(draw(lambda at: 100, strays=20), False, id="noise"),
        pytest.param(draw(lambda at: min(at, 25) * 40), False, id="what fills up in the first half"),
        pytest.param(draw(lambda at: 1_000 - at), False, id="what shrinks"),
        pytest.param(draw(lambda at: 100 + at % 2 * 50), False, id="a swing"),
        pytest.param(draw(lambda at: 100 + at * 0.02), False, id="less than is allowed"),
        pytest.param(draw(lambda at: 100 + at), True, id="one more each time"),
        pytest.param(draw(lambda at: 100 + at, strays=5), True, id="one more each time, under noise"),
        pytest.param(draw(lambda at: 100 + at // 6), True, id="one more now and then"),
        pytest.param(draw(lambda at: max(0, at - 30) * 3), True, id="what begins late"),
    ],
)
def test_a_rise_above_noise_and_allowance_is_growth(values: list[float], grows: bool) -> None:
    assert judge("x", values, EXACT).grows is grows


def test_the_rise_is_that_of_the_second_half() -> None:
    found = judge("x", draw(lambda at: 100 + 2 * at), EXACT)
    assert (found.first, found.rise) == (pytest.approx(160), pytest.approx(58))
    assert found.strays == pytest.approx(0)


def test_an_allowance_is_a_share_or_a_number_whichever_is_more() -> None:
    rising = draw(lambda at: 1_000 + at)
    assert judge("x", rising, Allowance(0.02, 30)).grows is False
    assert judge("x", rising, Allowance(0.04, 1)).grows is False
    assert judge("x", rising, Allowance(0.02, 1)).grows is True


def test_too_few_figures_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="too few"):
        judge("x", [1.0] * 14, EXACT)
    assert not judge("x", [1.0] * 16, EXACT).grows


def test_a_type_that_was_not_there_at_first_is_judged_too() -> None:
    samples = [{"tasks": 25.0} | ({"type: leak": at * 2.0} if at > 5 else {}) for at in range(60)]
    found = {one.name: one.grows for one in judge_all(samples)}
    assert found == {"tasks": False, "type: leak": True}


def test_each_figure_has_an_allowance_and_one_more_descriptor_each_time_is_none() -> None:
    assert find_allowance("type: builtins.list") != find_allowance("gauge: envoy_ext_inflight")
    for name in ALLOWANCES:
        assert find_allowance(name) is ALLOWANCES[name]
    assert judge("d", draw(lambda at: 36 + at // 10), find_allowance("descriptors")).grows
