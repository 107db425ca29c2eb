"""May a request go on? What the delivery hop decides, for routes and gateways that do not pass through it.

Decided by the same functions and in the same order (`heads`, `admission`, `repeat_rules`, the queue's own
foresight), as far as what was sent allows. Nothing is taken and nobody waits here: no slot, no key, no place
in the line; what would wait is let on. Nor is anything run or recorded.
"""

import contextlib
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, assert_never

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.boundaries import DEFAULT, FORBIDDEN
from envoy_ext.domain.callers import DENIED
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import RequestArrived
from envoy_ext.domain.ids import OperationId, PoolName
from envoy_ext.domain.ladder import Template, list_ways_out
from envoy_ext.domain.notes import BoundaryHeld, RequestRefused
from envoy_ext.domain.outcomes import RungName
from envoy_ext.domain.own_answers import OwnAnswer, build_own_answer
from envoy_ext.domain.step import RespondLocally
from envoy_ext.domain.ticket import Newcomer, Shed
from envoy_ext.domain.tool_verdict import find_obstacle
from envoy_ext.ports import Clock, Observer, Store
from envoy_ext.services.admission import (
    AdmissionRules,
    Admitted,
    Arrival,
    Forbidden,
    decide_admission,
    decide_allowed,
)
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fleet import CUT_OFF, NO_READY_REPLICA
from envoy_ext.services.heads import Heads, RequestHead, Sender
from envoy_ext.services.live_exchange import add_retry_after
from envoy_ext.services.queues import Queues, draw_retry_after
from envoy_ext.services.repeat_rules import (
    RunsAgain,
    StillRuns,
    WasAnswered,
    build_incomplete_error,
    build_running_error,
    build_tool_error,
    decide_repeat,
)
from envoy_ext.services.repeats import RequestKey


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What ext_authz knows of a request."""

    head: RequestHead
    body: bytes | None = None
    """None where all of it was not sent."""
    exchange_id: str | None = None
    """Of an exchange of this sidecar, when the request comes from our own ingress hop: an attempt, and no
    client's request."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """It may go on; what is known of it, for whatever stands behind."""

    caller: str | None = None
    """Its name, None where no credential is checked."""
    pool: PoolName | None = None
    """None where that cannot be told without the body."""
    request_class: str | None = None
    data_class: str | None = None


@dataclass(frozen=True, slots=True)
class Untouched:
    """It may go on as it is: an attempt of our own, whose headers mean something."""


