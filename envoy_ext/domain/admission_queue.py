"""One pool's queue: who gets a slot at once, who waits for one, and who is refused.

A request that came in holds a ticket (`ticket`) until it leaves. Whoever waits does so within three
bounds: the length of the line, the time that its class may wait, and its own deadline. What cannot come
true is said at once: a newcomer that would have to wait longer than it may, by the measured rate
(`drain_rate`), is refused on arrival, and one whose deadline falls out of reach while it waits is
refused then.

Sans-IO: every method takes the time and the pool's room as they are, and returns what follows.
"""

import math
from collections import Counter
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from envoy_ext.domain.answer_times import AnswerTimes
from envoy_ext.domain.drain_rate import DrainRate
from envoy_ext.domain.fair_line import FairLine
from envoy_ext.domain.ids import AttemptId, OperationId, ReplicaId
from envoy_ext.domain.ladder import Outlook
from envoy_ext.domain.live_room import AnyRoom
from envoy_ext.domain.ticket import Granted, Newcomer, Outcome, Shed, Ticket, TicketState, Turn, Waits
from envoy_ext.domain.traffic_class import TrafficClasses

SILENT_S: Final = 2.0
"""Bytes are noted once a second; a replica that gave none for longer, and for half of an attempt's time, has
gone silent."""
LOOK_S: Final = 1.0
"""How often the deadlines of those that wait are held against the rate."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """`admission`, reduced to what the core decides with."""

    length: int
    classes: TrafficClasses


class AdmissionQueue:
    """Not thread-safe: one owner calls it, on one event loop."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._line = FairLine(policy.classes)
        self._tickets: dict[OperationId, Ticket] = {}
        self._promised: Counter[ReplicaId] = Counter()
        self._rate = DrainRate()
        self._answers = AnswerTimes()
        self._begun: dict[AttemptId, tuple[str, bool, float]] = {}
        """Attempts that run: the class of each, whether it was shortened, and since when."""
        self._ends: list[tuple[float, OperationId]] = []
        """A heap of when those that wait may no longer; whoever has left is skipped when it comes up."""
        self._hurried: set[OperationId] = set()
        """Who waits and has a deadline of its own."""
        self._looked_at = 0.0
        self._deepest = 0

    # --- requests -----------------------------------------------------------------------------

    def arrive(self, newcomer: Newcomer, room: AnyRoom, now: float) -> tuple[Outcome, ...]:
        """One more request: what becomes of it, and of one that has to go for it."""
        if not room.limited:
            return (Granted(newcomer.operation_id, 0.0),)
        ticket = self._build_ticket(newcomer, now)
        if not self._line:
            replica = room.choose(self._promised)
            if replica is not None:
                self._tickets[newcomer.operation_id] = ticket
                return (self._promise(ticket, replica, now),)
        code = self._find_obstacle(ticket, room, now)
        if code is not None:
            return (self._shed(newcomer.operation_id, code, room, now),)
        operation_id = newcomer.operation_id
        self._wait(ticket, now)
        shed: tuple[Shed, ...] = ()
        if len(self._line) > self._policy.length:
            shed = (self._refuse(self._line.find_excess(operation_id), "queue_full", room, now),)
        self._deepest = max(self._deepest, len(self._line))
        stays = operation_id in self._line
        return (Waits(operation_id, ticket.until), *shed) if stays else shed

    def foresee(self, request_class: str | None, caller: str, room: AnyRoom) -> Outlook:
        """What a request would find that came at this moment; it changes nothing."""
        length, waiting = self._policy.length, len(self._line)
        if not room.limited:
            return Outlook(False, waiting, length, wait_s=0.0, hold_s=None)
        rate = self._rate.read(room.slots)
        class_name = self._policy.classes.find(request_class).name
        # What it would be refused by: who may be shortened is, before that.
        mean_s = None if rate is None else room.slots / rate
        hold_s = self._answers.read(class_name, shortened=False) or mean_s
        if self.has_room(room):
            return Outlook(False, waiting, length, wait_s=0.0, hold_s=hold_s)
        ahead = self._line.count_ahead(class_name, caller)
        wait_s = None if rate is None else (ahead + 1) / rate
        return Outlook(True, waiting, length, wait_s, hold_s)

    def foresee_refusal(self, newcomer: Newcomer, room: AnyRoom, now: float) -> Shed | None:
        """What a request would be told that came at this moment; None where it would be let in, or wait.

        It changes nothing but the span in which those that were refused of late are to come back.
        """
        if self.has_room(room):
            return None
        ticket = self._build_ticket(newcomer, now)
        code = self._find_obstacle(ticket, room, now)
        if code is None and len(self._line) >= self._policy.length:
            self._line.push(newcomer.operation_id, ticket.class_name, newcomer.caller)
            if self._line.find_excess(newcomer.operation_id) == newcomer.operation_id:
                code = "queue_full"
            self._line.remove(newcomer.operation_id)
        return None if code is None else self._shed(newcomer.operation_id, code, room, now)

    def has_room(self, room: AnyRoom) -> bool:
        """Whether a request that came at this moment would be let in at once."""
        return not room.limited or (not self._line and room.choose(self._promised) is not None)

    def start(self, operation_id: OperationId) -> None:
        """An attempt of the request is counted, where it is or as one that nobody has placed yet."""
        ticket = self._tickets.get(operation_id)
        if ticket is not None:
            self._take_back(ticket)
            ticket.move(Turn.START)

    def begin_answer(self, operation_id: OperationId, attempt_id: AttemptId, now: float) -> None:
        """An attempt of the request is let go."""
        ticket = self._tickets.get(operation_id)
        if ticket is not None:
            self._begun[attempt_id] = ticket.class_name, ticket.newcomer.shortened, now

    def end_answer(
        self, attempt_id: AttemptId, now: float, *, whole: bool, heard_at: float = math.inf
    ) -> None:
        """The attempt is over, with a whole answer or without.

        `heard_at`: when bytes last came from its replica, on any stream of ours. One that had gone silent
        says nothing of how long answers take: a replica that hangs would close the line of all others.
        """
        begun = self._begun.pop(attempt_id, None)
        if begun is not None:
            class_name, shortened, since = begun
            if not whole and heard_at < now - max(SILENT_S, (now - since) / 2):
                return
            self._answers.note(class_name, shortened, now - since, whole=whole)

    def note_refusal(self, room: AnyRoom, now: float) -> int:
        """Somebody is refused who has not asked here: the seconds within which there may be room for it."""
        return self._rate.note_refusal(room.slots, now)

    def leave(self, operation_id: OperationId, now: float) -> None:
        """The request is over, for whatever reason. Repeating this changes nothing."""
        ticket = self._tickets.pop(operation_id, None)
        if ticket is None:
            return
        if ticket.state is TicketState.WAITING:
            self._line.remove(operation_id)
            self._hurried.discard(operation_id)
        else:
            self._take_back(ticket)
        if ticket.state is TicketState.STARTED:
            self._rate.note_free(now - ticket.promised_at)

    def choose_replica(self, operation_id: OperationId, room: AnyRoom) -> ReplicaId | None:
        """Where the request's first attempt goes: to its slot. None leaves the choice to Envoy.

        A replica that takes no more work since the promise was made has its slot replaced by a free one.
        """
        ticket = self._tickets.get(operation_id)
        if ticket is None or ticket.state is not TicketState.PROMISED or not room.limited:
            return None
        if ticket.replica is None or not room.takes(ticket.replica):
            self._take_back(ticket)
            self._hand_over(ticket, room.choose(self._promised))
        return ticket.replica

    # --- slots and time -----------------------------------------------------------------------

    def fill(self, room: AnyRoom, now: float) -> tuple[Granted | Shed, ...]:
        """Give the free slots to those that wait, in their order; refuse whose answer would be too late."""
        outcomes: list[Granted | Shed] = []
        while self._line:
            replica = room.choose(self._promised)
            if replica is None and room.limited:
                break
            operation_id = self._line.find_next()
            ticket = self._tickets[operation_id]
            if self._is_too_late(ticket, now):
                # Its turn is not taken: its caller's next one comes in its place.
                outcomes.append(self._refuse(operation_id, "queue_deadline_exceeded", room, now))
                continue
            self._line.pop()
            outcomes.append(self._promise(ticket, replica, now))
        return tuple(outcomes)

    def next_deadline(self) -> float | None:
        """When `expire` wants to be called, None while nobody waits."""
        while self._ends and self._ends[0][1] not in self._line:
            heappop(self._ends)
        if not self._ends:
            return None
        until = self._ends[0][0]
        return min(until, self._looked_at + LOOK_S) if self._hurried else until

    def expire(self, room: AnyRoom, now: float) -> tuple[Shed, ...]:
        """Time has passed: refuse those who may not wait longer, or would in vain."""
        shed: list[Shed] = []
        while (due := self.next_deadline()) is not None and due <= now:
            until, operation_id = self._ends[0]
            if until <= now:
                code = _name_end(self._tickets[operation_id])
                shed.append(self._refuse(operation_id, code, room, now))
            else:
                self._looked_at = now
                in_vain = self._list_hopeless(room, now)
                shed += [self._refuse(one, "queue_deadline_exceeded", room, now) for one in in_vain]
        return tuple(shed)

    def shed_all(self, code: str, room: AnyRoom, now: float) -> tuple[Shed, ...]:
        """Nobody will be served any more: refuse all that wait."""
        return tuple(self._refuse(one, code, room, now) for one in self._line.list_in_order())

    # --- for people ---------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """How many wait."""
        return len(self._line)

    @property
    def deepest(self) -> int:
        """The most that ever waited at once."""
        return self._deepest

    @property
    def idle(self) -> bool:
        """Whether no request is known, and so no slot promised."""
        return not (self._tickets or self._promised or self._hurried or self._begun)

    def count_waiting(self) -> dict[str, int]:
        """How many wait, by class."""
        return {one.name: self._line.count(one.name) for one in self._policy.classes}

    def count_free(self, room: AnyRoom) -> int | None:
        """Slots that nobody has and nobody was promised; None in a pool without a limit."""
        return room.count_free(self._promised) if room.limited else None

    def read_rate(self, room: AnyRoom) -> float | None:
        """How many slots come free in a second while all are taken; None while that is not known."""
        return self._rate.read(room.slots) if room.limited else None

    # --- inside -------------------------------------------------------------------------------

    def _build_ticket(self, newcomer: Newcomer, now: float) -> Ticket:
        traffic = self._policy.classes.find(newcomer.request_class)
        until = now + traffic.max_wait_s
        if newcomer.deadline is not None:
            until = min(until, newcomer.deadline)
        return Ticket(newcomer, traffic.name, now, until)

    def _find_obstacle(self, ticket: Ticket, room: AnyRoom, now: float) -> str | None:
        """Why a newcomer would wait in vain."""
        rate = self._rate.read(room.slots)
        ahead = self._line.count_ahead(ticket.class_name, ticket.newcomer.caller)
        known_s = 0.0 if rate is None else (ahead + 1) / rate
        in_vain = (
            ticket.until <= now or now + known_s > ticket.until or self._is_too_late(ticket, now + known_s)
        )
        return "queue_deadline_exceeded" if in_vain else None

    def _is_too_late(self, ticket: Ticket, slot_at: float) -> bool:
        """Whether its own deadline leaves no time for an answer, with a slot from then on."""
        own = ticket.newcomer
        if own.deadline is None:
            return False
        return slot_at + self._answers.read(ticket.class_name, own.shortened) > own.deadline

    def _list_hopeless(self, room: AnyRoom, now: float) -> list[OperationId]:
        """Whose own deadline comes before the answer to its turn can."""
        rate = self._rate.read(room.slots)
        if rate is None:
            return []
        found: list[OperationId] = []
        ahead = 0
        for operation_id in self._line.list_in_order():
            if self._is_too_late(self._tickets[operation_id], now + (ahead + 1) / rate):
                found.append(operation_id)
            else:
                ahead += 1
        return found

    def _wait(self, ticket: Ticket, now: float) -> None:
        operation_id = ticket.newcomer.operation_id
        self._tickets[operation_id] = ticket
        self._line.push(operation_id, ticket.class_name, ticket.newcomer.caller)
        heappush(self._ends, (ticket.until, operation_id))
        if len(self._ends) > 2 * len(self._line) + 64:
            self._ends = [end for end in self._ends if end[1] in self._line]
            heapify(self._ends)
        if ticket.newcomer.deadline is not None:
            if not self._hurried:
                self._looked_at = now
            self._hurried.add(operation_id)

    def _promise(self, ticket: Ticket, replica: ReplicaId | None, now: float) -> Granted:
        ticket.move(Turn.PROMISE)
        ticket.promised_at = now
        self._hurried.discard(ticket.newcomer.operation_id)
        self._hand_over(ticket, replica)
        return Granted(ticket.newcomer.operation_id, now - ticket.arrived_at)

    def _hand_over(self, ticket: Ticket, replica: ReplicaId | None) -> None:
        ticket.replica = replica
        if replica is not None:
            self._promised[replica] += 1

    def _take_back(self, ticket: Ticket) -> None:
        """What was promised is promised no more: it is taken, or free."""
        if ticket.state is TicketState.PROMISED and ticket.replica is not None:
            self._promised[ticket.replica] -= 1
            if not self._promised[ticket.replica]:
                del self._promised[ticket.replica]
            ticket.replica = None

    def _refuse(self, operation_id: OperationId, code: str, room: AnyRoom, now: float) -> Shed:
        self.leave(operation_id, now)
        return self._shed(operation_id, code, room, now)

    def _shed(self, operation_id: OperationId, code: str, room: AnyRoom, now: float) -> Shed:
        return Shed(operation_id, code, self._rate.note_refusal(room.slots, now))


def _name_end(ticket: Ticket) -> str:
    own = ticket.newcomer.deadline
    return "deadline_exceeded" if own is not None and own <= ticket.until else "queue_deadline_exceeded"
