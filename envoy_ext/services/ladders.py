"""The ladders of all classes: what becomes of a request that its own pool has no room for.

`place` asks for a slot once, and goes down its class's ladder when there is none; `begin` lets the exchange
go on from there, and goes on down when a wait was in vain. Nothing of an answer has been sent before
either, and the boundaries of the request's data hold on every rung. What is decided is `domain.ladder`'s.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, assert_never

from envoy_ext.domain.api import NOT_COMPUTED, ApiFamily
from envoy_ext.domain.availability import Availability
from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import AnsweredHere, Event, RequestAdmitted, RequestMoved, RequestShed
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.job import Job
from envoy_ext.domain.ladder import (
    CHANGES_MODEL,
    HandOff,
    Ladder,
    LaterJob,
    OtherPool,
    Template,
    WayOut,
    list_shortenings,
    list_ways_out,
)
from envoy_ext.domain.notes import BoundaryHeld, HandOffFailed
from envoy_ext.domain.own_answers import OwnAnswer, build_own_answer
from envoy_ext.domain.rewriting import MAX_CHANGED_BYTES
from envoy_ext.domain.step import AcceptJob
from envoy_ext.domain.ticket import Granted, Newcomer, Outcome, Shed, Waits
from envoy_ext.ports import Clock, HandedOver, HandOffs, Observer
from envoy_ext.services.admission import Arrival
from envoy_ext.services.background import Background
from envoy_ext.services.changing import Changing
from envoy_ext.services.exchange_replicas import ExchangeReplicas
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.job_requests import Submission
from envoy_ext.services.jobs import Jobs
from envoy_ext.services.live_exchange import LiveExchange
from envoy_ext.services.opening import Opening
from envoy_ext.services.queues import Queues, draw_retry_after

HERE_S: Final = 0.0
"""A request that is answered here waits for no slot: what the queue's last word may take is enough."""


@dataclass(frozen=True, slots=True)
class BecomesJob:
    """A request that is to be taken in as a job."""

    opening: Opening
    shed: Shed
    ways: tuple[WayOut, ...]
    """What is left to be tried where that cannot be."""
    denied: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """A request that becomes an exchange, as much of it as goes on, and what it is to wait for."""

    opening: Opening
    outcome: Outcome
    """Shed: it is to be answered here, by one of `ways`."""
    ways: tuple[WayOut, ...] = ()
    denied: bool = False
    """A pool that had to be passed over is outside its boundaries."""


