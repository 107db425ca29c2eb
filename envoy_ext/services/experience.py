"""What our own attempts have taught of replicas: whose cache probably holds which prompt, and who is slow.

Hints for weights and for where a replay goes, never for readiness. Prompts come in as hashes with a
salt of this process's own; neither they nor the salt leave it.
"""

import secrets
from collections.abc import Iterable

from envoy_ext.domain.fleet_events import ReplicaChanged
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.latencies import Latencies
from envoy_ext.domain.prefix_memory import PrefixMemory, hash_prefixes
from envoy_ext.domain.readiness_reasons import ReadinessReason
from envoy_ext.domain.replica_life import ReplicaState

SALT_BYTES = 32


class Experience:
    """Changed only by its fleet."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(SALT_BYTES)
        self._prefixes = PrefixMemory()
        self._latencies = Latencies()
        self._incarnations: dict[ReplicaId, int] = {}

    def hash_prompt(self, head: bytes, model: str) -> tuple[bytes, ...]:
        """The prefixes of a prompt for a model, an adapter's name included: each has a cache of its own."""
        return hash_prefixes(head, self._salt, model)

    def note_first_delta(
        self,
        replica: ReplicaId,
        incarnation: int,
        prefixes: tuple[bytes, ...],
        seconds: float | None,
        now: float,
    ) -> None:
        """A replica has computed a prompt; `seconds` is how long that took, where the time is comparable."""
        self._meet(replica, incarnation)
        if prefixes:
            self._prefixes.remember(replica, prefixes)
        if seconds is not None:
            self._latencies.note(replica, seconds, now)

    def note_change(self, change: ReplicaChanged) -> None:
        """Another process has an empty cache, and so has one that sleeps."""
        self._meet(change.replica, change.incarnation)
        asleep = any(finding.reason is ReadinessReason.SLEEPING for finding in change.findings)
        if asleep or change.after is ReplicaState.GONE:
            self._forget(change.replica)

    def compute_shares(
        self, prefixes: tuple[bytes, ...], replicas: Iterable[ReplicaId]
    ) -> dict[ReplicaId, float]:
        """How much of a prompt each replica probably holds, 0 to 1."""
        return self._prefixes.compute_shares(prefixes, replicas)

    def read_latencies(self, now: float) -> dict[ReplicaId, float]:
        """Seconds to a first delta, of each replica of which they are known."""
        return self._latencies.read(now)

    def _meet(self, replica: ReplicaId, incarnation: int) -> None:
        if self._incarnations.get(replica, incarnation) != incarnation:
            self._forget(replica)
        self._incarnations[replica] = incarnation

    def _forget(self, replica: ReplicaId) -> None:
        self._prefixes.forget(replica)
        self._latencies.forget(replica)
        self._incarnations.pop(replica, None)
