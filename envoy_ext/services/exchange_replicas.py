"""The fleet as one exchange sees it: its pool's replicas, for its prompt.

Looks at the picture of the moment and changes nothing but what is remembered of the exchange's own
computation.
"""

from envoy_ext.domain.api import ReadRequest
from envoy_ext.domain.availability import is_kept_out_by_circuit
from envoy_ext.domain.events import Target
from envoy_ext.domain.exchange_shared import Tried
from envoy_ext.domain.fleet_view import Offer, choose_replay_candidates
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.prompt_head import read_prompt_head
from envoy_ext.ports import Clock
from envoy_ext.services.fleet import Fleet


class ExchangeReplicas:
    """`exchange_shared.Replicas` over the fleet of this process."""

    __slots__ = ("_clock", "_fleet", "_pool", "_prefixes")

    def __init__(self, fleet: Fleet, pool: PoolName, clock: Clock, prefixes: tuple[bytes, ...] = ()) -> None:
        self._fleet = fleet
        self._pool = pool
        self._clock = clock
        self._prefixes = prefixes

    def move(self, pool: PoolName) -> None:
        """Another pool is asked; what its replicas have computed of this prompt is not known."""
        self._pool, self._prefixes = pool, ()

    def find_targets(self, tried: Tried) -> tuple[Target, ...]:
        """Where a replay may go, best first: serving, of the first attempt's fingerprint, and not tried.

        Whoever probably has the prompt in its cache comes before others.
        """
        view = self._fleet.view.find(self._pool)
        if view is None:
            return ()
        first = None
        if tried.first is not None:
            first = self._fleet.find_fingerprint(tried.first, tried.first_at)
        listed = [replica.id for replica in view.replicas]
        shares = self._fleet.experience.compute_shares(self._prefixes, listed)
        return choose_replay_candidates(view, first, tried.replicas, shares, self._fleet.placed)

    def note_chosen(self, attempt_id: AttemptId, replica: ReplicaId) -> None:
        """An attempt will go there: however many are chosen for before it has, they are spread."""
        self._fleet.streams.note_chosen(attempt_id, replica)

    def choose_first_target(self, slot_at: ReplicaId | None) -> Target | None:
        """Where a first attempt must go; None leaves the choice to Envoy's weights.

        Named only where it has its slot (`slot_at`), or where Envoy's own choice could be a replica that
        is to get no new work.
        """
        view = self._fleet.view.find(self._pool)
        if view is None:
            return None
        given = None if slot_at is None else view.find(slot_at)
        if given is not None and given.offer is Offer.SERVING and given.profile.addresses:
            return Target(given.id, given.profile.addresses[0])
        if self._fleet.is_over_xds(self._pool):
            return None
        if all(replica.offer is Offer.SERVING for replica in view.replicas):
            return None
        targets = choose_replay_candidates(view, None, (), recent_replays=self._fleet.placed)
        return targets[0] if targets else None

    def choose_trial(self, operation_id: OperationId, *, replayable: bool) -> Target | None:
        """Where a first attempt is to be a trial of a replica that failed; None where none is due.

        A trial that fails is replayed like any other loss: who could not be, is none while others serve.
        """
        if not self._fleet.circuits.is_troubled(self._pool):
            return None
        view = self._fleet.view.find(self._pool)
        if view is None or not (replayable or all(one.offer is not Offer.SERVING for one in view.replicas)):
            return None
        due = [one for one in view.replicas if one.profile.addresses and is_kept_out_by_circuit(one.status)]
        chosen = self._fleet.circuits.promise_trial(self._pool, operation_id, [one.id for one in due])
        return next((Target(one.id, one.profile.addresses[0]) for one in due if one.id == chosen), None)

    def find_revision(self, replica: ReplicaId, at: float) -> str | None:
        """What the replica served at that time: its weights' revision, or else its model's name."""
        fingerprint = self._fleet.find_fingerprint(replica, at)
        return None if fingerprint is None else fingerprint.weights or fingerprint.model

    def note_first_delta(self, replica: ReplicaId, seconds: float | None) -> None:
        """The replica has computed this exchange's prompt, in so many seconds where that says something."""
        incarnation = self._fleet.incarnation(replica)
        if self._fleet.is_listed(replica):
            now = self._clock.now()
            self._fleet.experience.note_first_delta(replica, incarnation, self._prefixes, seconds, now)


def hash_prompt(fleet: Fleet, pool: PoolName, request: ReadRequest) -> tuple[bytes, ...]:
    """The prefixes of a prompt, where there is a choice to make by them."""
    view = fleet.view.find(pool)
    if view is None or len(view.replicas) < 2:
        return ()
    head = read_prompt_head(request.facts.family, request.body)
    return fleet.experience.hash_prompt(head, request.facts.model or "")
