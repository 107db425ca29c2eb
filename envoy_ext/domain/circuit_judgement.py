"""Whether a closed circuit is to open, by its window alone: failures in a row, or too large a share.

Two answers are kept apart. What must be the replica's fault opens it. What may as well be the fault of the
requests makes it suspected, and its model is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from envoy_ext.domain.circuit_evidence import Blame, FailureClass
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.circuit_window import CircuitWindow, Failures

_ALL = frozenset(Blame)


@dataclass(frozen=True, slots=True)
class Found:
    """What speaks against a replica."""

    kind: FailureClass
    why: str
    """For people."""
    certain: bool
    """Whether it is the replica's fault; else its model has to be asked."""


def judge_window(window: CircuitWindow, policy: CircuitPolicy, now: float) -> Found | None:
    """What a window has against its replica."""
    seen, successes = window.read(now)
    certain = _choose_certain(seen, successes, policy)
    for blames in (certain, _ALL) if policy.probes else (certain,):
        found = _find_row(window.row, blames, policy) or _find_share(seen, successes, blames, policy)
        if found is not None:
            return Found(*found, certain=blames is certain)
    return None


def _choose_certain(seen: Failures, successes: int, policy: CircuitPolicy) -> frozenset[Blame]:
    """Which blames are held against the replica at once.

    Requests that were tried at one replica only are like those that were tried at two, which are the
    sample. Where nobody can ask the model, it has to do that nothing was answered.
    """
    if not policy.probes and not successes:
        return _ALL
    by = {blame: sum(n for (_, one), n in seen.items() if one is blame) for blame in Blame}
    if by[Blame.REQUEST] > by[Blame.REPLICA]:
        return frozenset({Blame.REPLICA})
    return frozenset({Blame.REPLICA, Blame.UNCLEAR})


def _find_row(
    row: Failures, blames: frozenset[Blame], policy: CircuitPolicy
) -> tuple[FailureClass, str] | None:
    limits, by_class = policy.in_a_row, _sum_classes(row, blames)
    full = [kind for kind, count in by_class.items() if count >= limits[kind]]
    count = sum(by_class.values())
    if not full and count < max(limits.values(), default=count + 1):
        return None
    kind = full[0] if full else _find_most(by_class)
    return kind, f"{count} failures in a row ({kind})"


def _find_share(
    seen: Failures, successes: int, blames: frozenset[Blame], policy: CircuitPolicy
) -> tuple[FailureClass, str] | None:
    by_class = _sum_classes(seen, blames)
    failed = sum(by_class.values())
    attempts = failed + successes
    if not failed or attempts < policy.min_attempts or failed < policy.failure_rate * attempts:
        return None
    kind = _find_most(by_class)
    return kind, f"{failed} of {attempts} attempts in {policy.window_s:g} s failed (most: {kind})"


def _sum_classes(failures: Failures, blames: frozenset[Blame]) -> dict[FailureClass, int]:
    """In the order of the words, so that equal counts give one answer."""
    sums = {
        kind: sum(n for (one, blame), n in failures.items() if one is kind and blame in blames)
        for kind in FailureClass
    }
    return {kind: n for kind, n in sums.items() if n}


def _find_most(by_class: Mapping[FailureClass, int]) -> FailureClass:
    return max(by_class, key=lambda kind: by_class[kind])
