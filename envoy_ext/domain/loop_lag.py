"""How late the sidecar's own loop is, and when it is too late to let more work in.

Every chunk and every decision passes one event loop. When it gets more than it can do, each stream's tokens
come later, whoever they are for; only what has not begun can be kept away. So a lateness that lasts sheds new
work, and running streams go on.

Lateness is that of a timer: how much later than asked for it ran. A look says little by itself, since it
falls somewhere in a turn of the loop, so looks are smoothed; and one pause of a whole process (a debugger, a
laptop's lid, SIGSTOP) is one look, however long it was: a look counts as three times the bound at the most,
both for how late the loop is and for how long it has been that.
"""

from dataclasses import dataclass
from typing import Final

LOOK_S: Final = 0.05
"""How often to look."""
_MOST: Final = 3.0
"""Bounds that one look counts at the most. Smoothed, one such look stays below the bound, and a few of them
come to twice of it."""
_MOST_S: Final = 0.5
"""The same where there is no bound."""
LASTS_S: Final = 1.0
"""How long it must be too late before anything is shed."""
_WEIGHT: Final = 0.25
"""Of the newest look."""


@dataclass(slots=True)
class LoopLag:
    """Fed one look after another."""

    bound_s: float
    """The smoothed lateness above which work is shed, once it lasts; 0: nothing ever is."""
    lag_s: float = 0.0
    """The lateness now, smoothed, in seconds."""
    shedding: bool = False
    _lasted_s: float = 0.0
    """How long it has been above the bound."""

    def note(self, late_s: float) -> None:
        """A look came so much later than it should have."""
        late_s = min(max(late_s, 0.0), _MOST * self.bound_s or _MOST_S)
        self.lag_s += _WEIGHT * (late_s - self.lag_s)
        if not self.bound_s:
            return
        if self.shedding:
            self.shedding = self.lag_s >= self.bound_s / 2
        elif self.lag_s < self.bound_s:
            self._lasted_s = 0.0
        else:
            self._lasted_s += LOOK_S + late_s
            self.shedding = self._lasted_s >= LASTS_S
        if self.shedding:
            self._lasted_s = 0.0

    def sheds(self, *, first: bool) -> bool:
        """Whether a new request is refused. `first`: nothing is more urgent than its kind, and other kinds
        are less; it is let in until the lateness is twice the bound."""
        return self.shedding and (not first or self.lag_s >= 2 * self.bound_s)
