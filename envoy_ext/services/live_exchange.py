"""One exchange in flight: its state machine, its journal order, its timer, and its two kinds of sink.

Everything happens on the event loop. `receive` is synchronous; a step without records is carried
out at once, so chunks never wait for the journal. A step with records waits for its append, and
every later step of the same exchange waits behind it: that is the whole of the ordering, with two
exceptions. The record of a whole answer comes after its last bytes: a sidecar that is killed between
the two would otherwise leave a "completed" for what nobody was given. And a request goes on to the next
hop while its begin is written, for which the gate in front of the replicas waits.

What cannot be recorded does not happen, and the client is told; unless `services.recording` lets it go on.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, assert_never

from envoy_ext.domain import step
from envoy_ext.domain.answer_keeping import AnswerKeeping
from envoy_ext.domain.client_errors import CODES, NOT_RECORDED
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.events import Event, RecordingLost
from envoy_ext.domain.exchange import Exchange
from envoy_ext.domain.ids import AttemptId, SeatId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import ExchangeEnded, Note, PhaseChanged
from envoy_ext.domain.outcomes import Ending, OperationState
from envoy_ext.domain.records import AttemptStarted, OperationEnded, Record
from envoy_ext.ports import AttemptSink, Clock, DeliverySink, Observer, Trace, TraceKind
from envoy_ext.services.exchange_replicas import ExchangeReplicas
from envoy_ext.services.recording import NotTold, Recording, is_end

RETRY_AFTER_S = (1, 3)
"""Retry-After is spread over these seconds, so that refused clients do not come back as one."""

LONG_WRITE_S: Final = 0.5
"""A store that takes so long for what stands before an attempt's start may take as long for that."""

GATE_PATIENCE_S: Final = 10.0
"""For the start and a look at the tool ledger, each of which a store may take 4 s for (`journal.timeout`)."""


