"""When a replica gets work, as numbers; the configuration's `readiness` becomes one of these."""

from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.signals import Band

STRIKES: Final = 3
"""Weak signs (timeouts) in a row before silence counts. Three is Kubernetes' failureThreshold, and
what others who flapped at one miss settled on."""


_WAITING: Final = Band(leave_at=16, return_at=4)
_KV_CACHE: Final = Band(leave_at=0.95, return_at=0.85)
_GPU_TEMPERATURE: Final = Band(leave_at=90, return_at=80)
OWN_FAILURES: Final = Band(leave_at=3, return_at=1)
SLOW_START_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ReadinessPolicy:
    """The thresholds, hold times and deadlines of one pool."""

    scrape_s: float = 1.0
    stale_s: float = 10.0
    """Metrics older than this say nothing."""
    hold_s: float = 5.0
    """How long a signal must last before it changes anything."""
    waiting: Band = _WAITING
    """Requests in the engine's own queue."""
    kv_cache: Band = _KV_CACHE
    """Share of the KV cache in use."""
    gpu_temperature: Band = _GPU_TEMPERATURE
    """Degrees Celsius of the hottest GPU."""
    hang_s: float = 120.0
    """No progress for this long, with work in hand."""
    warmup: bool = True
    """A control call (one real token) must pass before the first work."""
    slow_start_s: float = SLOW_START_S
    """How long a replica that joins, or comes back, takes to grow to its full share: long enough for
    compiled graphs and prefix caches to fill, and the order of Envoy's own slow-start examples."""
    strikes: int = STRIKES
    own_failures: Band = OWN_FAILURES
    """Decayed count of our own attempts that failed there."""
    allocation_series: int = 3
    """Scrapes in a row that each saw more allocation failures: one preemption is how an engine
    works, a series is a cache too small for its load."""
    control_retry_s: float = 1.0
    """The first wait after a failed control call; it doubles."""
    control_retry_max_s: float = 30.0
