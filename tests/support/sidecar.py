"""The services as the composition root puts them together, on a memory journal, for tests of adapters.

The hops' ends are lists of what was sent to them.
"""

import itertools
import math
from dataclasses import dataclass, field

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.answer_keeping import KeepingPolicy
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.boundaries import Boundaries, DataClass
from envoy_ext.domain.callers import ALL_RIGHTS, CallerRules, Rights
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.events import AttemptAnswered, AttemptBody, ResponseBody, ResponseStarted
from envoy_ext.domain.exchange_shared import ExchangePolicy
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import ControlCallPassed
from envoy_ext.domain.fleet_view import ViewPolicy
from envoy_ext.domain.ids import AttemptId, ExchangeId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import Note
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.signals import Band
from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.ports import Clock, Connections, HandOffs, ReachProbe, Store, ToolLedger, Trace
from envoy_ext.services.admission import AdmissionRules, Arrival, PoolDirectory
from envoy_ext.services.arrivals import Arrivals
from envoy_ext.services.authz import Authz
from envoy_ext.services.background import Background
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fences import Fences
from envoy_ext.services.fleet import Fleet, FleetPool
from envoy_ext.services.hop_reports import HopReports
from envoy_ext.services.joiners import JoinPolicy
from envoy_ext.services.live_exchange import LiveExchange
from envoy_ext.services.loop_watch import LoopWatch
from envoy_ext.services.opening import Minting
from envoy_ext.services.queues import Queues
from envoy_ext.services.rooms import Rooms
from envoy_ext.services.seats import SeatKeeper
from envoy_ext.services.unrecorded import Unrecorded
from tests.support.journals import run_now
from tests.support.members import list_members

POOL = PoolName("chat")
MODEL = "llama-3.1-8b"
SSE = "text/event-stream"
LEFT_TO_CIRCUITS = ReadinessPolicy(own_failures=Band(math.inf, 1.0))
BODY = b'{"model": "llama-3.1-8b", "stream": true, "messages": []}'
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}\n\n'
REST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Watcher:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.bugs: list[BaseException] = []

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def note_bug(self, where: str, error: BaseException) -> None:
        self.bugs.append(error)

    def note_journal(self, seconds: float, failed: bool) -> None:
        pass


class Sent:
    """A hop's end: what the sidecar sent there."""

    def __init__(self) -> None:
        self.replies: list[step.Reply] = []

    def send(self, reply: step.Reply) -> None:
        self.replies.append(reply)