class LiveExchange:
    """Carries out the steps of one exchange. Owned by `Exchanges`; its sinks belong to the adapters."""

    __slots__ = (
        "_attempts",
        "_backlog",
        "_clock",
        "_delivery",
        "_forgotten",
        "_idle",
        "_keeping",
        "_observer",
        "_on_finished",
        "_on_note",
        "_recording",
        "_spawn",
        "_timer",
        "_timer_at",
        "_trace",
        "_writing",
        "exchange",
        "replicas",
    )

    def __init__(
        self,
        exchange: Exchange,
        delivery: DeliverySink,
        *,
        replicas: ExchangeReplicas,
        recording: Recording,
        clock: Clock,
        observer: Observer,
        spawn: Callable[["LiveExchange"], None],
        on_note: Callable[["LiveExchange", Note], None],
        on_finished: Callable[["LiveExchange"], None],
        trace: Trace | None = None,
        keeping: AnswerKeeping | None = None,
    ) -> None:
        self.exchange = exchange
        self.replicas = replicas
        self._recording = recording
        self._keeping = keeping
        self._delivery = delivery
        self._attempts: dict[AttemptId, AttemptSink] = {}
        """One that has been sent its last word stays as `_NOBODY`, and its stream can go."""
        self._clock = clock
        self._observer = observer
        self._spawn = spawn
        self._on_note = on_note
        self._on_finished = on_finished
        self._trace = trace
        self._backlog: list[step.Step] = []
        self._writing = False
        self._idle: asyncio.Event | None = None
        """Where somebody waits for the end of the writing."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._forgotten = False

    def open(self, *, at_once: bool = False) -> None:
        """Record the operation and let the request go on.

        `at_once`: it goes to the next hop without waiting for the record, which no other request can refuse.
        The gate there waits, as behind every record: no replica is asked before this and its own are written.
        """
        self._say_if_never_recorded()
        taken = self.exchange.open(self._clock.now())
        if at_once:
            self._reply(taken)
            taken = replace(taken, replies=())
        self._carry_out(taken)
        self._arm()

    def open_queued(self, until: float) -> None:
        """Record the operation and keep the request, until its queue tells what is to become of it."""
        self._say_if_never_recorded()
        self._carry_out(self.exchange.open_queued(self._clock.now(), until))
        self._arm()

    def _say_if_never_recorded(self) -> None:
        if self._recording.never:
            self._send(self.exchange.receive(RecordingLost(), self._clock.now()))

    def join(self, attempt_id: AttemptId, sink: AttemptSink) -> None:
        """Where replies to an attempt go; before its `AttemptArrived`."""
        self._attempts[attempt_id] = sink

    @property
    def may_be_given_time(self) -> bool:
        """Whether no other gateway can have taken the operation over."""
        return self._recording.may_be_given_time

    def is_owned_in(self, seat: SeatId) -> bool:
        """Whether its operation is lost with this seat."""
        return self._recording.is_owned_in(seat)

    @property
    def never_recorded(self) -> bool:
        """Whether the store knows nothing of its operation."""
        return self._recording.never

    @property
    def attempt_ids(self) -> list[AttemptId]:
        """The attempts that have joined."""
        return list(self._attempts)

    def receive(self, event: Event) -> None:
        """Take in one event and carry out what follows."""
        self._follow(TraceKind.EVENT, (event,))
        try:
            taken = self.exchange.receive(event, self._clock.now())
        except ImpossibleEvent as bug:
            self._contain(bug)
            return
        if taken is not step.NOTHING:
            self._carry_out(taken)
        self._arm()
        self._forget_if_finished()

    def pass_chunk(self, data: bytes) -> bytes | None:
        """What `receive` would forward of a chunk of a running answer; None when that is for `receive`.

        No record, note or timer can follow from such a chunk, so none is looked for.
        """
        if self._writing or self._trace is not None:
            return None
        passed = self.exchange.pass_chunk(data)
        if passed and self._keeping is not None:
            self._keeping.note(step.ForwardBody(passed, end=False))
        return passed

    def _expire(self) -> None:
        self._timer_at = None
        try:
            taken = self.exchange.expire(self._clock.now())
        except ImpossibleEvent as bug:
            self._contain(bug)
            return
        self._carry_out(taken)
        self._arm()
        self._forget_if_finished()

    def _arm(self) -> None:
        deadline = self.exchange.next_deadline()
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None and not self._forgotten:
            delay = max(0.0, deadline - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _carry_out(self, taken: step.Step) -> None:
        if not self._writing and not taken.records:
            self._send(taken)
            return
        for reply in taken.replies:
            if isinstance(reply, step.StartAttempt) and reply.target is not None:
                self.replicas.note_chosen(reply.attempt_id, reply.target.replica)
        self._backlog.append(taken)
        if not self._writing:
            self._writing = True
            self._spawn(self)

    @property
    def writing(self) -> bool:
        """Whether something of this exchange is on its way to the journal, and its replies wait for that."""
        return self._writing

    @property
    def writing_its_end(self) -> bool:
        """Whether it has ended and the record of that may still be on its way."""
        return self._writing and self.exchange.resolution is not None

    async def wait_written(self) -> None:
        """Until nothing of this exchange is on its way to the journal."""
        while self._writing:
            if self._idle is None:
                self._idle = asyncio.Event()
            await self._idle.wait()

    async def write_backlog(self) -> None:
        """Append and send what waits, in order; run as one task at a time, owned by `Exchanges`."""
        began = self._clock.now()
        try:
            while self._backlog:
                taken = self._backlog.pop(0)
                if self._clock.now() - began >= LONG_WRITE_S:
                    self._ask_gate_for_patience(taken)
                if _tells_of_a_whole_answer(taken) or self._keeps_refusal(taken):
                    self._reply(taken)
                    taken = replace(taken, replies=())
                told = None
                if taken.records:
                    told = await self._recording.append(taken, self._take_kept(taken))
                if isinstance(told, RecordingLost):
                    taken, *self._backlog = (_tell_unrecorded(one) for one in (taken, *self._backlog))
                    self._carry_out(self.exchange.receive(told, self._clock.now()))
                elif told is not None:
                    self._fail_journal(taken, told)
                    continue
                self._send(taken)
        finally:
            self._writing = False
            idle, self._idle = self._idle, None
            if idle is not None:
                idle.set()
        self._forget_if_finished()

    def _ask_gate_for_patience(self, taken: step.Step) -> None:
        """Envoy's time for an attempt runs since it came to the gate, where it stood behind other records."""
        for record in taken.records:
            if isinstance(record, AttemptStarted):
                asking = step.AskPatience(record.attempt_id, GATE_PATIENCE_S)
                self._attempts[record.attempt_id].send(asking)

    def _keeps_refusal(self, taken: step.Step) -> bool:
        """Whether a replica's 4xx ends with this step that is kept as an answer is: then it is sent first."""
        kept = self._keeping is not None and self._keeping.policy.refusals
        return kept and is_end(taken) and _find_ending(taken) is Ending.FINISHED

    def _take_kept(self, taken: step.Step) -> KeptAnswer | None:
        """The answer that is kept with this step, which may be the last word on its operation."""
        ending = _find_ending(taken)
        if self._keeping is None or ending is None:
            return None
        keeping, self._keeping = self._keeping, None
        if ending is not Ending.FINISHED:
            return None
        return keeping.build(last_word_said=self.exchange.last_word_said)

    def _fail_journal(self, failed: step.Step, why: NotTold) -> None:
        """Tell the exchange; what it wants said now needs no record to be allowed.

        What was to be recorded behind the failed step is not done either, but for ends: those have
        happened. So have the phases, whose notes are a count.
        """
        behind = [failed, *self._backlog]
        self._backlog.clear()
        self._backlog.extend(one for one in behind if is_end(one))
        for one in behind:
            if not is_end(one):
                self._note([note for note in one.notes if isinstance(note, PhaseChanged)])
        told = self.exchange.receive(why, self._clock.now())
        self._send(replace(told, records=()))
        if told.records:
            self._backlog.append(step.Step(records=told.records))

    def _send(self, taken: step.Step) -> None:
        self._reply(taken)
        self._note(taken.notes)

    def _reply(self, taken: step.Step) -> None:
        self._follow(TraceKind.REPLY, taken.replies)
        for reply in taken.replies:
            match reply:
                case step.RespondLocally():
                    self._delivery.send(add_retry_after(reply))
                case (
                    step.ForwardRequest()
                    | step.HoldRequest()
                    | step.GiveAnswer()
                    | step.AcceptJob()
                    | step.AnswerHere()
                    | step.ForwardResponse()
                    | step.ForwardBody()
                    | step.ResetDelivery()
                ):
                    if self._keeping is not None:
                        self._keeping.note(reply)
                    self._delivery.send(reply)
                case step.StartAttempt() | step.AskPatience():
                    self._attempts[reply.attempt_id].send(reply)
                case (
                    step.RefuseAttempt()
                    | step.ReleaseAttempt()
                    | step.PassLocalReply()
                    | step.FailOver()
                    | step.WithholdAnswer()
                ):
                    self._attempts[reply.attempt_id].send(reply)
                    self._attempts[reply.attempt_id] = _NOBODY
                case _:
                    assert_never(reply)

    def _note(self, notes: Sequence[Note]) -> None:
        self._follow(TraceKind.NOTE, notes)
        for note in notes:
            self._on_note(self, note)

    def _follow(self, kind: TraceKind, things: Sequence[Event | Record | step.Reply | Note]) -> None:
        if self._trace is not None:
            self._trace.add(self.exchange.identity.operation_id, kind, things)

    def _contain(self, bug: ImpossibleEvent) -> None:
        """A bug of ours ends this exchange and nothing else."""
        self._observer.note_bug(repr(self.exchange), bug)
        self._delivery.send(step.ResetDelivery())

    def _forget_if_finished(self) -> None:
        if self._forgotten or self._writing or not self.exchange.finished:
            return
        self._forgotten = True
        if self._timer is not None:
            self._timer.cancel()
        self._on_finished(self)


