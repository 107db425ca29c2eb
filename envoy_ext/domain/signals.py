"""One signal, two thresholds and a hold time: what makes a calm yes or no of a noisy number.

Four small parts, each of them blind to what the number means:

* `read_known` decides whether there is a number at all. NaN, infinities, negative values and the
  blanks of exporters are "not known", and not known never compares as good.
* `Band` turns a number into a `Level`. Between its two thresholds the level is BETWEEN.
* `Latch` turns levels into tripped or not. It trips when the level was BAD, and returns when it was
  GOOD, at every look for a hold time. BETWEEN ends a run and moves nothing; UNKNOWN does nothing.
* `FlapMemory` stretches the hold of the way back for a replica that keeps leaving.

A signal that swings around one threshold stops at BETWEEN on its way back, so it moves its latch
once at most. Against one that swings over the whole band, slower than the hold, there are two means.
A number that swings must be GOOD for as long as it was BAD, and the hold on top, so a swing that is bad
as long as it is good moves its latch once, too. What is mostly good returns, and that is what the memory
is for: the first return takes the hold, the second one eight times as long, every later one five
minutes, and the count is forgotten only after five minutes without a leave and without a broken run.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BLANK: Final = 9223372036854775792.0
"""DCGM's "no value" (INT64 blank, and up), as its exporter prints it."""

MIRROR_S: Final = 75.0
"""The most that a BAD stretch counts towards the way back: half of the slowest swing that it is meant for
(150 s), and the longest that a replica which has really recovered waits beyond the hold."""

FLAP_WINDOW_S: Final = 300.0
FLAP_GROWTH: Final = 8.0
"""With the default hold of 5 s: 5 s, 40 s, then the window."""


def read_known(value: float | None) -> float | None:
    """The value when it can be one: finite, not negative, and no exporter's blank."""
    if value is None or not math.isfinite(value) or value < 0 or value >= BLANK:
        return None
    return value


class Level(StrEnum):
    """What a signal says at one look."""

    BAD = "bad"
    BETWEEN = "between"
    GOOD = "good"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Band:
    """Two thresholds: BAD from `leave_at` up, GOOD from `return_at` down."""

    leave_at: float
    return_at: float

    def read_level(self, value: float | None) -> Level:
        known = read_known(value)
        if known is None:
            return Level.UNKNOWN
        if known >= self.leave_at:
            return Level.BAD
        return Level.GOOD if known <= self.return_at else Level.BETWEEN


def read_flag(value: bool | None) -> Level:
    """The level of a signal that is a yes (BAD) or a no."""
    if value is None:
        return Level.UNKNOWN
    return Level.BAD if value else Level.GOOD


class Turn(StrEnum):
    """What a look did to a latch."""

    NONE = "none"
    LEFT = "left"
    RETURNED = "returned"
    BROKEN = "broken"
    """It was on its way back, and that run is over."""


@dataclass(frozen=True, slots=True)
class LatchRule:
    """How long a level must last before it counts."""

    leave_hold_s: float
    times: int = 1
    """At least so many looks in a row, whatever the hold."""
    max_gap_s: float = math.inf
    """Two looks farther apart are not one run: nobody saw what was between them."""
    mirror_s: float = 0.0
    """How much of the BAD stretch the GOOD one must be as long as, besides the hold."""


@dataclass(slots=True)
class Latch:
    """Tripped or not, and the run that may change it."""

    rule: LatchRule
    tripped: bool = False
    tripped_at: float = -math.inf
    _bad_since: float = -math.inf
    """When the run began that tripped it."""
    _bad_until: float = -math.inf
    """The last look that was BAD since it tripped."""
    _since: float | None = None
    _looks: int = 0
    _seen_at: float = -math.inf

    def observe(self, level: Level, at: float, return_hold_s: float) -> Turn:
        """Take in one look. `return_hold_s` is how long it must be GOOD to return, as of this look."""
        if level is Level.UNKNOWN:
            return Turn.NONE
        if at > self._seen_at + self.rule.max_gap_s:
            self._since = None
        self._seen_at = at
        if level is Level.BAD:
            self._bad_until = at
        if level is not (Level.GOOD if self.tripped else Level.BAD):
            broken = self.tripped and self._since is not None and level is Level.BAD
            self._since = None
            return Turn.BROKEN if broken else Turn.NONE
        if self._since is None:
            self._since, self._looks = at, 0
        self._looks += 1
        if self.tripped:
            return self._turn(at) if at >= self._since + self._stretch(return_hold_s) else Turn.NONE
        lasted = at >= self._since + self.rule.leave_hold_s and self._looks >= self.rule.times
        return self._turn(at) if lasted else Turn.NONE

    def returns_at(self, return_hold_s: float) -> float | None:
        """When the run under way would end a trip; None without one."""
        return (
            self._since + self._stretch(return_hold_s) if self.tripped and self._since is not None else None
        )

    def reset(self) -> None:
        """Forget everything: the signal belongs to something else from here on."""
        self.tripped = False
        self._since = None

    def _stretch(self, return_hold_s: float) -> float:
        """How long the run back must last."""
        rule = self.rule
        if not rule.mirror_s:
            return return_hold_s
        return max(return_hold_s, rule.leave_hold_s + min(self._bad_until - self._bad_since, rule.mirror_s))

    def _turn(self, at: float) -> Turn:
        self.tripped = not self.tripped
        if self.tripped:
            self.tripped_at = at
            self._bad_since = at if self._since is None else self._since
        self._since = None
        return Turn.LEFT if self.tripped else Turn.RETURNED


@dataclass(slots=True)
class FlapMemory:
    """How often a replica has left of late."""

    _leaves: int = 0
    _unrest_at: float = -math.inf

    def note_left(self, at: float) -> None:
        """It left, for whatever reason."""
        self._leaves = self._count(at) + 1
        self._unrest_at = at

    def note_unrest(self, at: float) -> None:
        """A run towards its return was broken: the swinging goes on."""
        if self._count(at):
            self._unrest_at = at

    def compute_return_hold(self, hold_s: float, at: float) -> float:
        """How long it must be good before it returns."""
        leaves = self._count(at)
        if leaves <= 1:
            return hold_s
        # A hold of 0 has nothing to grow from; a second is the least anybody scrapes at.
        return min(max(hold_s, 1.0) * FLAP_GROWTH ** (leaves - 1), max(FLAP_WINDOW_S, hold_s))

    def _count(self, at: float) -> int:
        return self._leaves if at < self._unrest_at + FLAP_WINDOW_S else 0


@dataclass(slots=True)
class LastKnown:
    """The last value a signal had, kept until it is too old to say anything."""

    value: float | None = None
    at: float = -math.inf

    def note(self, value: float | None, at: float) -> None:
        """Take in a look; one without a value leaves the last one standing."""
        known = read_known(value)
        if known is not None:
            self.value, self.at = known, at

    def read(self, now: float, stale_s: float) -> float | None:
        """The value, None when it is older than `stale_s`."""
        return self.value if now < self.at + stale_s else None

    def shift(self, seconds: float, now: float) -> None:
        """Nobody looked for so long: that did not make it older."""
        self.at = min(now, self.at + seconds)
