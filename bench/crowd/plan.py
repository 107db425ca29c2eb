"""Who asks for what, and when: classes, callers and an open-loop plan of arrivals.

Open loop: a request comes when the plan says so, however many before it still wait. Clients that wait for
an answer before they ask again slow down with the gateway, and never overload it.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

PREFILL_S: Final = 0.1
TOKEN_S: Final = 0.02
DIRECT_PER_S: Final = 4.0
"""Requests to an engine without a gateway before it, all the time: what the rest is measured against."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One traffic class, and how its requests are."""

    name: str
    weight: int
    tokens: tuple[int, int]
    """The shortest and the longest answer."""
    priority: int = 0
    leave: float = 0.04
    """The part of its clients that leave: half of them after a time, half in the middle of their stream."""
    patience_s: tuple[float, float] = (0.05, 2.5)


@dataclass(frozen=True, slots=True)
class Sender:
    """One caller: which class it is of, and how many times the capacity of all slots it asks for."""

    kind: str
    caller: str
    times: float


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("chat", 4, (12, 20)),
        Kind("batch", 2, (20, 30)),
        Kind("default", 1, (12, 20)),
        # It hardly waits, so those of its clients that leave do so in prefill.
        Kind("alarm", 1, (6, 10), priority=1, leave=0.3, patience_s=(0.03, 0.3)),
    )
}
SENDERS: Final = (
    Sender("chat", "greedy", 3.0),
    Sender("chat", "modest-1", 0.7),
    Sender("chat", "modest-2", 0.7),
    Sender("chat", "rare", 0.03),
    Sender("batch", "batch-1", 1.5),
    Sender("batch", "batch-2", 1.2),
    Sender("default", "default-1", 1.5),
    Sender("default", "default-2", 1.27),
    Sender("alarm", "alarm", 0.1),
)
"""Ten times the capacity in all."""
SHORT_S: Final = (0.5, 1.0)
MIDDLE_S: Final = (1.5, 3.5)
LONG_S: Final = (5.0, 8.0)
LARGE: Final = 200_000
"""Bytes of one prompt in fifty."""
"""Deadlines: hardly to be met in a full line, now and then, and mostly. A third of all requests has none."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    seconds: float
    seed: int
    replicas: int = 2
    slots_each: int = 4
    queue: int = 32
    max_wait_s: float = 8.0
    calm: int = 6
    """Requests one after another by each of four clients, before the load; of each class in turn."""

    @property
    def slots(self) -> int:
        """Of all replicas."""
        return self.replicas * self.slots_each

    @property
    def capacity_per_s(self) -> float:
        """Answers in a second of engines whose slots are never empty, in the proportions that are fair."""
        return self.slots / sum(part * compute_mean_s(KINDS[name]) for name, part in list_parts().items())


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the plan."""

    name: str
    """Its request id."""
    at_s: float
    kind: str
    caller: str
    stream: bool
    tokens: int
    deadline_s: float | None = None
    leaves_after_s: float | None = None
    leaves_after_deltas: int | None = None
    prompt_bytes: int = 0
    """0: as short as can be."""
    direct: bool = False


def list_parts() -> dict[str, float]:
    """Each class's part of all answers of a full pool: who comes first all it wants, the rest by weight."""
    first = {one.kind: one.times for one in SENDERS if KINDS[one.kind].priority}
    rest = [kind for kind in KINDS.values() if not kind.priority]
    left, weights = 1.0 - sum(first.values()), sum(kind.weight for kind in rest)
    return first | {kind.name: left * kind.weight / weights for kind in rest}


def compute_mean_s(kind: Kind) -> float:
    """How long an engine takes for one of its requests."""
    return PREFILL_S + TOKEN_S * sum(kind.tokens) / 2


def draw_plan(setting: Setting) -> list[Asked]:
    """All requests of a run, in their order."""
    dice = random.Random(setting.seed)
    asked: list[Asked] = []
    for sender in SENDERS:
        for number, at_s in enumerate(_draw_times(dice, sender.times * setting.capacity_per_s, setting)):
            asked.append(_draw_request(dice, sender, f"{sender.caller}-{number}", at_s))
    for number, at_s in enumerate(_draw_times(dice, DIRECT_PER_S, setting)):
        asked.append(Asked(f"direct-{number}", at_s, "chat", "direct", number % 2 == 0, 8, direct=True))
    return sorted(asked, key=lambda one: one.at_s)


def _draw_times(dice: random.Random, per_s: float, setting: Setting) -> Iterable[float]:
    at_s = dice.expovariate(per_s)
    while at_s < setting.seconds:
        yield at_s
        at_s += dice.expovariate(per_s)


def _draw_request(dice: random.Random, sender: Sender, name: str, at_s: float) -> Asked:
    kind, stream = KINDS[sender.kind], dice.random() < 0.5
    deadline = dice.choices((None, LONG_S, MIDDLE_S, SHORT_S), (2, 2, 1, 1))[0]
    more: dict[str, Any] = {}
    if sender.kind != "alarm" and deadline is not None:
        more["deadline_s"] = round(dice.uniform(*deadline), 3)
    if dice.random() < kind.leave:
        if stream and dice.random() < 0.5:
            more["leaves_after_deltas"] = 3
        else:
            more["leaves_after_s"] = dice.uniform(*kind.patience_s)
    more["prompt_bytes"] = LARGE if dice.random() < 0.02 else 0
    return Asked(name, at_s, sender.kind, sender.caller, stream, dice.randint(*kind.tokens), **more)
