"""Whether a series of figures grows: the rule by which a soak is judged.

Each figure was read while nothing was in flight. The first half of a run fills what is bounded and kept (what
is remembered for a while, caches, pools of memory), so that the second one alone counts. A line is laid
through it by least squares. It grows when its rise over that half is more than three times what single
figures stray from the line (their standard deviation), and more than an allowance, stated for each figure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

STRAYS: Final = 3.0
LEAST: Final = 8
"""Figures in the second half below which nothing can be said."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a figure may rise by: whichever of the two is more."""

    share: float
    """Of its mean."""
    least: float


@dataclass(frozen=True, slots=True)
class Growth:
    """One figure over the second half of a run."""

    name: str
    first: float
    """By the line, at the begin of the half."""
    rise: float
    """By the line, over the half."""
    strays: float
    """Standard deviation from the line."""
    allowed: float
    grows: bool


MIB: Final = 1 << 20
ALLOWANCES: Final[Mapping[str, Allowance]] = {
    "rss": Allowance(0.02, 1 * MIB),
    "envoy rss": Allowance(0.02, 2 * MIB),
    "blocks": Allowance(0.005, 200),
    "objects": Allowance(0.005, 100),
    "tasks": Allowance(0.0, 1),
    "descriptors": Allowance(0.0, 2),
    "envoy descriptors": Allowance(0.0, 4),
}
OF_A_TYPE: Final = Allowance(0.01, 16)
OF_A_GAUGE: Final = Allowance(0.0, 0.5)


def judge(name: str, values: Sequence[float], allowance: Allowance) -> Growth:
    """Judge one figure.

    Raises:
        ValueError: there are too few of them.
    """
    half = values[len(values) // 2 :]
    if len(half) < LEAST:
        raise ValueError(f"{len(values)} figures are too few to tell")
    middle, mean = (len(half) - 1) / 2, sum(half) / len(half)
    spread = sum((at - middle) ** 2 for at in range(len(half)))
    slope = sum((at - middle) * (value - mean) for at, value in enumerate(half)) / spread
    left = sum((value - mean - slope * (at - middle)) ** 2 for at, value in enumerate(half))
    strays, rise = math.sqrt(left / len(half)), slope * (len(half) - 1)
    allowed = max(allowance.share * abs(mean), allowance.least)
    grows = rise > allowed and rise > STRAYS * strays
    return Growth(name, mean - slope * middle, rise, strays, allowed, grows)


def find_allowance(name: str) -> Allowance:
    """By the figure's name: `type: …` and `gauge: …` are of a kind."""
    if name.startswith("type: "):
        return OF_A_TYPE
    return OF_A_GAUGE if name.startswith("gauge: ") else ALLOWANCES[name]


def judge_all(samples: Sequence[Mapping[str, float]]) -> list[Growth]:
    """Each figure that was ever told; one that a sample does not tell was 0."""
    names = sorted({name for one in samples for name in one})
    return [judge(name, [one.get(name, 0.0) for one in samples], find_allowance(name)) for name in names]
