"""The ladder: what a class of traffic gives up, step by step, before one of its requests is refused.

    the line fills, the deadline is near ──> shorten_generation, shorten_context    less of an answer
    no room, no time, no replica ──────────> pool, job, template, hand_off, refuse  another answer, or none

The first two cost an answer little and help only while there is still room: a shorter request keeps its
slot for a shorter time. Once there is none, shortening helps nobody, and the rungs below are tried in their
declared order until one holds. A rung that does not fit the request (`rewriting`, `turns`, `own_answers`) is
passed over.

A class whose operations have side effects has no ladder: it is answered by its own model, or refused.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.outcomes import RungName

FILLING: Final = 0.5
"""From how full a line on requests are shortened: early enough that the slots it frees still count."""


class Trigger(StrEnum):
    """What makes a request step down. The last four are the codes that it would be refused with."""

    LINE_FILLING = "line_filling"
    """It has to wait, and the line is half full."""
    DEADLINE_NEAR = "deadline_near"
    """It would get a slot in time, and not be computed in time, as long as others take."""
    QUEUE_FULL = "queue_full"
    QUEUE_DEADLINE_EXCEEDED = "queue_deadline_exceeded"
    NO_READY_REPLICA = "no_ready_replica"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    """Every replica is kept out by its circuit."""


_SHORTENS: Final = frozenset({RungName.SHORTEN_GENERATION, RungName.SHORTEN_CONTEXT})
_LEADS_AWAY: Final = frozenset(
    {RungName.POOL, RungName.JOB, RungName.TEMPLATE, RungName.HAND_OFF, RungName.REFUSE}
)
STEPS: Final[dict[Trigger, frozenset[RungName]]] = {
    Trigger.LINE_FILLING: _SHORTENS,
    Trigger.DEADLINE_NEAR: _SHORTENS,
    Trigger.QUEUE_FULL: _LEADS_AWAY,
    Trigger.QUEUE_DEADLINE_EXCEEDED: _LEADS_AWAY,
    Trigger.NO_READY_REPLICA: _LEADS_AWAY,
    Trigger.UPSTREAM_UNAVAILABLE: _LEADS_AWAY,
}
"""Which trigger leads to which rungs. Any other code (a deadline that has passed, a gateway that stops) leads
to none: there is no time for another answer."""


@dataclass(frozen=True, slots=True)
class ShortenGeneration:
    """Let the answer have fewer tokens than the client asked for."""

    max_tokens: int
    name: RungName = RungName.SHORTEN_GENERATION


@dataclass(frozen=True, slots=True)
class ShortenContext:
    """Drop the oldest turns of a conversation: all but the last few, or until the prompt is small enough."""

    keep_turns: int | None = None
    max_prompt_tokens: int | None = None
    name: RungName = RungName.SHORTEN_CONTEXT


@dataclass(frozen=True, slots=True)
class OtherPool:
    """Ask another pool, under the name that its model has there."""

    pool: PoolName
    model: str
    name: RungName = RungName.POOL


@dataclass(frozen=True, slots=True)
class LaterJob:
    """Run it as a job, once there is a slot that nobody waits for."""

    name: RungName = RungName.JOB


@dataclass(frozen=True, slots=True)
class Template:
    """Answer with a fixed text."""

    text: str
    name: RungName = RungName.TEMPLATE


@dataclass(frozen=True, slots=True)
class HandOff:
    """Tell a person, and answer with a fixed text that says so."""

    webhook: str
    text: str
    timeout_s: float
    name: RungName = RungName.HAND_OFF


Shortening = ShortenGeneration | ShortenContext
WayOut = OtherPool | LaterJob | Template | HandOff
Rung = Shortening | WayOut


@dataclass(frozen=True, slots=True)
class Ladder:
    """One class's rungs, in their order; the last one, to refuse, is always there and not listed."""

    rungs: tuple[Rung, ...] = ()
    side_effects: bool = False
    """Its operations act on the world: neither model nor context is ever another than the client's."""

    def list_rungs(self, trigger: Trigger) -> tuple[Rung, ...]:
        """The rungs that a trigger leads to, in their order."""
        if self.side_effects:
            return ()
        return tuple(one for one in self.rungs if one.name in STEPS[trigger])


NO_LADDER: Final = Ladder()


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a queue knows of a request that is about to ask for a slot; None is not known."""

    waits: bool
    """Whether it would have to wait."""
    waiting: int
    """How many wait already."""
    length: int
    """How many may."""
    wait_s: float | None
    hold_s: float | None
    """What time is left for its answer, by those of its class; a slot's mean while that is not known."""


def list_shortenings(ladder: Ladder, outlook: Outlook, left_s: float | None) -> tuple[Shortening, ...]:
    """What of a request is to be shortened before it goes on; `left_s` is what its own deadline leaves.

    One rung after another: the upper half of the line is divided evenly among those that there are. A
    deadline that is near takes all of them at once, for it does not come back.
    """
    rungs = [
        one
        for one in ladder.list_rungs(Trigger.LINE_FILLING)
        if isinstance(one, ShortenGeneration | ShortenContext)
    ]
    if (
        outlook.hold_s is not None
        and left_s is not None
        and (outlook.wait_s or 0.0) + outlook.hold_s > left_s
    ):
        return tuple(rungs)
    if not outlook.waits or outlook.length == 0:
        return ()
    share = outlook.waiting / outlook.length
    steps = (FILLING + (1 - FILLING) * number / len(rungs) for number in range(len(rungs)))
    return tuple(one for one, step in zip(rungs, steps, strict=True) if share >= step)


def list_ways_out(ladder: Ladder, code: str) -> tuple[WayOut, ...]:
    """What is tried, in this order, before a request is refused with this code."""
    trigger = next((one for one in Trigger if one.value == code), None)
    found = () if trigger is None else ladder.list_rungs(trigger)
    return tuple(one for one in found if isinstance(one, OtherPool | LaterJob | Template | HandOff))


BECOMES_JOB: Final = frozenset(
    {
        *(ApiFamily.CHAT, ApiFamily.COMPLETIONS, ApiFamily.RESPONSES, ApiFamily.MESSAGES),
        *(ApiFamily.TGI, ApiFamily.EMBEDDINGS),
    }
)
"""APIs whose requests can be run later: what they answer is a document. What passes unread is not stored."""

CHANGES_MODEL: Final = frozenset(
    {ApiFamily.CHAT, ApiFamily.COMPLETIONS, ApiFamily.RESPONSES, ApiFamily.MESSAGES, ApiFamily.TGI}
)
"""APIs whose requests another model can answer. An embedding of another model is no answer at all: it looks
like one, and is compared with those of the first."""