@dataclass(frozen=True, slots=True)
class Given:
    """It has its answer here, and goes nowhere."""

    content: OwnAnswer
    request_id: str
    degraded: tuple[RungName, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenModels:
    """It asks which models there are."""

    models: tuple[str, ...]
    request_id: str


Verdict = Allowed | Untouched | Given | GivenModels | ClientError


class Authz:
    """Asking twice takes nothing and answers the same. Used from one event loop."""

    def __init__(
        self,
        exchanges: Exchanges,
        journal: Store,
        *,
        rules: AdmissionRules,
        queues: Queues,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._exchanges = exchanges
        self._journal = journal
        self._rules = rules
        self.heads: Final = Heads(rules, clock)
        """What is decided before there is a body."""
        self._queues = queues
        self._clock = clock
        self._observer = observer

    async def check(self, request: CheckRequest) -> Verdict:
        """What becomes of a request."""
        live = None if request.exchange_id is None else self._exchanges.find(request.exchange_id)
        if live is not None:
            identity = live.exchange.identity
            if live.exchange.committed:
                return ClientError("replay_not_allowed", identity.request_id, identity.operation_id)
            return Untouched()
        verdict, pool = await self._decide(request)
        if not isinstance(verdict, ClientError):
            return verdict
        if verdict.code != FORBIDDEN or pool is None:  # else counted where it was held
            self._observer.note(RequestRefused(pool, verdict.code))
        return add_retry_after(RespondLocally(verdict)).error

    # --- in the delivery hop's order ------------------------------------------------------------

    async def _decide(self, request: CheckRequest) -> tuple[Verdict, PoolName | None]:
        """The verdict, and the pool that it is about."""
        head = request.head
        sender = self.heads.decide_sender(head)
        if isinstance(sender, ClientError):
            return sender, None
        models = self.heads.list_models(head, sender)
        if models is not None:
            return GivenModels(models, head.request_id), None
        arrival = self.heads.decide_head(head, sender)
        if isinstance(arrival, ClientError):
            return arrival, None
        closed = self._exchanges.find_closure(arrival.request_id, arrival)
        if closed is not None:
            return closed, None
        if request.body is not None or arrival.family in (ApiFamily.MODELS, ApiFamily.OTHER):
            return await self._decide_whole(replace(arrival, body=request.body or b""), sender)
        return await self._decide_unread(arrival, sender)

    async def _decide_whole(self, arrival: Arrival, sender: Sender) -> tuple[Verdict, PoolName | None]:
        """With the body, or where none is read."""
        admitted = decide_admission(arrival, self._rules, lambda pool, request: ())
        match admitted:
            case ClientError():
                return admitted, None
            case Forbidden():
                held = BoundaryHeld(admitted.pool, arrival.request_id, None, admitted.data_class)
                self._observer.note(held)
                return ClientError(FORBIDDEN, arrival.request_id), admitted.pool
            case Admitted():
                refusal: ClientError | Given | None = await self._find_repeat(arrival, admitted.request)
                if refusal is None:
                    refusal = self._find_no_room(arrival, admitted.pool, admitted.request)
                if not isinstance(refusal, ClientError):  # an answer of ours is one that has to be recorded
                    refusal = self._exchanges.find_store_refusal(arrival) or refusal
                return refusal or self._allow(arrival, sender, admitted.pool), admitted.pool
            case _:
                assert_never(admitted)

    async def _decide_unread(self, arrival: Arrival, sender: Sender) -> tuple[Verdict, PoolName | None]:
        """Without the body nobody knows the model, nor, of several pools, which one is asked.

        Where not every one of them may be, nothing is let on that could be for one of the others.
        """
        allowed = decide_allowed(arrival, self._rules)
        if isinstance(allowed, ClientError):
            return allowed, None
        pools = self._rules.directory.pools
        if arrival.rights.limited or not allowed.issuperset(pools):
            code = DENIED if arrival.rights.limited else FORBIDDEN
            return ClientError(code, arrival.request_id, message=_UNSEEN), None
        pool = pools[0] if len(pools) == 1 else None
        refusal: ClientError | Given | None = await self._find_repeat(arrival, None)
        if refusal is None and pool is not None:
            refusal = self._find_no_room(arrival, pool, None)
        if refusal is None:
            refusal = self._exchanges.find_store_refusal(arrival)
        return refusal or self._allow(arrival, sender, pool), pool

    def _allow(self, arrival: Arrival, sender: Sender, pool: PoolName | None) -> Allowed:
        traffic = self._queues.classes.find(arrival.request_class)
        data_class = DEFAULT if arrival.data_class is None else arrival.data_class
        return Allowed(sender.name, pool, traffic.name, data_class)

    # --- room -----------------------------------------------------------------------------------

    def _find_no_room(
        self, arrival: Arrival, pool: PoolName, request: RequestArrived | None
    ) -> ClientError | Given | None:
        """What it is told for want of a slot, a replica or time; None where it is let in, or would wait.

        Of a ladder's rungs the fixed text alone is possible here: a body cannot be changed, and who is handed
        to a person has an operation that says so.
        """
        left_s, now = arrival.deadline_s, self._clock.now()
        deadline = None if left_s is None else now + left_s
        newcomer = Newcomer(_NOBODY, arrival.request_class, arrival.caller, deadline)
        shed = self._queues.foresee_refusal(pool, newcomer)
        if shed is None:
            return None
        if arrival.family is ApiFamily.MODELS and shed.code not in (CUT_OFF, NO_READY_REPLICA):
            return None  # it takes no slot
        given = None if request is None else self._find_template(arrival, request, shed)
        if given is not None:
            return given
        return ClientError(shed.code, arrival.request_id, retry_after_s=draw_retry_after(shed))

    def _find_template(self, arrival: Arrival, request: RequestArrived, shed: Shed) -> Given | None:
        ladder = self._queues.classes.find(arrival.request_class).ladder
        for way in list_ways_out(ladder, shed.code):
            if isinstance(way, Template):
                wall = int(self._clock.wall())
                own = build_own_answer(request.facts, request.path, way.text, arrival.request_id, wall)
                if own is not None:
                    return Given(own, arrival.request_id, (way.name,))
        return None

    # --- repeats --------------------------------------------------------------------------------

    async def _find_repeat(self, arrival: Arrival, request: RequestArrived | None) -> ClientError | None:
        """What the rules for repeats say against it. `request`: None where its body is not known."""
        path = arrival.path.partition("?")[0]
        if arrival.idempotency_key is not None:
            refusal = await self._check_key(arrival, path, request)
            if refusal is not None:
                return refusal
        if not arrival.upstream_retry:
            return None
        repeats = self._exchanges.repeats
        if request is None:
            operation_id = repeats.find_delivered(arrival.caller, path, arrival.request_id)
        else:
            key = RequestKey(arrival.caller, path, arrival.request_id, request.body_sha256)
            operation_id = repeats.find_upstream_retry(arrival, key)
        return None if operation_id is None else await self._refuse_incomplete(arrival, operation_id)

    async def _check_key(
        self, arrival: Arrival, path: str, request: RequestArrived | None
    ) -> ClientError | None:
        """A completed operation is let on: its answer is given by the ingress alone.

        One that runs is not, though a repeat at the ingress might wait for it: here nobody could keep it.
        """
        key_hash = sha256((arrival.idempotency_key or "").encode()).hexdigest()
        body_sha256 = None if request is None else request.body_sha256
        try:
            return await self._decide_key(arrival, path, key_hash, body_sha256)
        except JournalUnavailable:
            message = "The gateway cannot look up the idempotency key, so it does not run the request."
            return ClientError("upstream_unavailable", arrival.request_id, message=message)

    async def _decide_key(
        self, arrival: Arrival, path: str, key_hash: str, body_sha256: str | None
    ) -> ClientError | None:
        request_id = arrival.request_id
        earlier = await self._journal.find_by_key(arrival.caller, path, key_hash)
        if earlier is None or (earlier.request_id == request_id and not arrival.upstream_retry):
            # The operation of this very request: Envoy may ask about one request more than once.
            return None
        repeat = decide_repeat(request_id, body_sha256, earlier)
        match repeat:
            case WasAnswered():
                return None
            case StillRuns():
                return build_running_error(request_id, repeat.operation_id)
            case RunsAgain():
                obstacle = find_obstacle(await self._journal.read_calls(repeat.ledger_id))
                return None if obstacle is None else build_tool_error(request_id, repeat.after, obstacle)
            case ClientError():
                return repeat
            case _:
                assert_never(repeat)

    async def _refuse_incomplete(self, arrival: Arrival, operation_id: OperationId) -> ClientError:
        earlier = None
        with contextlib.suppress(JournalUnavailable):  # then the refusal says less, but stands
            earlier = await self._journal.get(operation_id)
        return build_incomplete_error(arrival.request_id, operation_id, earlier)


_NOBODY = OperationId("")
"""Stands for a request that takes no place: it has no operation."""
_UNSEEN = "The gateway was not shown the whole body, and not every model that it could ask for may be used."
