"""Who may act for an operation, where several gateways share one store.

    seat:  ── taken ──> HELD ── not kept for a time to live ──> DOUBTFUL ── removed ──> LOST
                         ^───────────── a beat is kept ──────────┘

Each gateway holds a seat in the store and beats. It may act for a time to live from the moment it *sent*
the last beat that was kept. Others learn that it is gone only by watching: the number of its beats has
not changed for a time to live and a margin on their own clock, and then they remove the seat, if that is
still so. No clock is shared, nor read by the store. A seat that was late and not removed goes on; one
that was removed never does, and its gateway takes another, of a number that nobody has had before.

Each operation has an owner and a token that grows whenever the owner changes. The store writes nothing
for an older token, and an owner's token changes only when its seat is gone. Since whatever matters is
recorded before it happens, an owner that does not know yet that it was replaced is stopped by the
store, whatever the clocks do: they only decide how soon another may take its place.

As Kubernetes elects leaders: https://pkg.go.dev/k8s.io/client-go/tools/leaderelection, whose lock is
watched for a change on the watcher's clock as well; here the store refuses besides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.domain.ids import FencingToken, SeatId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.operation import Operation

FIRST_TOKEN: Final = FencingToken(1)
"""Of the gateway that begins an operation."""


@dataclass(slots=True)
class Seat:
    """This gateway's seat. Times are its own monotonic seconds."""

    id: SeatId
    policy: LeasePolicy
    asked_at: float
    """When the store was asked for it, which is its first beat."""
    lost: bool = False
    """Removed by another gateway. Final."""
    number: int = 1
    """Of the last beat that was sent."""
    _sent: dict[int, float] = field(default_factory=dict)
    kept_until: float = field(init=False)
    """Until when nobody can have found this gateway gone."""
    _beat_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.kept_until = self.asked_at + self.policy.ttl_s
        self._beat_at = self.asked_at + self.policy.renew_s

    def may_act(self, now: float) -> bool:
        """Asked before each thing it allows."""
        return not self.lost and now < self.kept_until

    def build_beat(self, now: float) -> int | None:
        """The number of the beat to send now; None when none is due."""
        if self.lost or now < self._beat_at:
            return None
        self.number += 1
        self._sent[self.number] = now
        self._beat_at = now + self.policy.renew_s
        return self.number

    def receive_kept(self, number: int) -> None:
        """The store has taken a beat. Late and repeated words change nothing."""
        sent_at = self._sent.get(number)
        if sent_at is None or self.lost:
            return
        self.kept_until = sent_at + self.policy.ttl_s
        # Whatever was sent before this one keeps the seat no longer than this one does.
        self._sent = {later: at for later, at in self._sent.items() if later > number}

    def receive_lost(self) -> None:
        """The store says that the seat was removed."""
        self.lost = True

    def next_deadline(self) -> float | None:
        """When a beat is due; None when none ever is."""
        return None if self.lost else self._beat_at


@dataclass(slots=True)
class SeatWatch:
    """What one gateway sees of the others. Times are its own monotonic seconds."""

    policy: LeasePolicy
    _seen: dict[SeatId, tuple[int, float]] = field(default_factory=dict)
    """By seat, the number of its last beat and when that was first seen."""

    def receive(self, seats: Mapping[SeatId, int], now: float) -> tuple[tuple[SeatId, int], ...]:
        """Take in a reading that arrived at this moment; the seats, with their last beat, to be removed."""
        before = self._seen
        self._seen = {
            seat: before[seat] if seat in before and before[seat][0] == number else (number, now)
            for seat, number in seats.items()
        }
        patience = self.policy.ttl_s + self.policy.margin_s
        return tuple(
            (seat, number) for seat, (number, since) in self._seen.items() if now - since >= patience
        )


def read_fence(operation: Operation, taken_at: float, policy: LeasePolicy) -> float:
    """From when on the attempts of an operation act no more that was taken over at this moment.

    Its earlier owner renews no lease of theirs any more, and starts none. The last one that it renewed
    runs for a time to live at its worker; an attempt without a worker is given the same. What nobody can
    ask for again need not be waited for. A job's run can be made again whatever of its answer has been sent.
    """
    by_its_client = operation.key_hash is not None and not operation.first_delta_sent
    may_run_again = by_its_client or operation.job_id is not None
    if not may_run_again or all(attempt.started_at is None for attempt in operation.attempts):
        return taken_at
    return taken_at + policy.ttl_s + policy.margin_s
