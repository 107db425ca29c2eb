"""What one exchange tells the journal before it acts, and whether it goes on when that cannot be done.

    TOLD ── its begin fails ──────────> NEVER      nothing of it is recorded, also not later
    TOLD ── a later record fails ─────> BEHIND     what was missed is recorded as soon as it can be

Both need the policy's leave; without it the exchange is told `JournalFailed`, and gives up. What the store
itself refuses (another owner, a lost seat) is no outage, and stops either. Two things never go on unrecorded:
a replay of what the journal knows, since the journal would let the attempt before it begin tool calls; and a
request with an idempotency key, which the policy gives no leave.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from envoy_ext.domain import step
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost, StoreSilent
from envoy_ext.domain.events import BeginRefused, JournalFailed, OwnershipLost, RecordingLost
from envoy_ext.domain.ids import OperationId, SeatId
from envoy_ext.domain.job import Job
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
    Record,
)
from envoy_ext.ports import Clock, Journal, Observer, Trace, TraceKind
from envoy_ext.services.admission import Arrival
from envoy_ext.services.owed_ends import OwedEnds
from envoy_ext.services.seats import SeatKeeper
from envoy_ext.services.unrecorded import Unrecorded

NotTold = JournalFailed | OwnershipLost | BeginRefused
"""Why what was to be recorded may not happen."""


class Recordings:
    """Begins the recording of each exchange. Owned by `Exchanges`."""

    def __init__(
        self,
        journal: Journal,
        keeper: SeatKeeper,
        owed: OwedEnds,
        unrecorded: Unrecorded,
        *,
        clock: Clock,
        observer: Observer,
        trace: Trace | None = None,
    ) -> None:
        self._journal = journal
        self._keeper = keeper
        self._owed = owed
        self._unrecorded = unrecorded
        self._is_down = unrecorded.is_down
        self._clock = clock
        self._observer = observer
        self._trace = trace

    def open(
        self, arrival: Arrival, after: OperationId | None, *, run_of: OperationId | None = None
    ) -> "Recording":
        """For an exchange that begins now: in this gateway's seat, if it has one.

        `run_of`: the job that it is a run of.
        """
        may_go_on = run_of is None and self._unrecorded.allows(arrival)
        return Recording(
            self._keeper.seat if self._keeper.may_act else None,
            after,
            keyed=arrival.idempotency_key is not None,
            is_run=run_of is not None,
            may_go_on=may_go_on,
            is_down=self._is_down,
            keeper=self._keeper,
            journal=self._journal,
            owed=self._owed,
            clock=self._clock,
            observer=self._observer,
            trace=self._trace,
        )


class _State(Enum):
    TOLD = auto()
    BEHIND = auto()
    NEVER = auto()


class Recording:
    """The journal as one exchange speaks to it. Used by its exchange alone, one call at a time."""

    __slots__ = (
        "_after",
        "_clock",
        "_is_down",
        "_is_run",
        "_journal",
        "_keeper",
        "_may_go_on",
        "_may_have_begun",
        "_may_run_again",
        "_observer",
        "_owed",
        "_seat",
        "_state",
        "_trace",
    )

    def __init__(
        self,
        seat: SeatId | None,
        after: OperationId | None,
        *,
        keyed: bool,
        is_run: bool,
        may_go_on: bool,
        is_down: Callable[[], bool],
        keeper: SeatKeeper,
        journal: Journal,
        owed: OwedEnds,
        clock: Clock,
        observer: Observer,
        trace: Trace | None = None,
    ) -> None:
        """`seat`: in which its operation begins; None for one that owns nothing in the store, from the start.

        `is_down`: whether the store is known not to work.
        """
        self._seat = seat
        self._after = after
        self._may_go_on: Final = may_go_on
        self._is_run: Final = is_run
        """Of a job: it may be run again whatever it has let out, since that went to no client; and its answer
        is wanted, however late it can be recorded."""
        self._may_run_again = keyed or is_run
        """Whether another gateway could let it run, should it take the operation over."""
        self._is_down = is_down
        self._keeper = keeper
        self._journal = journal
        self._owed = owed
        self._clock = clock
        self._observer = observer
        self._trace = trace
        self._state = _State.TOLD if seat is not None else _State.NEVER
        self._may_have_begun = False
        """Its begin was sent, and no answer came."""

    @property
    def never(self) -> bool:
        """Whether nothing of it is recorded."""
        return self._state is _State.NEVER

    def is_owned_in(self, seat: SeatId) -> bool:
        """Whether its operation is lost with this seat."""
        return self._state is not _State.NEVER and self._seat == seat

    @property
    def may_be_given_time(self) -> bool:
        """Whether the worker of an attempt may be let go on for another time to live.

        Where another gateway could let the operation run again, it counts on that no time is given by one
        that cannot keep its seat. What has no key, or has let out a first delta, is run by nobody again
        (`domain.ownership.read_fence`), nor is what owns nothing in the store: that goes on, as its stream
        does, until the seat is known to be lost.
        """
        if self._seat is None or self._state is _State.NEVER:
            return True
        if self._may_run_again:
            return self._keeper.holds(self._seat)
        return self._keeper.has(self._seat)

    async def append(
        self, taken: step.Step, answer: KeptAnswer | None = None
    ) -> NotTold | RecordingLost | None:
        """Record what a step holds, and keep an answer with it.

        None: its replies may go out; `RecordingLost`: they may all the same.
        """
        if self._state is _State.NEVER:
            self._owe_end_of_what_may_have_begun(taken)
            return None
        started = self._clock.now()
        refusal: OwnershipLost | BeginRefused | None = None
        try:
            if self._state is _State.BEHIND:
                await self._owed.record()
            refusal = await self._write(taken.records, answer)
        except JournalUnavailable as fault:
            self._observer.note_journal(self._clock.now() - started, failed=True)
            return self._fall_behind(taken, answer, asked=not isinstance(fault, StoreSilent))
        self._observer.note_journal(self._clock.now() - started, failed=False)
        if refusal is None:
            if not self._is_run:
                self._may_run_again &= not any(isinstance(one, FirstDeltaSent) for one in taken.records)
            if self._trace is not None:
                self._trace.add(taken.records[0].operation_id, TraceKind.RECORDED, taken.records)
        elif _find_begun(taken.records) is not None:
            self._state = _State.NEVER
        # Of an end that nobody wants to know of any more, only the record is missing.
        return None if is_end(taken) else refusal

    async def _write(
        self, records: tuple[Record, ...], answer: KeptAnswer | None
    ) -> OwnershipLost | BeginRefused | None:
        begun = _find_begun(records)
        starts = any(isinstance(record, AttemptStarted) for record in records)
        if self._seat is None or (starts and not self._may_start_in(self._seat)):
            return OwnershipLost(refused=True)  # its lease could not be renewed
        try:
            if begun is not None:
                holder = await self._journal.begin(begun, self._seat, self._after)
                if holder is not None:
                    return BeginRefused(holder.job_id if isinstance(holder, Job) else holder.operation_id)
            others = [one for one in records if one is not begun]
            if others:
                await self._journal.append(others, FIRST_TOKEN, answer)
        except (NotOwner, SeatLost):
            return OwnershipLost(refused=True)
        return None

    def _may_start_in(self, seat: SeatId) -> bool:
        """Whether an attempt may start of what was begun in this seat."""
        return self._keeper.holds(seat) or (self._may_go_on and self._is_down())

    def _fall_behind(
        self, taken: step.Step, answer: KeptAnswer | None, *, asked: bool
    ) -> JournalFailed | RecordingLost | None:
        if _find_begun(taken.records) is not None:
            self._state = _State.NEVER
            self._may_have_begun = asked
            return RecordingLost() if self._may_go_on else JournalFailed()
        tells_late = is_end(taken) or (self._is_run and _shows_a_delta_at_most(taken))
        if not tells_late and (not self._may_go_on or _starts_a_replay(taken)):
            return JournalFailed()
        # The client's last bytes need not wait for the record of an end. It is owed: until it is
        # written, the journal calls the operation running. The answer is not: while a disk is full,
        # those of all clients would fill the memory. Jobs run a few at a time.
        self._owed.add(taken.records, answer if self._is_run else None)
        if is_end(taken):
            return None
        self._state = _State.BEHIND
        return None if tells_late else RecordingLost()

    def _owe_end_of_what_may_have_begun(self, taken: step.Step) -> None:
        """The store may have done it all the same, and would call it running for good."""
        ends = tuple(record for record in taken.records if isinstance(record, OperationEnded))
        if self._may_have_begun and ends:
            self._owed.add_in_doubt(ends)


def is_end(taken: step.Step) -> bool:
    """Whether a step records nothing but ends. Anything else must not happen untold without leave."""
    return all(isinstance(record, AttemptEnded | OperationEnded) for record in taken.records)


def _shows_a_delta_at_most(taken: step.Step) -> bool:
    """Whether a step does nothing that a job's run may not do untold: what it lets out goes to no client, and
    forbids no other run."""
    return all(isinstance(record, FirstDeltaSent | AttemptEnded | OperationEnded) for record in taken.records)


def _find_begun(records: tuple[Record, ...]) -> OperationBegun | None:
    return next((record for record in records if isinstance(record, OperationBegun)), None)


def _starts_a_replay(taken: step.Step) -> bool:
    return any(isinstance(record, AttemptStarted) and record.number > 1 for record in taken.records)
