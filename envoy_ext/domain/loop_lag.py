"""How late the sidecar's own loop is, and when it is too late to let more work in.

Every chunk and every decision passes one event loop. When it gets more than it can do, each stream's tokens
come later, whoever they are for; only what has not begun can be kept away. So a lateness that lasts sheds new
work, and running streams go on.

Lateness is that of a timer: how much later than asked for it ran. A look says little by itself, since it
falls somewhere in a turn of the loop, so looks are smoothed; and one pause of a whole process (a debugger, a
laptop's lid, SIGSTOP) is one look, however long it was: it neither lasts nor counts as more than `MOST_S`.
"""

from dataclasses import dataclass
from typing import Final

LOOK_S: Final = 0.05
"""How often to look."""
MOST_S: Final = 0.5
"""What one look counts at the most."""
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
    _since: float | None = None

    def note(self, late_s: float, now: float) -> None:
        """A look at `now` came so much later than it should have."""
        self.lag_s += _WEIGHT * (min(max(late_s, 0.0), MOST_S) - self.lag_s)
        if not self.bound_s:
            return
        if self.shedding:
            self.shedding = self.lag_s >= self.bound_s / 2
            self._since = None
        elif self.lag_s < self.bound_s:
            self._since = None
        elif self._since is None:
            self._since = now
        else:
            self.shedding = now - self._since >= LASTS_S

    def sheds(self, *, first: bool) -> bool:
        """Whether a new request is refused. `first`: nothing is more urgent than its kind, and other kinds
        are less; it is let in until the lateness is twice the bound."""
        return self.shedding and (not first or self.lag_s >= 2 * self.bound_s)
