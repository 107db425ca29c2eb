"""What is counted while a simulation runs, by bins of a second, and what is made of it at the end."""

from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from bench.simulation.events import Events
from bench.simulation.request import Request

if TYPE_CHECKING:
    from bench.simulation.clients import Intent

Series = dict[str, list[float]]


class Tally:
    """One simulation's counts. Intents are what people want, requests what their SDKs send."""

    def __init__(self, events: Events, window: tuple[float, float]) -> None:
        self.window = window
        """From when to when latencies and totals are taken; the bins hold all of the time."""
        self._events = events
        self._bins: dict[str, Counter[int]] = defaultdict(Counter)
        self.totals: Counter[str] = Counter()
        self.first_s = array("d")
        self.refusal_s = array("d")
        self.wait_s = array("d")
        """How long those waited that were let in after a wait."""
        self.good_prompt = 0
        self.good_answer = 0
        self.callers: dict[str, Counter[str]] = {"wanted": Counter(), "good": Counter()}

    @property
    def _inside(self) -> bool:
        return self.window[0] <= self._events.time < self.window[1]

    def count(self, what: str, amount: int = 1) -> None:
        """One more of something."""
        self._bins[what][int(self._events.time)] += amount
        if self._inside:
            self.totals[what] += amount

    # --- clients ------------------------------------------------------------------------------

    def note_wanted(self, kind: str, caller: str) -> None:
        """An intent begins."""
        self.count("wanted")
        self.count(f"wanted_{kind}")
        if self._inside:
            self.callers["wanted"][caller] += 1

    def note_sent(self, kind: str) -> None:
        """A request is sent."""
        self.count("sent")

    def note_left(self) -> None:
        """A client leaves before the end of its request."""
        self.count("left")

    def note_end(self, intent: "Intent", how: str) -> None:
        """An intent is over: good, late or failed."""
        self.count(how)
        if how == "good":
            self.count(f"good_{intent.kind.name}")
            if self._inside:
                self.good_prompt += intent.prompt
                self.good_answer += intent.answer
                self.callers["good"][intent.caller] += 1

    # --- gateways -----------------------------------------------------------------------------

    def note_refused(self, request: Request, code: str) -> None:
        """The gateway says no."""
        self.count("refused")
        self.count(f"refused_{code}")
        if self._inside:
            self.refusal_s.append(self._events.time - request.sent_at)

    def note_first(self, request: Request) -> None:
        """The first delta of a request, also where its client is told of the whole only."""
        if self._inside:
            self.first_s.append(self._events.time - request.sent_at)

    def note_granted(self, waited_s: float) -> None:
        """A request that waited has its slot."""
        self.count("waited")
        if self._inside:
            self.wait_s.append(waited_s)

    # --- what is made of it -------------------------------------------------------------------

    def read_series(self, what: str, until: float, step_s: int) -> list[float]:
        """Events in a second, the mean of each `step_s`."""
        bins = self._bins.get(what, Counter())
        starts = range(0, int(until), step_s)
        return [round(sum(bins[second] for second in range(at, at + step_s)) / step_s, 2) for at in starts]


def read_quantile(values: array, share: float) -> float | None:  # type: ignore[type-arg]
    """A quantile, None of nothing."""
    if not values:
        return None
    ranked = sorted(values)
    return round(ranked[min(len(ranked) - 1, int(share * len(ranked)))], 4)
