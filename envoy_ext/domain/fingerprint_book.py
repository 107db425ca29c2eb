"""What every replica's fingerprint is, and what it was: declared by the configuration, told by its engine.

What an engine tells holds for its process. Another process starts from the declaration again, and what
the one before it was stays known for a while: a replay must be an equal of the replica as it was when
the first attempt ran there, whatever has been started at its address since.
"""

from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from envoy_ext.domain.fingerprint import Difference, Fingerprint, complete, list_differences, merge_observed
from envoy_ext.domain.ids import ReplicaId

REREAD_S: Final = 60.0
"""Adapters are loaded and weights updated in a running engine. Three small pages a minute cost nothing. Each
replica is asked after its own part of this, a half at least, so that a fleet that started together is not
asked together for ever."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One replica in the book."""

    declared: Fingerprint
    current: Fingerprint
    """Declared, with what the engine told put over it."""
    since: float
    before: Fingerprint | None
    """What it was before `since`; None when nobody was there."""
    incarnation: int | None = None
    """The process that was read, None when none was."""
    observed: Fingerprint | None = None
    read_at: float = 0.0
    contradictions: tuple[Difference, ...] = ()


class FingerprintBook:
    """The fingerprints of all replicas. One event loop feeds it."""

    def __init__(self) -> None:
        self._entries: dict[ReplicaId, Entry] = {}

    def declare(self, replica: ReplicaId, fingerprint: Fingerprint, now: float) -> None:
        """What the configuration says of a replica; of whoever is there from now on nothing else is known."""
        known = self._entries.get(replica)
        before = None if known is None else known.current
        self._entries[replica] = Entry(fingerprint, fingerprint, now, before)

    def forget(self, replica: ReplicaId) -> None:
        """It is a replica no more."""
        self._entries.pop(replica, None)

    def is_due(self, replica: ReplicaId, incarnation: int, now: float) -> bool:
        """Whether its engine should be asked: not asked in this incarnation, or long ago."""
        entry = self._entries.get(replica)
        if entry is None:
            return False
        return entry.incarnation != incarnation or now >= entry.read_at + _spread(replica)

    def observe(
        self, replica: ReplicaId, incarnation: int, told: Fingerprint, now: float
    ) -> tuple[Difference, ...]:
        """Take in what an engine told, all unknown when it could not be read.

        Returns:
            Where it contradicts the configuration, in ways that were not returned before.
        """
        entry = self._entries.get(replica)
        if entry is None or (entry.incarnation is not None and incarnation < entry.incarnation):
            return ()
        if entry.observed is not None and entry.incarnation == incarnation:
            told = complete(told, entry.observed)  # the same process: a page that failed takes nothing back
        current, contradictions = merge_observed(entry.declared, told)
        another = entry.incarnation not in (None, incarnation)
        if another or (entry.observed is not None and list_differences(entry.observed, told)):
            # What is learned of a process was true of it all the time, unless it says something else now.
            entry = replace(entry, before=entry.current, since=now)
        self._entries[replica] = replace(
            entry,
            current=current,
            incarnation=incarnation,
            observed=told,
            read_at=now,
            contradictions=contradictions,
        )
        return tuple(one for one in contradictions if one not in entry.contradictions)

    def read(self, replica: ReplicaId) -> Entry | None:
        """All that is known of a replica, None for one that was never declared."""
        return self._entries.get(replica)

    def find(self, replica: ReplicaId, at: float) -> Fingerprint | None:
        """What a replica was at that time, as far back as its last change; None when it is not known."""
        entry = self._entries.get(replica)
        if entry is None:
            return None
        return entry.current if entry.before is None or at >= entry.since else entry.before


def _spread(replica: ReplicaId) -> float:
    """From one read of a replica to the next, seconds."""
    return REREAD_S * (0.5 + crc32(replica.encode()) / 2**33)
