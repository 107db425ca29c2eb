"""Which replicas of a pool serve at the moment, and what is said when none is ready.

Metrics alone never empty a pool. When no replica is ready by its own merit, those serve that last
were, the least doubtful ones first: the full and the silent, then the faulty, then those that are
absent by their own word. A connection that is refused at once is no worse for a client than an error
of ours at once, and if it is our own view that is broken, the answer comes.

A replica that its circuit keeps out does not stand in: our own requests, which it would be given, fail
there. When that is so of all, the pool is empty until a trial has succeeded (`circuit_share`).

Otherwise only orders empty a pool: nothing listed, everything drained, removed, or not ready by the
orchestrator's word. And a pool in which nothing ever was ready has no last known set. Then requests
fail at once, with a hint when to come back.

There is no panic threshold: Envoy's own is set to 0, and one ready replica of a hundred serves alone
until load makes it one of the full.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.readiness_reasons import ReasonKind
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.replica_status import ReplicaStatus


class Availability(StrEnum):
    """What a pool can do for a request."""

    NORMAL = "normal"
    DEGRADED_LAST_KNOWN = "degraded_last_known"
    """None is ready; the replicas that last were get the work."""
    EMPTY = "empty"
    """There is nobody to send work to."""


class WhenNoneReady(StrEnum):
    """What to do when no replica is ready by its own merit."""

    LAST_KNOWN = "last_known"
    FAIL_FAST = "fail_fast"


class ServingReason(StrEnum):
    """Why a pool is as available as it is."""

    READY = "ready"
    ALL_FULL = "all_full"
    NONE_READY = "none_ready"
    NONE_READY_YET = "none_ready_yet"
    ALL_DRAINED = "all_drained"
    """Every replica that is listed is out by somebody's order."""
    NO_REPLICAS = "no_replicas"
    CIRCUITS_OPEN = "circuits_open"
    """Whoever could serve is kept out by its circuit."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Who gets new work, and why they do."""

    availability: Availability
    reason: ServingReason
    members: tuple[ReplicaId, ...]


_TIERS: Final[dict[ReasonKind, int]] = {
    ReasonKind.REMARK: 0,
    ReasonKind.LOAD: 0,
    ReasonKind.DOUBT: 0,
    ReasonKind.CIRCUIT: 1,
    ReasonKind.FAULT: 1,
    ReasonKind.ABSENCE: 2,
}
"""The full and the silent share one tier: to send everything to the full, because the others cannot be
seen, would make one trouble two."""


def choose_serving(
    statuses: Sequence[ReplicaStatus], when_none_ready: WhenNoneReady = WhenNoneReady.LAST_KNOWN
) -> Serving:
    """Who gets new work."""
    ready = [status for status in statuses if status.ready]
    if ready:
        return _build(Availability.NORMAL, ServingReason.READY, ready)
    listed = [status for status in statuses if status.state is not ReplicaState.GONE]
    if not listed:
        return _build(Availability.EMPTY, ServingReason.NO_REPLICAS, [])
    able = [status for status in listed if not _is_out(status)]
    if not able:
        return _build(Availability.EMPTY, ServingReason.ALL_DRAINED, [])
    known = [status for status in able if status.was_ready and not _is_cut_off(status)]
    if not known and any(_is_cut_off(status) for status in able):
        return _build(Availability.EMPTY, ServingReason.CIRCUITS_OPEN, [])
    if not known:
        return _build(Availability.EMPTY, ServingReason.NONE_READY_YET, [])
    full = all(status.state is ReplicaState.SATURATED for status in able)
    reason = ServingReason.ALL_FULL if full else ServingReason.NONE_READY
    if when_none_ready is WhenNoneReady.FAIL_FAST:
        return _build(Availability.EMPTY, reason, [])
    best = min(_read_tier(status) for status in known)
    members = [status for status in known if _read_tier(status) == best]
    return _build(Availability.DEGRADED_LAST_KNOWN, reason, members)


def is_usable(status: ReplicaStatus) -> bool:
    """Whether nothing worse than load or doubt stands against it."""
    return _read_tier(status) == 0 and not _is_out(status)


def is_kept_out_by_circuit(status: ReplicaStatus) -> bool:
    """Whether its circuit is all that stands against it."""
    return {one.kind for one in status.findings} - {ReasonKind.REMARK} == {ReasonKind.CIRCUIT}


def _is_out(status: ReplicaStatus) -> bool:
    return any(finding.kind is ReasonKind.ORDER for finding in status.findings)


def _is_cut_off(status: ReplicaStatus) -> bool:
    return any(finding.kind is ReasonKind.CIRCUIT for finding in status.findings)


def _read_tier(status: ReplicaStatus) -> int:
    return max((_TIERS[finding.kind] for finding in status.findings), default=0)


def _build(availability: Availability, reason: ServingReason, members: list[ReplicaStatus]) -> Serving:
    return Serving(availability, reason, tuple(status.replica for status in members))
