"""What is owed to the operations of gateways that are gone: this one's own earlier lives, or others'.

Envoy cut their streams when their sidecar went, and how far each client had come is not known. The
truth about them is "unknown"; saying so frees their idempotency keys and ends their attempts. Before it
is said, whoever began them is kept from going on: the operation gets a new owner, and where it could run
again, its attempts get the time in which they may still act.
"""

import asyncio
import contextlib
from collections.abc import Callable

from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.operation import Operation, apply_record
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState
from envoy_ext.domain.ownership import SeatWatch, read_fence
from envoy_ext.domain.records import AttemptEnded, OperationEnded, Record
from envoy_ext.ports import Clock, Journal
from envoy_ext.services.seats import SeatKeeper

GATEWAY_GONE = "gateway_gone"
"""The `detail` of every attempt that recovery ended."""


class Recovery:
    """Watches the other gateways and ends what those leave behind who are gone. Used from one event loop."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        policy: LeasePolicy,
        keeper: SeatKeeper,
        on_ended: Callable[[Operation], None],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._policy = policy
        self._keeper = keeper
        self._on_ended = on_ended
        self._watch = SeatWatch(policy)
        self._asked_for: dict[OperationId, Operation] = {}
        """To be taken over, as they were seen: those whose answer was lost may be this gateway's already, and
        no orphans any more."""
        self._fenced_at: dict[OperationId, tuple[float, Operation]] = {}
        """Taken over, and to be ended at that moment."""

    async def run(self) -> None:
        """Look around once in each time between two beats, until cancelled."""
        while True:
            await asyncio.sleep(self._policy.renew_s)
            with contextlib.suppress(JournalUnavailable):  # the next look tries again
                await self.look()

    async def look(self) -> None:
        """Take over what nobody owns any more, and end what is fenced.

        May be repeated: a call that failed half way is continued by the next, and a call with
        nothing left to do writes nothing.
        """
        if not self._keeper.may_act:
            self._watch_anew()
            return
        try:
            if not self._journal.exclusive:
                await self._remove_the_silent()
            for operation in list(self._asked_for.values()):
                await self._take_over(operation)
            async for operation in self._journal.orphaned():
                await self._take_over(operation)
        except SeatLost:
            self._asked_for.clear()
            return  # this one was found gone itself; what it had taken over is taken over in turn
        await self._end_the_fenced()

    def _watch_anew(self) -> None:
        """One that could not look, or beat itself, learns nothing from what has not changed: while the store
        is down nobody can."""
        self._watch = SeatWatch(self._policy)

    async def _remove_the_silent(self) -> None:
        # This one's own is never among them: it would not be at work.
        try:
            seats = await self._journal.read_seats()
        except JournalUnavailable:
            self._watch_anew()
            raise
        for seat, number in self._watch.receive(seats, self._clock.now()):
            await self._journal.remove_seat(seat, number)

    async def _take_over(self, orphan: Operation) -> None:
        self._asked_for[orphan.operation_id] = orphan
        try:
            operation = await self._journal.take_over(
                orphan.operation_id, orphan.token, self._keeper.seat, self._clock.wall()
            )
        except NotOwner:
            del self._asked_for[orphan.operation_id]
            return  # somebody else was faster
        del self._asked_for[orphan.operation_id]
        taken_at = self._clock.now()
        self._fenced_at[operation.operation_id] = (read_fence(operation, taken_at, self._policy), operation)

    async def _end_the_fenced(self) -> None:
        for operation_id, (fenced_at, operation) in list(self._fenced_at.items()):
            if fenced_at > self._clock.now():
                continue
            if operation.ending is None:  # else its owner's last word came before the look at it was over
                await self._end(operation)
            self._fenced_at.pop(operation_id, None)

    async def _end(self, operation: Operation) -> None:
        records = build_recovery_records(operation, self._clock.wall())
        try:
            # One append for each operation: its attempts and its end become visible together.
            await self._journal.append(records, operation.token)
        except NotOwner:
            return  # this gateway has been found gone in between
        for record in records:
            operation = apply_record(operation, record)
        self._on_ended(operation)


async def end_left_over(journal: Journal, operation: Operation, wall_now: float) -> None:
    """End an operation of the caller's own that runs nowhere. If it has an end by now, that one stands."""
    with contextlib.suppress(NotOwner):  # then another gateway ends it
        await journal.append(build_recovery_records(operation, wall_now), operation.token)


def build_recovery_records(operation: Operation, wall_now: float) -> list[Record]:
    """The records that end an unfinished operation and its open attempts as unknown."""
    records: list[Record] = [
        AttemptEnded(
            operation_id=operation.operation_id,
            attempt_id=attempt.attempt_id,
            at=wall_now,
            outcome=AttemptOutcome.UNKNOWN,
            replica=attempt.replica,
            first_byte_at=attempt.first_byte_at,
            detail=GATEWAY_GONE,
        )
        for attempt in operation.attempts
        if attempt.outcome is None
    ]
    records.append(
        OperationEnded(
            operation_id=operation.operation_id,
            at=wall_now,
            ending=Ending.UNKNOWN,
            state=OperationState.FAILED,
            phase=operation.phase,
            reason=None,
            error_code=None,
            status=None,
            # The counts lived in the memory of the sidecar that is gone; readers show them as
            # unknown when a first delta was sent (`Operation.delivered_counts_known`).
            delivered_deltas=0,
            delivered_output_tokens=0,
            delivered_bytes=0,
        )
    )
    return records