class _Nobody:
    """An attempt whose filter has let go: Envoy asks it no more."""

    def send(self, reply: step.AttemptReply) -> None:
        """It goes nowhere."""


_NOBODY: Final = _Nobody()


def _find_ending(taken: step.Step) -> Ending | None:
    return next((one.ending for one in taken.records if isinstance(one, OperationEnded)), None)


def _tells_of_a_whole_answer(taken: step.Step) -> bool:
    return is_end(taken) and any(
        isinstance(record, OperationEnded) and record.state is OperationState.COMPLETED
        for record in taken.records
    )


def _tell_unrecorded(waiting: step.Step) -> step.Step:
    """What was to be said while its record was under way, now that the record is lost."""
    if not waiting.replies and not waiting.notes:
        return waiting
    replies: list[step.Reply] = []
    for reply in waiting.replies:
        if isinstance(reply, step.ForwardResponse | step.AnswerHere):
            reply = replace(reply, recorded=False)
        elif isinstance(reply, step.RespondLocally) and NOT_RECORDED not in reply.error.headers:
            headers = (*reply.error.headers, NOT_RECORDED)
            reply = replace(reply, error=replace(reply.error, headers=headers))
        replies.append(reply)
    notes = [replace(one, recorded=False) if isinstance(one, ExchangeEnded) else one for one in waiting.notes]
    return replace(waiting, replies=tuple(replies), notes=tuple(notes))


def add_retry_after(reply: step.RespondLocally) -> step.RespondLocally:
    """A refusal that a client may repeat says when: soon, and not all at once."""
    error = reply.error
    if error.retry_after_s is not None or not CODES[error.code].sdk_retries:
        return reply
    seconds = random.randint(*RETRY_AFTER_S)
    return step.RespondLocally(replace(error, retry_after_s=seconds))
