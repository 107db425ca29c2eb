"""Who belongs to the fleet, and where each is: gates, profiles, and addresses."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from envoy_ext.domain.discovery import Member
from envoy_ext.domain.fingerprint import Difference, Fingerprint
from envoy_ext.domain.fingerprint_book import FingerprintBook
from envoy_ext.domain.fleet_view import ReplicaProfile
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.places import Places
from envoy_ext.domain.readiness import ReplicaGate
from envoy_ext.domain.replica_life import ReplicaState

REMEMBER_S: Final = 600.0
"""Far longer than any replay waits (`max_replay_delay`, 20 s unless set); pods that come and go
for good are forgotten."""


class FleetMembers:
    """Changed only by its fleet. One that is gone stays until it is forgotten; what it was stays known for
    `REMEMBER_S` longer, since a replay of its last attempt may still ask."""

    def __init__(self) -> None:
        self.gates: dict[ReplicaId, ReplicaGate] = {}
        """In the order they came."""
        self.profiles: dict[ReplicaId, ReplicaProfile] = {}
        self.places = Places()
        """What a proof of death speaks of."""
        self._book = FingerprintBook()
        self._left: dict[ReplicaId, float] = {}
        """When each of those was forgotten that the book still knows."""
        self._at: dict[tuple[PoolName, str], ReplicaId] = {}

    def find_at(self, pool: PoolName, address: str) -> ReplicaId | None:
        """Who has this `ip:port`, or had it last."""
        return self._at.get((pool, address))

    def declare(self, replica: ReplicaId, fingerprint: Fingerprint, now: float) -> None:
        """What the configuration says of a replica that has come; before it is placed."""
        self._book.declare(replica, fingerprint, now)
        self.places.leave(replica)
        self._left.pop(replica, None)

    def place(self, pool: PoolName, member: Member, now: float) -> None:
        """Where it is, and what is known of it beside its health."""
        self._forget_addresses(pool, member.replica)
        self.places.settle(member, now)
        entry = self._book.read(member.replica)
        self.profiles[member.replica] = ReplicaProfile(
            replica=member.replica,
            fingerprint=Fingerprint(pool) if entry is None else entry.current,
            contradictions=() if entry is None else entry.contradictions,
            addresses=member.addresses,
            url=member.url,
            node=member.node,
            zone=member.zone,
            gpus=member.gpus,
        )
        for address in member.addresses:
            self._at[pool, address] = member.replica

    def is_fingerprint_due(self, replica: ReplicaId, now: float) -> bool:
        """Whether to ask its engine what it serves: its model has answered, and it was not asked lately."""
        gate = self.gates.get(replica)
        if gate is None or not self._book.is_due(replica, gate.incarnation, now):
            return False
        return gate.read_status(now).started

    def observe(
        self, replica: ReplicaId, incarnation: int, told: Fingerprint, now: float
    ) -> tuple[Difference, ...]:
        """Take in what an engine told; where that contradicts the configuration and was not said before."""
        contradictions = self._book.observe(replica, incarnation, told, now)
        entry, profile = self._book.read(replica), self.profiles.get(replica)
        if entry is not None and profile is not None:
            self.profiles[replica] = replace(
                profile, fingerprint=entry.current, contradictions=entry.contradictions
            )
        return contradictions

    def find_fingerprint(self, replica: ReplicaId, at: float) -> Fingerprint | None:
        """What a replica was at that time."""
        return self._book.find(replica, at)

    def list_gone(self) -> Iterator[ReplicaId]:
        """Those that discovery does not list any more."""
        return (gate.replica for gate in list(self.gates.values()) if gate.state is ReplicaState.GONE)

    def forget(self, replica: ReplicaId, now: float) -> None:
        """It is here no more."""
        self._forget_addresses(self.gates[replica].pool, replica)
        self.places.leave(replica)
        del self.gates[replica], self.profiles[replica]
        self._left[replica] = now

    def forget_the_past(self, now: float) -> None:
        """Of those that left long ago nothing is known any more."""
        for replica in [one for one, left_at in self._left.items() if now >= left_at + REMEMBER_S]:
            self._book.forget(replica)
            del self._left[replica]

    def _forget_addresses(self, pool: PoolName, replica: ReplicaId) -> None:
        profile = self.profiles.get(replica)
        for address in () if profile is None else profile.addresses:
            if self._at.get((pool, address)) == replica:  # another one may have it by now
                del self._at[pool, address]
