"""How long answers took of late, so that nobody waits for a slot whose answer would come too late.

What is cut by its own deadline has cost a slot and given nothing: a line that lets in whoever just still has
time works for nobody, at a load barely above what the pool can do.

What nine of ten took decides, and a fifth above that. A slot that is refused to one is not lost: another has
it who waits with more time, and where nobody waits the next one has it who comes. So caution costs little.
Measured on simulated pools at 0.8 to 10 times their capacity, with deadlines of two and four mean answers:
where lengths were even, less than half a per cent of what was let in was cut; where they were exponential
or log-normal 12 % at the most, mostly of what had found a slot free. By the middle, which half of them
exceed, it was up to 21 and 23 %, with up to 12 % fewer whole answers of even lengths, and up to 8 % more of
the others: the short ones.

Answers that were cut count for what is known of them, that they would have taken longer (Kaplan and Meier,
"Nonparametric Estimation from Incomplete Observations", 1958). Without them only short answers were left to
learn from, and the next long one would look possible. Traffic classes are counted apart, and so are requests
that were shortened: the long answers of one say nothing of the others.
"""

from collections import deque
from collections.abc import Collection
from typing import Final

from envoy_ext.domain.drain_rate import KNOWN_FROM

MEMORY: Final = 32
"""So few are soon replaced when answers become longer, and so many have more than one above nine tenths."""
MOST: Final = 0.9
SPARE: Final = 1.2
"""The longest of a few are not the longest there are; and a slot is not an answer that the client has."""


class AnswerTimes:
    """Of one pool; changed only by its queue."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, bool], deque[tuple[float, bool]]] = {}
        self._known: dict[tuple[str, bool], float] = {}

    def note(self, class_name: str, shortened: bool, seconds: float, *, whole: bool) -> None:
        """An answer has ended, so long after its attempt began: whole, or cut before it was."""
        kind = class_name, shortened
        self._kinds.setdefault(kind, deque(maxlen=MEMORY)).append((seconds, not whole))
        self._known.pop(kind, None)

    def read(self, class_name: str, shortened: bool) -> float:
        """How much time to leave for such an answer; 0 while too few are known."""
        kind = class_name, shortened
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = SPARE * _find_most(self._kinds.get(kind, ()))
        return known


def _find_most(times: Collection[tuple[float, bool]]) -> float:
    if len(times) < KNOWN_FROM:
        return 0.0
    ordered, share = sorted(times), 1.0
    for place, (seconds, cut) in enumerate(ordered):
        share *= 1.0 if cut else 1 - 1 / (len(ordered) - place)
        if share <= 1 - MOST + 1e-9:
            return seconds
    return ordered[-1][0]  # most were cut: the longest of them is what is known
