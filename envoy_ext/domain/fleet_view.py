"""One frozen picture of a pool: who is there, who serves, with what weight, and who may take a replay.

Everything outside reads this and nothing behind it: endpoints for Envoy, `/v1/replicas`, the gate of a
replay. It is built from statuses, profiles and the picture before, so the same inputs give the same
picture.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import compress
from operator import is_not
from statistics import median
from typing import Final

from envoy_ext.domain.availability import (
    Availability,
    Serving,
    ServingReason,
    WhenNoneReady,
    choose_serving,
    is_usable,
)
from envoy_ext.domain.events import Target
from envoy_ext.domain.fingerprint import Difference, Fingerprint, are_compatible, describe_mix
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.replica_status import ReplicaStatus
from envoy_ext.domain.weights import (
    WeightPolicy,
    cap_unknown,
    compute_first_weight,
    compute_free_share,
    compute_weights,
)


class Offer(StrEnum):
    """How a replica is offered to Envoy."""

    SERVING = "serving"
    WITHHELD = "withheld"
    """Known, and not to get new work."""
    DRAINING = "draining"
    ABSENT = "absent"
    """Not to be listed at all."""


@dataclass(frozen=True, slots=True)
class ReplicaProfile:
    """What configuration and discovery say of a replica."""

    replica: ReplicaId
    fingerprint: Fingerprint
    """As declared, with what its engine tells put over it."""
    addresses: tuple[str, ...] = ()
    """`ip:port` of each address it resolves to; a replay is sent to the first."""
    url: str = ""
    node: str | None = None
    zone: str | None = None
    gpus: tuple[int, ...] = ()
    contradictions: tuple[Difference, ...] = ()
    """Where its engine tells something else (`right`) than the configuration does (`left`)."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica in the picture."""

    status: ReplicaStatus
    profile: ReplicaProfile
    offer: Offer
    weight: int
    """Its part of the new work while it serves; 1 while it does not."""

    @property
    def id(self) -> ReplicaId:
        return self.status.replica


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool in the picture."""

    pool: PoolName
    at: float
    weighed_at: float
    availability: Availability
    reason: ServingReason
    replicas: tuple[ReplicaView, ...]
    mix: tuple[str, ...]
    """One line for each field in which fingerprints are known to differ."""
    tally: "Tally | None" = field(default=None, compare=False, repr=False)
    """Read off the rest, so that the next picture need not look at all of it."""

    def find(self, replica: ReplicaId) -> ReplicaView | None:
        if self.tally is None:
            return next((view for view in self.replicas if view.id == replica), None)
        place = self.tally.places.get(replica)
        return None if place is None else self.replicas[place]


@dataclass(frozen=True, slots=True)
class Tally:
    """What `update_pool_view` has to know of a whole picture."""

    places: Mapping[ReplicaId, int]
    """Where each stands in `replicas`; one object for as long as nobody comes or goes."""
    serving: int
    """How many serve."""
    unknown: frozenset[ReplicaId]
    """Those of them of which it is not known how much is free."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """All pools."""

    pools: tuple[PoolView, ...]

    def find(self, pool: PoolName) -> PoolView | None:
        return next((view for view in self.pools if view.pool == pool), None)


@dataclass(frozen=True, slots=True)
class ViewPolicy:
    """What a picture is built by."""

    weights: WeightPolicy = field(default_factory=WeightPolicy)
    when_none_ready: WhenNoneReady = WhenNoneReady.LAST_KNOWN
    weigh_every_s: float = 1.0
    """Weights move once in this time, however often a picture is taken: once a page is enough."""


def build_pool_view(
    pool: PoolName,
    replicas: Sequence[tuple[ReplicaStatus, ReplicaProfile]],
    previous: PoolView | None,
    policy: ViewPolicy,
    now: float,
    latencies_s: Mapping[ReplicaId, float] | None = None,
) -> PoolView:
    """The picture of a pool. `latencies_s` are our own times to a first delta, where there are some."""
    serving = choose_serving([status for status, _ in replicas], policy.when_none_ready)
    members = frozenset(serving.members)
    kept = _read_weights(previous)
    weighed_at = now if previous is None else previous.weighed_at
    due = _is_due(previous, serving, policy, now)
    weights: dict[ReplicaId, int] = {}
    if due or not members <= kept.keys():
        weights = compute_weights(
            [status for status, _ in replicas if status.replica in members],
            kept,
            policy.weights,
            latencies_s or {},
        )
    if due:
        weighed_at = now
    else:
        weights |= {replica: weight for replica, weight in kept.items() if replica in members}
        weights = cap_unknown(
            weights, [status for status, _ in replicas if status.replica in members], policy.weights
        )
    views = tuple(
        ReplicaView(status, profile, _choose_offer(status, members), weights.get(status.replica, 1))
        for status, profile in replicas
    )
    listed = _list_fingerprints(views)
    same = previous is not None and listed == _list_fingerprints(previous.replicas)
    mix = previous.mix if previous is not None and same else describe_mix(listed)
    tally = Tally(
        places={view.id: place for place, view in enumerate(views)},
        serving=len(members),
        unknown=frozenset(
            one.id for one in views if one.offer is Offer.SERVING and not _is_known(one.status, policy)
        ),
    )
    return PoolView(pool, now, weighed_at, serving.availability, serving.reason, views, mix, tally)


def update_pool_view(
    previous: PoolView,
    changed: Sequence[tuple[ReplicaStatus, ReplicaProfile]],
    policy: ViewPolicy,
    now: float,
    read_latencies: Callable[[], Mapping[ReplicaId, float]],
) -> PoolView | None:
    """What `build_pool_view` builds where nobody has come or gone, and of those who are there these have
    changed and no others, each named once. It looks at them alone.

    None where all have to be looked at: weights are due, the pool does not serve by its own merit or is about
    to change that, or what all have in common may be another.
    """
    tally = previous.tally
    if (
        tally is None
        or previous.availability is not Availability.NORMAL
        or _is_weighing_due(previous, policy, now)
    ):
        return None
    replicas, serving, unknown = list(previous.replicas), tally.serving, set(tally.unknown)
    came: list[int] = []
    for status, profile in changed:
        place = tally.places[status.replica]
        before = replicas[place]
        offer = _choose_offer(status, (status.replica,) if status.ready else ())
        if _may_change_mix(previous, before, profile, offer):
            return None
        serves, served = offer is Offer.SERVING, before.offer is Offer.SERVING
        serving += serves - served
        unknown.discard(status.replica)
        if serves and not _is_known(status, policy):
            unknown.add(status.replica)
        if serves and not served:
            came.append(place)
        replicas[place] = ReplicaView(status, profile, offer, before.weight if serves and served else 1)
    mixed = 0 < len(unknown) < serving
    if not serving or (mixed and came):
        return None
    if came:
        _weigh_first(replicas, came, tally.places, policy, read_latencies())
    if mixed:
        _cap(replicas, unknown, tally.places)
    same = unknown == tally.unknown
    now_tally = Tally(tally.places, serving, tally.unknown if same else frozenset(unknown))
    return replace(previous, at=now, replicas=tuple(replicas), tally=now_tally)


def _weigh_first(
    replicas: list[ReplicaView],
    came: Sequence[int],
    places: Mapping[ReplicaId, int],
    policy: ViewPolicy,
    latencies_s: Mapping[ReplicaId, float],
) -> None:
    """Weigh those that have come to serve."""
    typical_s: float | None = None
    if any(replicas[place].id in latencies_s for place in came):
        there = ((replica, seconds) for replica, seconds in latencies_s.items() if replica in places)
        serving = [seconds for one, seconds in there if replicas[places[one]].offer is Offer.SERVING]
        typical_s = median(serving)
    for place in came:
        view = replicas[place]
        latency_s = latencies_s.get(view.id)
        weight = compute_first_weight(view.status, latency_s, typical_s, policy.weights)
        replicas[place] = replace(view, weight=weight)


def _cap(
    replicas: list[ReplicaView], unknown: Collection[ReplicaId], places: Mapping[ReplicaId, int]
) -> None:
    """As `cap_unknown` does."""
    known = (one for one in replicas if one.offer is Offer.SERVING and one.id not in unknown)
    least = min(one.weight for one in known)
    for replica in unknown:
        view = replicas[places[replica]]
        if view.weight > least:
            replicas[places[replica]] = replace(view, weight=least)


def _may_change_mix(pool: PoolView, before: ReplicaView, profile: ReplicaProfile, offer: Offer) -> bool:
    """One that leaves cannot make the rest differ; all else may change in what they do."""
    if profile.fingerprint != before.profile.fingerprint:
        return True
    leaves, comes = offer is Offer.ABSENT, before.offer is Offer.ABSENT
    return leaves is not comes and (comes or bool(pool.mix))


def _is_known(status: ReplicaStatus, policy: ViewPolicy) -> bool:
    return compute_free_share(status, policy.weights) is not None


def list_changes(
    before: Sequence[ReplicaView], after: Sequence[ReplicaView]
) -> Iterator[tuple[ReplicaView | None, ReplicaView | None]]:
    """Who is another one in a later picture of a pool: what was and what is, None for one that was not or is
    not there. Pictures share what has not changed, so that of a large pool nothing else is looked at."""
    if len(before) == len(after):
        differ = list(compress(zip(before, after, strict=True), map(is_not, before, after)))
        if all(old.id == new.id for old, new in differ):
            yield from differ
            return
    there = {one.id: one for one in before}
    now = {one.id for one in after}
    yield from ((old, None) for old in before if old.id not in now)
    for new in after:
        old = there.get(new.id)
        if old is not new:
            yield old, new


PREFIX_WORTH: Final = 0.5
"""The share of a prompt that must probably be cached before it decides where a replay goes."""
PREFIX_LOAD: Final = 2.0
"""How many times busier than the least busy a replica may be to be preferred for its cache."""
FAILED_OF_LATE: Final = 0.5
"""The decayed count of own failures from which a replica goes to the back of the line: one, 20 s ago."""


def choose_replay_candidates(
    view: PoolView,
    fingerprint: Fingerprint | None,
    tried: Collection[ReplicaId],
    prefix_shares: Mapping[ReplicaId, float] | None = None,
    recent_replays: Mapping[ReplicaId, int] | None = None,
) -> tuple[Target, ...]:
    """Where a replay may go, best first: of the operation's fingerprint, and not tried.

    Behind those that serve come those that are only full or in doubt, because for this request the pool
    is what it has not tried: as in `availability`, it is not emptied by what may be our own view. What is
    faulty or absent, and what somebody took out, gets nothing.

    Replicas that failed of late come last, the latest one at the end. Among the others, one that
    probably holds half of the prompt comes first, unless it is much busier. Then whoever has most
    free for each replay it was sent since its last page (`recent_replays`): a hundred streams lost at
    once must not all go to the replica that looked best a second ago.
    """
    shares, replays = prefix_shares or {}, recent_replays or {}
    able = [
        replica
        for replica in view.replicas
        if (replica.offer is Offer.SERVING or _may_stand_in(replica, view))
        and replica.profile.addresses
        and replica.id not in tried
        and (fingerprint is None or are_compatible(fingerprint, replica.profile.fingerprint))
    ]
    busy = {replica.id: (1 + replays.get(replica.id, 0)) / replica.weight for replica in able}
    least = min(busy.values(), default=0.0)

    def rank(replica: ReplicaView) -> tuple[bool, float, float, float, ReplicaId]:
        share = shares.get(replica.id, 0.0)
        cached = share >= PREFIX_WORTH and busy[replica.id] <= PREFIX_LOAD * least
        failures = replica.status.failures
        # Where all have failed, whoever did so longest ago has most likely come back.
        failed = failures if failures >= FAILED_OF_LATE else 0.0
        withheld = replica.offer is not Offer.SERVING
        return withheld, failed, -share if cached else 0.0, busy[replica.id], replica.id

    return tuple(Target(replica.id, replica.profile.addresses[0]) for replica in sorted(able, key=rank))


def _list_fingerprints(replicas: Sequence[ReplicaView]) -> dict[ReplicaId, Fingerprint]:
    return {one.id: one.profile.fingerprint for one in replicas if one.offer is not Offer.ABSENT}


def _may_stand_in(replica: ReplicaView, pool: PoolView) -> bool:
    status = replica.status
    known = replica.offer is Offer.WITHHELD and status.was_ready and is_usable(status)
    return known and pool.availability is not Availability.EMPTY


def _read_weights(view: PoolView | None) -> dict[ReplicaId, int]:
    if view is None:
        return {}
    return {replica.id: replica.weight for replica in view.replicas if replica.offer is Offer.SERVING}


def _is_due(previous: PoolView | None, serving: Serving, policy: ViewPolicy, now: float) -> bool:
    """Whether weights may move; a pool that changes between ready and not is weighed at once."""
    if previous is None or previous.availability is not serving.availability:
        return True
    return _is_weighing_due(previous, policy, now)


def _is_weighing_due(previous: PoolView, policy: ViewPolicy, now: float) -> bool:
    return now >= previous.weighed_at + policy.weigh_every_s


def _choose_offer(status: ReplicaStatus, members: Collection[ReplicaId]) -> Offer:
    if status.replica in members:
        return Offer.SERVING
    match status.state:
        case ReplicaState.GONE:
            return Offer.ABSENT
        case ReplicaState.DRAINING:
            return Offer.DRAINING
        case _:
            return Offer.WITHHELD
