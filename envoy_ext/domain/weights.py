"""How much of a pool's new work each serving replica gets, from what it has free.

A weight is a whole number from 1 to `top`. It is never 0: Envoy refuses 0, and who shall get nothing
does not serve. It follows the tightest of what is known (running against the limit, the queue, the
KV cache), less in slow start, for a replica slower than its peers and for one whose requests failed
of late. It moves by at most `step` at a time and not at all for less than `deadband`: weights that
chase every page send everybody to whoever was emptiest a second ago.

Not known is not empty. A replica without a recent page never gets more than the least of those that
have one, nor more than it had. When nobody has one, all weigh the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.replica_status import ReplicaStatus


@dataclass(frozen=True, slots=True)
class WeightPolicy:
    """What counts as full, and how fast a weight may move."""

    concurrency: int = 32
    """Requests one replica computes at once; an engine that tells a lower limit is believed."""
    waiting: float = 16
    """Requests in an engine's queue at which it has no room: where it leaves."""
    kv_cache: float = 0.95
    """The share of its KV cache at which it has no room: where it leaves."""
    top: int = 100
    """Fine enough to tell 1 % apart; the sum of 40 million endpoints still fits what Envoy allows."""
    step: int = 20
    """From empty to full in five looks: a weight never overtakes the hold that would take it out."""
    deadband: int = 5
    slowest: float = 0.5
    """The least that a slow replica's latency leaves it: speed differs, and slow is not broken."""


def compute_weights(
    serving: Sequence[ReplicaStatus],
    previous: Mapping[ReplicaId, int],
    policy: WeightPolicy,
    latencies_s: Mapping[ReplicaId, float],
) -> dict[ReplicaId, int]:
    """The next weight of each replica. `previous` are those it served with; `latencies_s` are our own."""
    shares = {status.replica: compute_free_share(status, policy) for status in serving}
    if all(share is None for share in shares.values()):
        return {status.replica: _round(policy.top * status.ramp) for status in serving}
    known_s = [latencies_s[status.replica] for status in serving if status.replica in latencies_s]
    typical_s = median(known_s) if known_s else None
    weights: dict[ReplicaId, int] = {}
    for status in serving:
        share = shares[status.replica]
        if share is not None:
            target = _compute_target(status, share, latencies_s.get(status.replica), typical_s, policy)
            weights[status.replica] = _approach(previous.get(status.replica), target, policy)
    least = min(weights.values())
    for status in serving:
        if status.replica not in weights:
            weights[status.replica] = min(previous.get(status.replica, least), least)
    return {status.replica: weights[status.replica] for status in serving}


def compute_first_weight(
    status: ReplicaStatus, latency_s: float | None, typical_s: float | None, policy: WeightPolicy
) -> int:
    """What `compute_weights` gives to one that served nothing before, where either all that serve tell what
    is free or none does. `typical_s` is the median of the latencies that are known."""
    share = compute_free_share(status, policy)
    if share is None:
        return _round(policy.top * status.ramp)
    return _compute_target(status, share, latency_s, typical_s, policy)


def cap_unknown(
    weights: Mapping[ReplicaId, int], serving: Sequence[ReplicaStatus], policy: WeightPolicy
) -> dict[ReplicaId, int]:
    """No replica of which nothing is known weighs more than the least of the others."""
    unknown = {status.replica for status in serving if compute_free_share(status, policy) is None}
    least = min((weight for replica, weight in weights.items() if replica not in unknown), default=None)
    if least is None:
        return dict(weights)
    return {
        replica: min(weight, least) if replica in unknown else weight for replica, weight in weights.items()
    }


def compute_free_share(status: ReplicaStatus, policy: WeightPolicy) -> float | None:
    """How much of a replica is free, 0 to 1, by whatever is tightest; None when that is not known.

    A queue alone does not tell: it is empty until the last place is taken.
    """
    load = status.load
    if not status.fresh or (load.running is None and load.kv_cache_usage is None):
        return None
    limit = policy.concurrency if load.max_running is None else min(policy.concurrency, load.max_running)
    # Our own streams are known to this moment, the page only to its own.
    running = max(load.running or 0.0, status.inflight)
    used = [running / max(limit, 1.0)]
    if load.waiting is not None:
        used.append(load.waiting / policy.waiting)
    if load.kv_cache_usage is not None:
        used.append(load.kv_cache_usage / policy.kv_cache)
    return max(0.0, 1.0 - max(used))


def _compute_target(
    status: ReplicaStatus,
    share: float,
    latency_s: float | None,
    typical_s: float | None,
    policy: WeightPolicy,
) -> int:
    pace = _compute_pace(latency_s, typical_s, policy)
    return _round(policy.top * share * status.ramp * pace / (1.0 + status.failures))


def _compute_pace(latency_s: float | None, typical_s: float | None, policy: WeightPolicy) -> float:
    """1 for a replica as fast as its peers or faster: the slow get less, the fast are no magnet."""
    if latency_s is None or typical_s is None or latency_s <= typical_s:
        return 1.0
    return max(policy.slowest, typical_s / latency_s)


def _approach(previous: int | None, target: int, policy: WeightPolicy) -> int:
    if previous is None:
        return target
    if abs(target - previous) < policy.deadband:
        return previous
    return max(previous - policy.step, min(previous + policy.step, target))


def _round(weight: float) -> int:
    return max(1, round(weight))
