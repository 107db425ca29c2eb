"""The reasons that stand against one replica: a latch for each, and the sentence that goes with it."""

from dataclasses import replace
from typing import Final

from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.readiness_reasons import KINDS, Finding, ReadinessReason, ReasonKind
from envoy_ext.domain.signals import MIRROR_S, FlapMemory, Latch, LatchRule, Level, Turn

HELD: Final = (ReadinessReason.WAITING, ReadinessReason.KV_CACHE, ReadinessReason.GPU_TEMPERATURE)
"""Numbers that swing: they must last before they count."""

AT_ONCE: Final = (
    ReadinessReason.ENGINE_DEAD,
    ReadinessReason.SLEEPING,
    ReadinessReason.GPU_XID,
    ReadinessReason.GPU_ECC,
    ReadinessReason.GPU_ROW_REMAP,
)
"""Facts on a page: true at the first look."""

TIMED: Final = (
    ReadinessReason.REFUSED,
    ReadinessReason.UNREACHABLE,
    ReadinessReason.HANG,
    ReadinessReason.JUST_FAILED,
)
"""Judged at any moment, not only at a look; each has its own patience before it says BAD."""

HARDWARE: Final = frozenset(
    {
        ReadinessReason.GPU_XID,
        ReadinessReason.GPU_ECC,
        ReadinessReason.GPU_ROW_REMAP,
        ReadinessReason.GPU_TEMPERATURE,
    }
)
"""What outlives a process."""


class ReasonBoard:
    """The latches of one replica; changed only by its gate."""

    def __init__(self, policy: ReadinessPolicy) -> None:
        held = LatchRule(policy.hold_s, max_gap_s=policy.stale_s, mirror_s=MIRROR_S)
        series = replace(held, times=policy.allocation_series)
        at_once = LatchRule(0.0, max_gap_s=policy.stale_s)
        self._policy = policy
        self._flaps = FlapMemory()
        self._texts: dict[ReadinessReason, str] = {}
        self._latches = {
            **{reason: Latch(held) for reason in HELD},
            ReadinessReason.ALLOCATION_FAILURES: Latch(series),
            **{reason: Latch(at_once) for reason in AT_ONCE},
            **{reason: Latch(LatchRule(0.0)) for reason in TIMED},
        }

    def observe(self, reason: ReadinessReason, level: Level, at: float, text: str) -> None:
        """Take in what a signal says at one look; `text` is the sentence for as long as it stands."""
        latch = self._latches[reason]
        # Only a latch that has tripped waits for its return, and most have not.
        turn = latch.observe(level, at, self._compute_return_hold(at) if latch.tripped else 0.0)
        if turn is Turn.BROKEN:
            self._flaps.note_unrest(at)
        if latch.tripped and level is not Level.UNKNOWN and text:
            self._texts[reason] = text

    def note_left(self, at: float) -> None:
        """The replica has left service: coming back takes longer each time."""
        self._flaps.note_left(at)

    def is_open(self, reason: ReadinessReason) -> bool:
        return self._latches[reason].tripped

    def opened_at(self, reason: ReadinessReason) -> float:
        return self._latches[reason].tripped_at

    def holds(self, kinds: frozenset[ReasonKind]) -> bool:
        """Whether any reason of these kinds stands."""
        return any(latch.tripped and KINDS[reason] in kinds for reason, latch in self._latches.items())

    def list_findings(self) -> list[Finding]:
        return [
            Finding(reason, self._texts.get(reason, reason))
            for reason, latch in self._latches.items()
            if latch.tripped
        ]

    def forget_process(self) -> None:
        """Another process is there: only what is known of the hardware still stands.

        How often the last one left is no measure either: a restart is no swinging signal, and it comes back
        by a control call and a slow start. Else two restarts and one busy moment would be five idle minutes.
        """
        self._flaps = FlapMemory()
        for reason, latch in self._latches.items():
            if reason not in HARDWARE:
                latch.reset()

    def forget_absence(self) -> None:
        """Somebody has come: that nobody was there before is no signal that swings."""
        self._latches[ReadinessReason.REFUSED].reset()
        self._latches[ReadinessReason.UNREACHABLE].reset()

    def list_deadlines(self, now: float) -> list[float]:
        """When a run of a reason that time alone can end would end it."""
        hold = self._compute_return_hold(now)
        ends = (self._latches[reason].returns_at(hold) for reason in TIMED)
        return [end for end in ends if end is not None]

    def is_restless(self) -> bool:
        """Whether time or bytes could change anything at the moment."""
        return any(self._latches[reason].tripped for reason in TIMED)

    def _compute_return_hold(self, at: float) -> float:
        return self._flaps.compute_return_hold(self._policy.hold_s, at)
