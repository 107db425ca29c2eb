"""What was ordered over the control endpoint: faults for the next requests, and figures for the page."""

import math
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.sim.faults import Rule, parse_faults


@dataclass(slots=True)
class Armed:
    """One fault text and for how many requests it still holds; None until it is taken away."""

    text: str
    rules: tuple[Rule, ...]
    left: int | None


@dataclass(slots=True)
class FaultControl:
    """The armed faults of one engine, oldest first."""

    _armed: list[Armed] = field(default_factory=list)

    def arm(self, text: str, count: int | None) -> None:
        """Arm a fault for the next `count` requests; raises `FaultError`."""
        self._armed.append(Armed(text, parse_faults(text), count))

    def clear(self) -> None:
        """Take all faults away."""
        self._armed.clear()

    def take(self, replica: str, attempt: int, *, stream: bool) -> Rule | None:
        """The rule for a request, used up by it; requests that cannot show a fault do not use it up."""
        for armed in self._armed:
            for rule in armed.rules:
                if rule.selects(replica, attempt) and rule.fits(stream):
                    if armed.left is not None:
                        armed.left -= 1
                        if armed.left == 0:
                            self._armed.remove(armed)
                    return rule
        return None

    def list_armed(self) -> list[dict[str, object]]:
        """What is armed, for people."""
        return [{"fault": armed.text, "count": armed.left} for armed in self._armed]


FIGURES: Final = ("running", "waiting", "kv_cache_usage")


@dataclass(slots=True)
class LoadControl:
    """Figures that the metrics page shows in place of the engine's own; work goes on as it does."""

    told: dict[str, float] = field(default_factory=dict)

    def tell(self, figures: object) -> None:
        """Show these until the next order; raises `ValueError` with what is wrong."""
        if not isinstance(figures, dict) or not figures.keys() <= set(FIGURES):
            raise ValueError(f"write an object of {', '.join(FIGURES)}")
        for name, value in figures.items():
            if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{name}: a number from 0")
        self.told = dict(figures)

    def read(self, name: str, own: float) -> float:
        """The figure to show."""
        return self.told.get(name, own)
