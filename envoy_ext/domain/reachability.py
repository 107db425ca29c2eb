"""Does anything answer there? Strong signs, weak signs, and what outweighs them.

A refused or reset connection is a strong sign: the host is there and the process is not. One is
enough. A timeout is a weak one: the replica, the network or the sidecar may be slow. It takes several
in a row, and nothing heard for as long as metrics may be old. Bytes on a stream of ours outweigh both:
a slow page of a replica that streams is a slow page (llama.cpp serves its metrics behind the decode
loop), and a refusal that bytes or a token disproved speaks of a metrics port of its own. Until a page
comes from there, refusals of it are weak signs.

What timed out while our own loop stood still is no sign at all.
"""

import math
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.replica_status import Liveness
from envoy_ext.domain.signals import Level

DISPROOF_S: Final = 1.0
"""Bytes that come so long after a refusal were not just on their way when the process died."""


@dataclass(slots=True)
class Reachability:
    """The signs of life of one replica; changed only by its gate."""

    policy: ReadinessPolicy
    alive_at: float
    """When something last answered, or when looking began."""
    refusal: Level = Level.GOOD
    _heard: bool = False
    _answering: bool = True
    _strikes: int = 0
    _refused_at: float = math.inf
    _disproved: bool = False
    _void_until: float = -math.inf

    def note_answer(self, at: float) -> None:
        """It answered a look, a control call or an attempt, whatever the answer was."""
        self._live(at)
        self.refusal = Level.GOOD
        self._disproved = False

    def note_token(self, at: float) -> None:
        """Its model answered, where requests go: a refusal that stands is of another port."""
        disproved = self.refusal is Level.BAD
        self.note_answer(at)
        self._disproved = disproved

    def note_bytes(self, at: float) -> None:
        """Bytes came on a stream of ours."""
        self._live(at)
        if self.refusal is not Level.GOOD and at >= self._refused_at + DISPROOF_S:
            self.refusal = Level.GOOD
            self._disproved = True

    def note_refused(self, at: float) -> None:
        """Nothing listens there."""
        if self._disproved:
            self.note_timeout(at)
            return
        if self.refusal is not Level.BAD:
            self._refused_at = at
        self.refusal = Level.BAD
        self._answering = False

    def note_timeout(self, at: float) -> None:
        """No answer in time, or no way there."""
        self._answering = False
        if not self._disproved:
            self.refusal = Level.BETWEEN
        if at >= self._void_until:
            self._strikes += 1

    def note_late(self, seconds: float, now: float) -> None:
        """Nobody looked for so long: silence and timeouts of that time are ours, also those not in yet."""
        self._strikes = 0
        self.alive_at = min(now, self.alive_at + seconds)
        self._void_until = now + self.policy.hold_s

    def judge_silence(self, now: float) -> Level:
        """BAD when it has been silent for long and often enough, GOOD when it answers."""
        if self._answering:
            return Level.GOOD
        return Level.BAD if self._struck_out and now >= self.silent_at else Level.BETWEEN

    def read_liveness(self, now: float) -> Liveness:
        """Alive, dead or not known; how much work it has does not come into it."""
        if self.refusal is Level.BAD:
            return Liveness.DEAD
        return Liveness.ALIVE if self._heard and now < self.silent_at else Liveness.UNKNOWN

    @property
    def silent_at(self) -> float:
        """When silence, if it lasts, has lasted long enough."""
        return self.alive_at + self.policy.stale_s

    @property
    def _struck_out(self) -> bool:
        return self._strikes >= self.policy.strikes

    def _live(self, at: float) -> None:
        self._heard = True
        self._answering = True
        self._strikes = 0
        self.alive_at = max(self.alive_at, at)
