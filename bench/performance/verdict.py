"""Was a line's target reached? By the median of its rounds; the range is told with it, and what spoils it."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from bench.performance.figures import FIGURES, NOISE, NOISE_OF, Spoiled
from bench.performance.rounds import Round
from bench.performance.targets import TARGETS, Target

MOST_NOISE: Final = 1.15
"""Two that are the same may be apart by so much: the targets' bounds are further from what is expected."""


class Word(StrEnum):
    """What came of it."""

    AIM = "aim"
    MUST = "must"
    MISSED = "missed"
    NO_EVIDENCE = "no evidence"


@dataclass(frozen=True, slots=True)
class Figure:
    """A median, and between what the rounds lay."""

    median: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Line:
    """One target, and what was found."""

    target: Target
    word: Word
    figure: Figure | None
    sure: bool
    """Whether every round by itself gives the same word."""
    why: str = ""
    """What spoiled it."""
    noise: tuple[str, ...] = ()
    """Where two that are the same differed by so much that the figure says little."""

    @property
    def red(self) -> bool:
        """Whether it is to be worried about."""
        return self.word in (Word.MISSED, Word.NO_EVIDENCE)


def find_word(target: Target, value: float) -> Word:
    """For one value."""
    if target.reaches(value, target.aim):
        return Word.AIM
    return Word.MUST if target.reaches(value, target.must) else Word.MISSED


def summarise(values: Sequence[float]) -> Figure:
    """Of the rounds."""
    return Figure(statistics.median(values), min(values), max(values), len(values))


def summarise_noise(what: str, rounds: Sequence[Round]) -> Figure | None:
    """How far two that are the same were apart; None where they were not measured."""
    try:
        return summarise([NOISE[what](one) for one in rounds]) if rounds else None
    except Spoiled:
        return None


def find_noise(target: Target, rounds: Sequence[Round]) -> tuple[str, ...]:
    """What makes a figure doubtful."""
    found = ((what, summarise_noise(what, rounds)) for what in NOISE_OF[target.key])
    return tuple(
        f"but {what} gives {figure.median:.2f}"
        for what, figure in found
        if figure is not None and not 1 / MOST_NOISE <= figure.median <= MOST_NOISE
    )


def judge_values(target: Target, values: Sequence[float]) -> Line:
    """A line from the values of its rounds."""
    if not values:
        return Line(target, Word.NO_EVIDENCE, None, False, "it was not measured")
    figure = summarise(values)
    word = find_word(target, figure.median)
    return Line(target, word, figure, all(find_word(target, one) == word for one in values))


def judge_rounds(target: Target, rounds: Sequence[Round], read: Callable[[Round], float]) -> Line:
    """A line from its rounds: one that is spoiled spoils the line, since who leaves out what does not fit can
    show anything."""
    try:
        line = judge_values(target, [read(one) for one in rounds])
    except Spoiled as why:
        return Line(target, Word.NO_EVIDENCE, None, False, str(why))
    return replace(line, noise=find_noise(target, rounds))


def judge(rounds: Sequence[Round], others: dict[str, "list[float] | Spoiled"]) -> list[Line]:
    """All lines, in the order of the targets; `others` are values of those that are no ratios, by key."""
    lines: list[Line] = []
    for target in TARGETS:
        if target.key in FIGURES:
            lines.append(judge_rounds(target, rounds, FIGURES[target.key]))
            continue
        values = others.get(target.key, [])
        if isinstance(values, Spoiled):
            lines.append(Line(target, Word.NO_EVIDENCE, None, False, str(values)))
        else:
            lines.append(judge_values(target, values))
    return lines
