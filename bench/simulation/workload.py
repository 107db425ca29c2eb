"""What is asked for: how many requests, how long their prompts and answers are, and by whom.

Lengths and burstiness are those of the conversation trace that Azure published with Splitwise
(docs/simulation.md).
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from random import Random

Table = tuple[tuple[float, float], ...]
"""Quantiles: share of the requests, and how many tokens those have at most. Straight lines between."""

PROMPT_TOKENS: Table = (
    (0.0, 2),
    (0.05, 181),
    (0.10, 207),
    (0.25, 396),
    (0.50, 1020),
    (0.75, 1189),
    (0.90, 2735),
    (0.95, 4083),
    (0.99, 4142),
    (1.0, 4200),
)
"""The longest prompt of 19,366 has 14,050 tokens; the last hundredth is left out here."""
ANSWER_TOKENS: Table = (
    (0.0, 7),
    (0.05, 41),
    (0.10, 54),
    (0.25, 85),
    (0.50, 129),
    (0.75, 395),
    (0.90, 424),
    (0.95, 451),
    (0.99, 601),
    (1.0, 1000),
)


def draw(table: Table, random: Random) -> int:
    """One length."""
    share = random.random()
    upper = min(bisect_right(table, (share, float("inf"))), len(table) - 1)
    (below, low), (above, high) = table[upper - 1], table[upper]
    return max(1, round(low + (high - low) * (share - below) / (above - below)))


def compute_mean(table: Table) -> float:
    """The mean length."""
    pairs = pairwise(table)
    return sum((above - below) * (low + high) / 2 for (below, low), (above, high) in pairs)


@dataclass(frozen=True)
class Bursts:
    """Arrivals: Poisson at a rate that is now calm, now high. Lengths of both are drawn (exponential)."""

    high: float = 1.5
    """How much above its mean the rate is in a burst."""
    high_s: float = 5.0
    calm_s: float = 45.0

    @property
    def calm(self) -> float:
        """The rate between bursts, so that the mean is 1."""
        return (self.high_s + self.calm_s - self.high * self.high_s) / self.calm_s


@dataclass(frozen=True)
class Kind:
    """One kind of client. What is an assumption here is said to be one in docs/simulation.md."""

    name: str
    """Also its traffic class."""
    share: float
    stream: bool
    timeout_s: float
    """Of its SDK: until the first byte. 600 s is OpenAI's default."""
    deadline_s: float
    """From the moment it wanted the answer: one that is whole later is worth nothing."""
    patience_s: tuple[float, float] | None = None
    """A person's: waits so long for a first word, and by lot so much longer in the mean; then reloads."""
    reloads: int = 0


KINDS = (
    Kind("chat", 0.6, stream=True, timeout_s=600.0, deadline_s=60.0, patience_s=(10.0, 10.0), reloads=2),
    Kind("app", 0.3, stream=False, timeout_s=60.0, deadline_s=120.0),
    Kind("batch", 0.1, stream=False, timeout_s=600.0, deadline_s=300.0),
)
CALLERS = 5000
