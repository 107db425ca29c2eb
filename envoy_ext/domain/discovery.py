"""What a source of discovery lists, and what changed between two of its lists.

A source tells a pool's whole list each time, or that it cannot tell one at the moment; then the last
one stands. Nothing here speaks of health: whether a replica that is listed gets work is decided by
its gate (`readiness`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from envoy_ext.domain.ids import PoolName, ReplicaId


class Standing(StrEnum):
    """What the orchestrator says of a replica that it lists."""

    LISTED = "listed"
    """It may get work; whether it does is for its gate to say."""
    HELD = "held"
    """Listed, and not ready by the orchestrator's word: no work, whatever its own signals say."""
    LEAVING = "leaving"
    """It is being ended: no new work, and the streams it has may end."""


@dataclass(frozen=True, slots=True)
class Member:
    """One replica as its source lists it."""

    replica: ReplicaId
    url: str
    """`http://host:port`, where requests go."""
    addresses: tuple[str, ...] = ()
    """`ip:port` of each address it is reached at; none while its name does not resolve."""
    standing: Standing = Standing.LISTED
    identity: str = ""
    """Tells two of the same id apart that follow each other, such as a pod's uid; "" where nothing can."""
    node: str | None = None
    zone: str | None = None
    gpus: tuple[int, ...] = ()
    metrics_url: str | None = None
    dcgm_url: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """All replicas of a pool, as the source sees them at this moment. None is an answer too."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class ListingFailed:
    """The source cannot tell; what it told last still stands."""

    reason: str
    """Low-cardinality, for programs."""
    detail: str
    """For people: what happened, and the mend where one is known."""


Told = Listing | ListingFailed


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """What to do so that one list becomes another. No replica stands in two of the four."""

    added: tuple[Member, ...] = ()
    replaced: tuple[Member, ...] = ()
    """Another one under the id of one that was listed: what was known of that one says nothing of it."""
    changed: tuple[Member, ...] = ()
    """The same one, with another address, standing or place."""
    removed: tuple[ReplicaId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.replaced or self.changed or self.removed)


def compute_changes(before: Sequence[Member], after: Sequence[Member]) -> MemberChanges:
    """What changed from one list to the next; ids are unique within each."""
    known = {member.replica: member for member in before}
    listed = {member.replica for member in after}
    return MemberChanges(
        added=tuple(one for one in after if one.replica not in known),
        replaced=tuple(one for one in after if _is_other(known.get(one.replica), one)),
        changed=tuple(one for one in after if _has_changed(known.get(one.replica), one)),
        removed=tuple(one.replica for one in before if one.replica not in listed),
    )


def tell_apart(
    members: Sequence[Member], pool: PoolName, taken: Collection[ReplicaId], known: Collection[ReplicaId]
) -> tuple[Member, ...]:
    """The members of a pool, with ids that nobody in another pool has (`taken`).

    Pods of one name may serve in two namespaces, and people give orders by id alone. Whoever comes
    second is called `pool:id`, and is so (`known`) for as long as it is listed.
    """
    found = []
    for member in members:
        apart = ReplicaId(f"{pool}:{member.replica}")
        found.append(replace(member, replica=apart) if apart in known or member.replica in taken else member)
    return tuple(found)


def _is_other(before: Member | None, after: Member) -> bool:
    return before is not None and before.identity != after.identity


def _has_changed(before: Member | None, after: Member) -> bool:
    return before is not None and before.identity == after.identity and before != after