class Ladders:
    """Used by arrivals, on the event loop of the exchanges; holds nothing of its own."""

    def __init__(
        self,
        *,
        queues: Queues,
        fleet: Fleet,
        exchanges: Exchanges,
        changing: Changing,
        clock: Clock,
        observer: Observer,
        background: Background,
        hand_offs: HandOffs | None,
        jobs: Jobs | None,
        mint_operation_id: Callable[[], OperationId],
    ) -> None:
        """`jobs`: None where there are none, and no ladder has that rung."""
        self._jobs = jobs
        self._mint_operation_id = mint_operation_id
        self._classes = queues.classes
        self._queues = queues
        self._fleet = fleet
        self._exchanges = exchanges
        self._changing = changing
        self._clock = clock
        self._observer = observer
        self._background = background
        self._hand_offs = hand_offs

    def keep_body(self, arrival: Arrival) -> Arrival:
        """The request without its body, which Envoy has, unless its ladder may have to change that."""
        small, ladder = len(arrival.body) <= MAX_CHANGED_BYTES, self._find(arrival.request_class)
        kept = (small and ladder.rungs) or _leads_to(LaterJob, ladder)
        return arrival if kept else replace(arrival, body=b"")

    def place(self, opening: Opening) -> Placed | BecomesJob | ClientError:
        """Ask for a slot, and for whatever the ladder has where there is none; or refuse."""
        if opening.arrival.family is ApiFamily.MODELS and self._is_there(opening):
            return Placed(opening, Granted(opening.operation_id, 0.0))  # nothing is computed
        placed = self._ask(opening)
        shed = placed.outcome
        if not isinstance(shed, Shed):
            return placed
        return self._go_down(opening, shed, self._list_ways(opening, shed.code), denied=False)

    def place_below(self, job: BecomesJob) -> Placed | BecomesJob | ClientError:
        """The rungs below a job that could not be taken in."""
        return self._go_down(job.opening, job.shed, job.ways, denied=job.denied)

    def _go_down(
        self, opening: Opening, shed: Shed, ways: tuple[WayOut, ...], *, denied: bool
    ) -> Placed | BecomesJob | ClientError:
        for number, way in enumerate(ways):
            if isinstance(way, OtherPool):
                denied |= self._hold_boundary(opening, way, recorded=False)
                moved = self._move(opening, way)
                if moved is not None and not isinstance((other := self._ask(moved)).outcome, Shed):
                    return other
            elif isinstance(way, LaterJob):
                if self._may_become_job(opening):
                    return BecomesJob(opening, shed, ways[number + 1 :], denied)
            elif self._build_answer(opening, way) is not None:
                return Placed(opening, shed, ways[number:], denied)
        code, retry_after_s = FORBIDDEN if denied else shed.code, draw_retry_after(shed)
        return ClientError(code, opening.arrival.request_id, retry_after_s=retry_after_s)

    def begin(self, placed: Placed, live: LiveExchange) -> None:
        """Let the exchange of a placed request go on, wait, or be answered here."""
        opening, outcome = self._keep_body(placed.opening), placed.outcome
        match outcome:
            case Granted():
                # A begin under a key may be refused: somebody else's request may have come first.
                live.open(at_once=opening.key_hash is None)
            case Waits():
                pool, ladder = opening.admitted.pool, self._find(opening.arrival.request_class)
                hear = partial(self._hear, opening, live) if ladder.rungs else live.receive
                self._queues.listen(pool, opening.operation_id, hear)
                live.open_queued(outcome.until)
            case Shed():
                live.open_queued(self._clock.now() + HERE_S)
                shed = RequestShed(outcome.code, draw_retry_after(outcome))
                self._background.run(self._step_down(opening, live, shed, placed.ways, placed.denied))
            case _:
                assert_never(outcome)

    # --- a slot -------------------------------------------------------------------------------

    def _find(self, request_class: str | None) -> Ladder:
        return self._classes.find(request_class).ladder

    def _list_ways(self, opening: Opening, code: str) -> tuple[WayOut, ...]:
        """What its class has instead of this refusal, without what its caller has no right to."""
        may_use = opening.arrival.rights.may_use
        ways = list_ways_out(self._find(opening.arrival.request_class), code)
        return tuple(one for one in ways if not isinstance(one, OtherPool) or may_use(one.pool, one.model))

    def _is_there(self, opening: Opening) -> bool:
        return self._fleet.availability(opening.admitted.pool) is not Availability.EMPTY

    def _ask(self, opening: Opening) -> Placed:
        """Ask the request's pool, with as much of the request as this moment lets it have."""
        arrival, pool = opening.arrival, opening.admitted.pool
        if not self._is_there(opening):
            return Placed(opening, self._ask_for_trial(opening))
        ladder, left_s = self._find(arrival.request_class), arrival.deadline_s
        shorter = opening
        if ladder.rungs:
            outlook = self._queues.foresee(pool, arrival.request_class, arrival.caller)
            shorter = self._changing.shorten(opening, list_shortenings(ladder, outlook, left_s))
        deadline = None if left_s is None else self._clock.now() + left_s
        newcomer = Newcomer(
            opening.operation_id,
            arrival.request_class,
            arrival.caller,
            deadline,
            shortened=shorter is not opening,
        )
        outcome = self._queues.ask(pool, newcomer)
        return Placed(opening if isinstance(outcome, Shed) else shorter, outcome)

    def _ask_for_trial(self, opening: Opening) -> Outcome:
        """What becomes of a request whose pool has nobody to serve: a trial, where one is due, or nothing."""
        pool, operation_id = opening.admitted.pool, opening.operation_id
        if opening.admitted.request.facts.family not in NOT_COMPUTED:
            replicas = ExchangeReplicas(self._fleet, pool, self._clock)
            if replicas.choose_trial(operation_id, replayable=False) is not None:
                return Granted(operation_id, 0.0)
        return self._queues.build_empty(pool, operation_id)

    def _hold_boundary(self, opening: Opening, way: OtherPool, *, recorded: bool) -> bool:
        """Whether the data of the request may not go there; that is noted."""
        admitted = opening.admitted
        fits = opening.arrival.family in CHANGES_MODEL
        if way.pool in admitted.allowed_pools or not fits:
            return False
        operation_id = opening.operation_id if recorded else None
        held = BoundaryHeld(way.pool, opening.arrival.request_id, operation_id, admitted.data_class)
        self._observer.note(held)
        return True

    def _move(self, opening: Opening, way: OtherPool) -> Opening | None:
        """The request for another pool; None where it cannot be, or must not."""
        admitted = opening.admitted
        if way.pool == admitted.pool or way.pool not in admitted.allowed_pools:
            return None
        return self._changing.move(opening, way)

    # --- a wait that was in vain, and what is answered here ---------------------------------------

    def _keep_body(self, opening: Opening) -> Opening:
        """Without the body, where nobody can need it any more: it is in Envoy's memory already."""
        ladder = self._find(opening.arrival.request_class)
        moves = _leads_to(OtherPool, ladder) and opening.admitted.request.changed_body is None
        kept = moves or _leads_to(LaterJob, ladder)
        return opening if kept else replace(opening, arrival=replace(opening.arrival, body=b""))

    def _hear(self, opening: Opening, live: LiveExchange, event: Event) -> None:
        """The queue's one word on a request that waits."""
        if isinstance(event, RequestShed):
            ways = self._list_ways(opening, event.code)
            if ways:
                self._background.run(self._step_down(opening, live, event, ways, denied=False))
                return
        live.receive(event)

    async def _step_down(
        self,
        opening: Opening,
        live: LiveExchange,
        shed: RequestShed,
        ways: tuple[WayOut, ...],
        denied: bool,
    ) -> None:
        """Try what is left, in order, with the operation recorded and for as long as the client waits."""
        await live.wait_written()
        for way in ways:
            closed = self._exchanges.find_closure(opening.arrival.request_id)
            if closed is not None or not live.exchange.waits_for_slot:
                code = shed.code if closed is None else closed.code
                live.receive(RequestShed(code, shed.retry_after_s))
                return
            match way:
                case OtherPool():
                    denied |= self._hold_boundary(opening, way, recorded=True)
                    moved = self._move_now(opening, way)
                    if moved is not None:
                        live.receive(moved)
                        live.receive(RequestAdmitted())
                        return
                case LaterJob():
                    job = await self._become_job(opening)
                    if job is not None:
                        degraded = (way.name,)
                        live.receive(AnsweredHere("", b"", degraded, shed.code, settled=False, job=job))
                        return
                case Template() | HandOff():
                    answer = self._build_answer(opening, way)
                    if answer is not None and await self._is_taken(opening, way, shed.code):
                        settled = isinstance(way, HandOff)
                        degraded = (way.name,)
                        live.receive(
                            AnsweredHere(answer.content_type, answer.body, degraded, shed.code, settled)
                        )
                        return
                case _:
                    assert_never(way)
        live.receive(RequestShed(FORBIDDEN if denied else shed.code, shed.retry_after_s))

    def _move_now(self, opening: Opening, way: OtherPool) -> RequestMoved | None:
        """Another pool's slot, if it has one free: who has waited once does not wait again."""
        if not self._queues.has_room(way.pool):
            return None
        moved = self._move(opening, way)
        if moved is None or not self._is_there(moved):
            return None
        arrival, request = opening.arrival, moved.admitted.request
        newcomer = Newcomer(opening.operation_id, arrival.request_class, arrival.caller)
        outcome = self._queues.ask(way.pool, newcomer)
        if not isinstance(outcome, Granted) or request.changed_body is None:
            self._queues.leave(way.pool, opening.operation_id)
            return None
        return RequestMoved(way.pool, request.facts, request.degraded, request.changed_body)

    def _may_become_job(self, opening: Opening) -> bool:
        """Whether its client could make something of it: who waits for a stream reads no word of a job."""
        arrival, facts = opening.arrival, opening.admitted.request.facts
        return self._jobs is not None and self._jobs.fits(arrival) and not facts.stream

    async def _become_job(self, opening: Opening) -> Job | None:
        """A job in place of a request that has waited in vain; None where none is taken in.

        It has an id of its own, for the operation that waited has begun, and is about to end.
        """
        if self._jobs is None or not self._may_become_job(opening):
            return None
        ledger_id = opening.operation_id if opening.ledger_id is None else opening.ledger_id
        wanted = Submission(
            opening.arrival,
            opening.admitted,
            self._mint_operation_id(),
            opening.key_hash,
            after=opening.operation_id,
            ledger_id=ledger_id,
            by_ladder=True,
        )
        with contextlib.suppress(JournalUnavailable):
            accepted = await self._jobs.submit(wanted)
            if isinstance(accepted, AcceptJob):
                return accepted.job
        return None

    def _build_answer(self, opening: Opening, way: Template | HandOff) -> OwnAnswer | None:
        request, wall = opening.admitted.request, int(self._clock.wall())
        return build_own_answer(request.facts, request.path, way.text, opening.operation_id, wall)

    async def _is_taken(self, opening: Opening, way: Template | HandOff, code: str) -> bool:
        """Whether somebody stands behind the answer; nobody has to behind a template."""
        if isinstance(way, Template):
            return True
        request, arrival = opening.admitted.request, opening.arrival
        handed = HandedOver(
            operation_id=opening.operation_id,
            request_id=arrival.request_id,
            request_class=self._classes.find(arrival.request_class).name,
            path=request.path,
            body_sha256=request.body_sha256,
            code=code,
        )
        hand_offs = self._hand_offs
        if hand_offs is not None and await hand_offs.hand_over(way.webhook, handed, way.timeout_s):
            return True
        self._observer.note(HandOffFailed(opening.operation_id, opening.admitted.pool))
        return False


def _leads_to(kind: type[OtherPool | LaterJob], ladder: Ladder) -> bool:
    return any(isinstance(one, kind) for one in ladder.rungs)