@dataclass
class Sidecar:
    """The services, and the words to play one exchange with them."""

    policy: ExchangePolicy = field(default_factory=lambda: ExchangePolicy(settle_s=0.05))
    journal: Store = field(default_factory=MemoryJournal)
    watcher: Watcher = field(default_factory=Watcher)
    replicas: tuple[str, ...] = ("a", "b")
    probe: ReachProbe | None = None
    watched: bool = False
    """Whether replicas have to give a token before they get work, which they have when a test begins."""
    clock: Clock = field(default_factory=SystemClock)
    name: str = ""
    """Part of its ids, where several share a journal."""
    concurrency: int | None = None
    """What each replica computes at once; None: nobody says, and nothing ever waits."""
    queue_policy: QueuePolicy = field(default_factory=lambda: QueuePolicy(256, TrafficClasses(())))
    connections: Connections | None = None
    unrecorded: Unrecorded = field(default_factory=Unrecorded)
    trace: Trace | None = None
    others: dict[str, str] = field(default_factory=dict)
    """More pools, each with a model of its own name and one replica `<name>-a`, by their boundary."""
    boundary: str = "local"
    """Of the first pool."""
    data_classes: tuple[DataClass, ...] = ()
    hand_offs: HandOffs | None = None
    keeping: KeepingPolicy | None = None
    ledger: ToolLedger | None = None
    """Of tool calls, where there are tools."""
    joining: JoinPolicy | None = None
    callers: CallerRules | None = None
    """Who is let in; None: anybody."""
    circuit: CircuitPolicy | None = None
    """Of the first pool."""
    loop_watch: LoopWatch | None = None
    """Of the event loop; None: nobody looks."""
    max_requests: int | None = None
    """In flight at once."""

    def __post_init__(self) -> None:
        numbers = itertools.count(1)
        clock = self.clock
        others = {PoolName(name): boundary for name, boundary in self.others.items()}
        names = (POOL, *others)
        fleet = Fleet(
            [
                FleetPool(
                    name=one,
                    fingerprint=Fingerprint(one),
                    # As the wiring has it: where there is a circuit, readiness leaves our failures to it.
                    readiness=ReadinessPolicy() if self.circuit is None else LEFT_TO_CIRCUITS,
                    watched=self.watched,
                    over_xds=False,
                    view=ViewPolicy(),
                    circuit=self.circuit if one == POOL else None,
                )
                for one in names
            ],
            clock,
            on_view=lambda view: None,
            on_change=lambda change: None,
        )
        list_members(fleet, POOL, self.replicas)
        for one in others:
            list_members(fleet, one, (f"{one}-a",))
        for replica in self.replicas if self.watched else ():
            fleet.receive(ReplicaId(replica), ControlCallPassed(1))
        self.fleet = fleet
        background = Background(self.watcher)
        self.keeper = SeatKeeper(self.journal, clock, self.policy.lease, f"gw{self.name}")
        run_now(self.keeper.take())
        self.queues = Queues(
            self.queue_policy,
            names,
            rooms=Rooms(fleet, dict.fromkeys(names, self.concurrency)),
            fleet=fleet,
            clock=clock,
            observer=self.watcher,
        )
        fences = None if self.probe is None else Fences(fleet.places, self.probe, clock, fleet.note_refusal)
        self.exchanges = Exchanges(
            journal=self.journal,
            clock=clock,
            observer=self.watcher,
            fleet=fleet,
            policy=self.policy,
            mint=Minting(
                lambda: ExchangeId(f"exg_{self.name}{next(numbers)}"),
                lambda: AttemptId(f"att_{self.name}{next(numbers)}"),
            ),
            background=background,
            keeper=self.keeper,
            queues=self.queues,
            unrecorded=self.unrecorded,
            fences=fences,
            ledger=self.ledger,
            trace=self.trace,
            keeping=self.keeping,
            loop_watch=self.loop_watch,
            max_requests=self.max_requests,
        )
        self.reports = HopReports(self.exchanges, clock, background, fences, self.connections)
        self.rules = AdmissionRules(
            directory=PoolDirectory({MODEL: POOL} | {str(one): one for one in others}, names),
            boundaries=Boundaries(self.data_classes, {POOL: self.boundary} | others),
            max_request_bytes=1 << 20,
            read_callers=None if self.callers is None else lambda: self.callers,
        )
        self.arrivals = Arrivals(
            self.exchanges,
            journal=self.journal,
            observer=self.watcher,
            fleet=fleet,
            rules=self.rules,
            failover=self.policy.failover,
            mint_operation_id=lambda: OperationId(f"op_{self.name}{next(numbers)}"),
            background=background,
            queues=self.queues,
            clock=clock,
            joining=self.joining,
            hand_offs=self.hand_offs,
        )

    @property
    def authz(self) -> Authz:
        """The same decisions for other gateways."""
        return Authz(
            self.exchanges,
            self.journal,
            rules=self.rules,
            queues=self.queues,
            clock=self.clock,
            observer=self.watcher,
        )

    def build_arrival(
        self,
        *,
        request_id: str = "req-1",
        key: str | None = None,
        family: ApiFamily = ApiFamily.CHAT,
        caller: str = "",
        deadline_s: float | None = None,
        request_class: str | None = None,
        data_class: str | None = None,
        body: bytes = BODY,
        path: str = "/v1/chat/completions",
        upstream_retry: bool = False,
        prefer_wait_s: float | None = None,
        rights: Rights = ALL_RIGHTS,
    ) -> Arrival:
        return Arrival(
            family=family,
            path=path,
            body=body,
            content_encoding="",
            request_id=request_id,
            caller=caller,
            idempotency_key=key,
            deadline_s=deadline_s,
            upstream_retry=upstream_retry,
            request_class=request_class,
            data_class=data_class,
            prefer_wait_s=prefer_wait_s,
            rights=rights,
        )

    async def settle(self) -> None:
        """Until the appends under way are done and their replies sent."""
        await self.exchanges.aclose()

    async def operation(self, request_id: str = "req-1") -> Operation:
        """What the journal knows of a request."""
        await self.settle()
        for operation in await self.journal.list_recent(100):
            if operation.request_id == request_id:
                return operation
        raise AssertionError(f"no operation of {request_id}")


@dataclass
class Played:
    """One exchange that an attempt has answered in part: `DELTA` is with the client."""

    sidecar: Sidecar
    delivery: Delivery
    client: Sent
    attempt: Sent
    exchange_id: ExchangeId
    attempt_id: AttemptId
    live: LiveExchange


async def play_until_delta(sidecar: Sidecar, replica: str = "a") -> Played:
    """Admit a request, start an attempt, let its first delta through."""
    client, hop = Sent(), Sent()
    delivery = sidecar.arrivals.arrive(sidecar.build_arrival(), client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    joined = sidecar.exchanges.join(forward.exchange_id, hop)
    assert joined is not None
    live, attempt_id = joined
    sidecar.exchanges.arrive_attempt(live, attempt_id)
    await sidecar.settle()
    live.receive(AttemptAnswered(attempt_id, 200, SSE, "", ReplicaId(replica), end=False))
    live.receive(AttemptBody(attempt_id, DELTA, end=False))
    await sidecar.settle()
    assert isinstance(hop.replies[-1], step.ReleaseAttempt)
    delivery.receive(ResponseStarted(200, SSE, "", replay_mark=False, refusal=None, end=False))
    delivery.receive(ResponseBody(DELTA, end=False))
    return Played(sidecar, delivery, client, hop, forward.exchange_id, attempt_id, live)
