"""The circuits of one pool, as numbers; the configuration's `circuit` becomes one of these."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from envoy_ext.domain.circuit_evidence import FailureClass

IN_A_ROW: Final[Mapping[FailureClass, int]] = MappingProxyType(
    {
        # The way there, or the process: no request can be to blame, and each silence costs a client seconds.
        FailureClass.CONNECT: 3,
        FailureClass.SILENCE: 3,
        # Envoy's own default for consecutive 5xx.
        FailureClass.RESET: 5,
        FailureClass.ENGINE_ERROR: 5,
    }
)


@dataclass(frozen=True, slots=True)
class CircuitPolicy:
    """The circuits of one pool, as numbers."""

    window_s: float = 30.0
    min_attempts: int = 10
    failure_rate: float = 0.5
    in_a_row: Mapping[FailureClass, int] = field(default_factory=lambda: IN_A_ROW)
    """Of one class; as many as the most of them are enough of whatever class. One that is missing never
    counts."""
    open_s: float = 5.0
    open_max_s: float = 60.0
    trial_requests: int = 2
    """At a time."""
    trial_successes: int = 3
    max_open: float = 0.5
    """The share of a pool that may be out on the word of requests alone (`circuit_share`)."""
    probes: bool = True
    """Whether there are control calls."""
