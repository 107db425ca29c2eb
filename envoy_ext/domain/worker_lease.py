"""The worker's side of a lease: may this attempt send its next chunk?

    ASKED ── first renewal granted ──> HELD ── refused, run out, revoked ──> LOST ── stopped ──> STOPPED

The headers of an attempt offer a lease; a request may have lain on its way for minutes, so they grant
nothing by themselves. The first renewal does, and it is asked for while the prompt is computed. From
then on the worker may send a chunk as long as its last granted renewal, counted from the moment it
*sent* it, has not run out. A lost lease never comes back: the gateway may have given the work away.

An acknowledgement of the end is only due when generation has really stopped.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId

MAX_OPERATIONS: Final = 65_536
"""Operations whose newest token a worker remembers: days of work, a few megabytes."""


class WorkerLeaseState(StrEnum):
    """Where an attempt's lease stands at its worker."""

    ASKED = "asked"
    """It may compute, and send nothing."""
    HELD = "held"
    LOST = "lost"
    """It may send nothing any more; generation is being stopped."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a worker sends to keep its lease. A reply names its number."""

    attempt_id: AttemptId
    operation_id: OperationId
    token: FencingToken
    number: int


@dataclass(slots=True)
class WorkerLease:
    """One attempt at its worker. Times are the worker's monotonic seconds."""

    operation_id: OperationId
    attempt_id: AttemptId
    token: FencingToken
    ttl_s: float
    renew_s: float
    arrived_at: float
    lost_because: str | None = None
    _stopped: bool = False
    _believed_until: float | None = None
    _sent: dict[int, float] = field(default_factory=dict)
    _number: int = 0
    _renew_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._renew_at = self.arrived_at

    @property
    def state(self) -> WorkerLeaseState:
        """Where it stands, as of the last call of `expire`."""
        if self._stopped:
            return WorkerLeaseState.STOPPED
        if self.lost_because is not None:
            return WorkerLeaseState.LOST
        return WorkerLeaseState.ASKED if self._believed_until is None else WorkerLeaseState.HELD

    def may_publish(self, now: float) -> bool:
        """Whether a chunk may be sent at this moment. Asked before each."""
        self.expire(now)
        return self.state is WorkerLeaseState.HELD

    def build_renewal(self, now: float) -> Renewal | None:
        """What to send now; None when nothing is due."""
        self.expire(now)
        if self.state not in (WorkerLeaseState.ASKED, WorkerLeaseState.HELD) or now < self._renew_at:
            return None
        self._number += 1
        self._sent[self._number] = now
        self._renew_at = now + self.renew_s
        return Renewal(self.attempt_id, self.operation_id, self.token, self._number)

    def receive_grant(self, number: int, now: float) -> None:
        """A renewal was granted. Late and repeated words change nothing."""
        self.expire(now)
        sent_at = self._sent.get(number)
        if sent_at is None or self.lost_because is not None:
            return
        until = sent_at + self.ttl_s
        if until > now and (self._believed_until is None or until > self._believed_until):
            self._believed_until = until
        # Whatever was sent before this one cannot extend the lease any more.
        self._sent = {later: at for later, at in self._sent.items() if later > number}

    def receive_refusal(self) -> None:
        """The gateway has revoked it, or does not know it."""
        self._lose("refused")

    def revoke(self, because: str) -> None:
        """End it from this side: a newer attempt has come, or the client has gone."""
        self._lose(because)

    def note_stopped(self) -> None:
        """Generation has ended, and its slot is free: nothing follows, whoever asks."""
        self._stopped = True

    def expire(self, now: float) -> None:
        """Let time pass."""
        if self.lost_because is None and now >= self.expires_at:
            self._lose("expired")

    @property
    def expires_at(self) -> float:
        """When it runs out, unless a renewal is granted."""
        return self.arrived_at + self.ttl_s if self._believed_until is None else self._believed_until

    def next_deadline(self) -> float | None:
        """When a renewal is due or the lease runs out; None when neither can be."""
        if self.state in (WorkerLeaseState.ASKED, WorkerLeaseState.HELD):
            return min(self._renew_at, self.expires_at)
        return None

    def _lose(self, because: str) -> None:
        if self.lost_because is None:
            self.lost_because = because
            self._sent.clear()


class TokenMemory:
    """The newest token seen of each operation: a worker takes no attempt that is older.

    Bounded: the operation that was asked for longest ago goes first.
    """

    def __init__(self, limit: int = MAX_OPERATIONS) -> None:
        self._limit = limit
        self._newest: dict[OperationId, FencingToken] = {}

    def admit(self, operation_id: OperationId, token: FencingToken) -> bool:
        """Whether an attempt may start here; False for one older than, or as old as, one seen."""
        newest = self._newest.pop(operation_id, None)
        admitted = newest is None or token > newest
        self._newest[operation_id] = token if admitted or newest is None else newest
        if len(self._newest) > self._limit:
            self._newest.pop(next(iter(self._newest)))
        return admitted
