"""Has the model answered? One real token, asked for once in each incarnation.

A process that listens, and a page that says all is well, are no proof of a loaded model. An answer is;
so is a live counter that rises by what the model gives others, while our call waits for its turn. A
failed call is asked again after a wait that doubles: a replica that cannot answer yet is not helped by
being asked.
"""

import math
from dataclasses import dataclass

from envoy_ext.domain.readiness_policy import ReadinessPolicy


@dataclass(slots=True)
class ControlCalls:
    """What is known of one replica's control calls; changed only by its gate."""

    policy: ReadinessPolicy
    proven: bool = False
    failure: str = ""
    declined: str = ""
    """Why it was proven without a token."""
    retry_at: float = -math.inf
    _failures: int = 0

    def note_passed(self, declined: str = "") -> None:
        """The model gave a token, or proof is not asked for, or `declined` says why none is to be had."""
        self.proven = True
        self.failure = ""
        self.declined = declined
        self._failures = 0
        self.retry_at = -math.inf

    def note_failed(self, detail: str, at: float) -> None:
        """It gave none. Whoever was proven stays so: one slow token is no proof of the contrary."""
        self.failure = detail
        wait = self.policy.control_retry_s * 2.0 ** min(self._failures, 16)
        self._failures += 1
        self.retry_at = at + min(wait, self.policy.control_retry_max_s)

    def hurry(self) -> None:
        """Something answers there from now on: what failed before was for want of anybody to ask."""
        self.retry_at = -math.inf
        self._failures = 0

    def reset(self) -> None:
        """Another process: nothing is proven."""
        self.proven = False
        self.failure = ""
        self.declined = ""
        self.retry_at = -math.inf
        self._failures = 0
