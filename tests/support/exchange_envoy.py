"""An Envoy in memory that plays one exchange: both hops, their logs, a client and the replicas.

It does with each reply what Envoy was measured to do, and asserts the protocol while it does so: a
body before headers, a byte after the end or a second answer to one message fails the test at once.

What happens in a hop becomes an event in one of four kinds of queue: the delivery stream, one
stream per attempt, the attempt log, the exchange log. Each keeps its own order. By default events
arrive in the order they happened; `late` names the sources that keep theirs back until `deliver`.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import assert_never

from envoy_ext.domain import step
from envoy_ext.domain.events import (
    AttemptArrived,
    AttemptClosed,
    DeliveryClosed,
    DrainExpired,
    Event,
    ExchangeLogged,
    JournalFailed,
    LedgerRead,
    LogCause,
    OwnershipLost,
    RequestArrived,
    ResponseBody,
    ResponseStarted,
    Target,
)
from envoy_ext.domain.exchange import Exchange
from envoy_ext.domain.exchange_shared import ExchangePolicy, Tried
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import LedgerAwaited, Note
from envoy_ext.domain.records import AttemptEnded, OperationEnded, Record
from envoy_ext.domain.tool_calls import ToolCall
from tests.support.exchange_builders import Policy, ReqChat, identity, target, targets
from tests.support.exchange_hop import ATTEMPT_LOG, DELIVERY, EXCHANGE_LOG, At, Client, Hop

__all__ = ["ATTEMPT_LOG", "DELIVERY", "EXCHANGE_LOG", "LEDGER", "WALL", "At", "Client", "Envoy", "Hop"]

LEDGER = "ledger"
"""The source of what earlier attempts have called."""
WALL = 1_750_000_000.0

JOURNAL_FAILED = JournalFailed()


class Envoy:
    """Plays one exchange from its request on."""

    def __init__(
        self,
        request: RequestArrived | None = None,
        *,
        policy: ExchangePolicy | None = None,
        replicas: tuple[str, ...] = ("a", "b"),
        retries: int | None = None,
        late: tuple[str, ...] = (),
        manual: bool = False,
        journal_fails_at: type[Record] | None = None,
        journal_failure: Event = JOURNAL_FAILED,
        steered: bool = False,
        queued: bool = False,
        ledger: tuple[ToolCall, ...] | None = (),
        ledger_id: OperationId | None = None,
    ) -> None:
        """`retries` is how often the ingress hop replays; by default as often as the policy says.

        `manual`: nothing is heard of before `deliver`. `steered`: the first attempt is sent to the first
        replica by name. `queued`: the request waits for a slot, for thirty seconds at the longest.
        `ledger`: the tool calls that are read when it is asked what earlier attempts did.
        """
        self.now = 1000.0
        self.policy = policy or Policy()
        self.replicas = replicas
        self.retries = self.policy.failover.max_attempts - 1 if retries is None else retries
        self.late = set(late)
        self.manual = manual
        self.journal_fails_at = journal_fails_at
        self.journal_failure = journal_failure
        self.steered = steered
        self.ledger = ledger
        self.looked_up: list[OperationId] = []
        """The ledgers that were asked for."""
        self.client = Client()
        self.hops: list[Hop] = []
        self.queues: dict[str, deque[Event]] = {}
        self.steps: list[step.Step] = []
        """As they were carried out: without what the journal could not take."""
        self.produced: list[step.Step] = []
        """As the exchange gave them."""
        self.journal: list[Record] = []
        self.equals: set[str] | None = None
        """The ready replicas with the fingerprint of the first attempt's; None: all."""
        self.revisions: dict[str, str] = {}
        """What replicas serve, where that is known."""
        self.asked: list[Tried] = []
        """For whom replicas were looked for."""
        self.moved_to: PoolName | None = None
        self.closed = False
        """The delivery stream is over."""
        self.released: Hop | None = None
        self._body_told = False
        self._arrivals: deque[str] = deque()
        self._pumping = False
        self.shortcuts = 0
        """Chunks that took the short way."""
        self.exchange = Exchange(
            replace(identity(), ledger_id=ledger_id), request or ReqChat(), self.policy, self, self.now, WALL
        )
        self.patience_s: float | None = None
        """How long Envoy lets the sidecar keep the request, once it was asked to."""
        if queued:
            self._carry_out(self.exchange.open_queued(self.now, self.now + 30.0))
        else:
            self._carry_out(self.exchange.open(self.now))
        self.pump()

    # --- the sentence's subjects ---

    @property
    def replica(self) -> Hop:
        """The replica that works on the latest attempt."""
        return self.hops[-1]

    def attempt(self, number: int) -> Hop:
        return self.hops[number - 1]

    @property
    def records(self) -> list[Record]:
        return self.journal

    @property
    def replies(self) -> list[step.Reply]:
        return [reply for taken in self.steps for reply in taken.replies]

    @property
    def notes(self) -> list[Note]:
        return [note for taken in self.steps for note in taken.notes]

    @property
    def started(self) -> int:
        """How many attempts were let go to a replica."""
        return sum(isinstance(reply, step.StartAttempt) for reply in self.replies)

    @property
    def end(self) -> OperationEnded | None:
        ends = [record for record in self.journal if isinstance(record, OperationEnded)]
        assert len(ends) <= 1
        return ends[0] if ends else None

    @property
    def outcomes(self) -> list[str]:
        """How the attempts ended, by number, as far as the journal knows."""
        ended = {one.attempt_id: one.outcome for one in self.journal if isinstance(one, AttemptEnded)}
        return [str(ended[hop.id]) if hop.id in ended else "open" for hop in self.hops]

    def find_targets(self, tried: Tried) -> tuple[Target, ...]:
        """Where a replay may go, as the fleet would say: also replicas that were tried, last."""
        self.asked.append(tried)
        return targets(*(name for name in self.replicas if self.equals is None or name in self.equals))

    def move(self, pool: PoolName) -> None:
        """`exchange_shared.Replicas`: the same replicas stand for those of the other pool."""
        self.moved_to = pool

    def find_revision(self, replica: ReplicaId, at: float) -> str | None:
        """What a replica served, as the fleet would say."""
        return self.revisions.get(replica)

    # --- events and their order ---

    def tell(self, source: str, event: Event) -> None:
        """Something happened in a hop; the sidecar hears of it from this source."""
        self.queues.setdefault(source, deque()).append(event)
        self._arrivals.append(source)
        self.pump()

    def pump(self) -> None:
        """Deliver what happened, in order, except for the late sources."""
        if self._pumping or self.manual:
            return
        self._pumping = True
        try:
            while (source := self._next_source()) is not None:
                self.deliver(source)
        finally:
            self._pumping = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What happens inside has happened before the sidecar hears of any of it."""
        inside, self._pumping = self._pumping, True
        try:
            yield
        finally:
            self._pumping = inside
        self.pump()

    def _next_source(self) -> str | None:
        kept: deque[str] = deque()
        found = None
        while self._arrivals:
            source = self._arrivals.popleft()
            if source in self.late:
                kept.append(source)
            elif self.queues[source]:
                found = source
                break
        self._arrivals.extendleft(reversed(kept))
        return found

    def deliver(self, source: str) -> None:
        """Let the sidecar hear the next event of a source."""
        self.receive(self.queues[source].popleft())

    def catch_up(self, source: str) -> None:
        """A late source is late no more."""
        self.late.discard(source)
        self.pump()

    def receive(self, event: Event) -> None:
        self._body_told |= isinstance(event, ResponseBody)
        if isinstance(event, ResponseBody) and not event.end:
            self._carry_out(self._receive_chunk(event))
        else:
            self._carry_out(self.exchange.receive(event, self.now))

    def _receive_chunk(self, chunk: ResponseBody) -> step.Step:
        """Both ways of a chunk lead to the same, wherever the short one leads; it is gone on with."""
        shortcut = deepcopy(self.exchange, {id(self): self})
        passed = shortcut.pass_chunk(chunk.data)
        before = repr(self.exchange), self.exchange.next_deadline()
        taken = self.exchange.receive(chunk, self.now)
        if passed is None:
            return taken
        assert taken == step.Step(replies=(step.ForwardBody(passed, end=False),) if passed else ())
        assert (repr(self.exchange), self.exchange.next_deadline()) == before
        self.exchange = shortcut
        self.shortcuts += 1
        return taken

    def wait(self, seconds: float) -> None:
        """Let time pass; the exchange's deadlines are kept."""
        until = self.now + seconds
        while (deadline := self.exchange.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self._carry_out(self.exchange.expire(self.now))
            self.pump()
        self.now = until

    def drain_expires(self) -> None:
        self.receive(DrainExpired())
        self.pump()

    def loses_its_ownership(self) -> None:
        """Another gateway has found this one gone."""
        self.receive(OwnershipLost())
        self.pump()

    # --- what a client and Envoy do by themselves ---

    def client_leaves(self) -> None:
        if not self.client.over:
            self.client.left = True
            with self.at_once():
                self._end_delivery(LogCause.DOWNSTREAM_GONE)

    def closes_broken_connection(self) -> None:
        """`delayed_close_timeout` has passed for an attempt that broke in mid-answer."""
        if not self.client.over:
            self.client.cut = True
            with self.at_once():
                self._end_delivery(LogCause.OTHER)

    def _end_delivery(self, cause: LogCause) -> None:
        """The client's side is over: the ingress hop drops what still runs for it."""
        self._drop_hop()
        if not self.closed:
            self.closed = True
            self.tell(DELIVERY, DeliveryClosed())
            self.tell(EXCHANGE_LOG, ExchangeLogged(cause, ""))

    def _drop_hop(self) -> None:
        for hop in self.hops:
            if hop.at is not At.OVER:
                hop.over(LogCause.DOWNSTREAM_GONE, "downstream_remote_disconnect")

    def take_failure(
        self, hop: Hop, *, status: int, mark: bool, refusal: str | None = None, lost: LogCause | None = None
    ) -> None:
        """An attempt gave the ingress hop a failure: replay it, or let it go to the client's filter."""
        if hop is not self.hops[-1] or self.closed or self.released is not None:
            return
        if mark and self.retries > 0:
            self.retries -= 1
            self.asks_again()
            return
        self.tell(DELIVERY, ResponseStarted(status, "text/plain", "", mark, refusal, False, lost))
        self.tell(DELIVERY, ResponseBody(b"upstream connect error", end=True))

    def asks_again(self) -> None:
        """The ingress hop tries once more, by its policy or by one it should not have."""
        number = len(self.hops) + 1
        hop = Hop(self, number, AttemptId(f"att_{number}"))
        with self.at_once():
            if self.released is None:
                self._drop_hop()
            self.hops.append(hop)
            steer_to = target(self.replicas[0]) if self.steered and number == 1 else None
            self.tell(hop.source, AttemptArrived(hop.id, steer_to))

    # --- carrying out steps, as the services do ---

    def _carry_out(self, taken: step.Step) -> None:
        self.steps.append(taken)
        self.produced.append(taken)
        failing = self.journal_fails_at
        if failing is not None and any(isinstance(record, failing) for record in taken.records):
            only_ends = all(isinstance(record, AttemptEnded | OperationEnded) for record in taken.records)
            if not only_ends:
                answer = self.exchange.receive(self.journal_failure, self.now)
                self.steps[-1] = step.Step(notes=taken.notes)  # not written, so not sent
                self.steps.append(answer)
                self.produced.append(answer)
                self._obey_all(answer)
                return
        else:
            self.journal += taken.records
        self._obey_all(taken)

    def _obey_all(self, taken: step.Step) -> None:
        """All of a step's replies, before what they bring about is told."""
        with self.at_once():
            for reply in taken.replies:
                self._obey(reply)
            for note in taken.notes:
                if isinstance(note, LedgerAwaited):
                    self.looked_up.append(note.ledger_id)
                    self.tell(LEDGER, LedgerRead(note.attempt_id, self.ledger))

    def _obey(self, reply: step.Reply) -> None:
        match reply:
            case step.ForwardRequest():
                assert not self.hops
                if not self.closed:
                    self.asks_again()
            case step.HoldRequest():
                assert not self.hops
                assert self.patience_s is None, "Envoy extends a message's time once"
                self.patience_s = reply.seconds
            case step.AnswerHere():
                if not (self.client.left or self.client.cut):
                    assert not self.client.over, f"{reply} after the client's side was over"
                    assert not self.hops, "an answer of our own beside a replica's"
                    self.client.own_answer = reply
                    self._end_delivery(LogCause.SIDECAR)
            case step.RespondLocally() | step.ForwardResponse() | step.ForwardBody() | step.ResetDelivery():
                self._obey_delivery(reply)
            case (
                step.StartAttempt()
                | step.RefuseAttempt()
                | step.AskPatience()
                | step.ReleaseAttempt()
                | step.PassLocalReply()
                | step.FailOver()
                | step.WithholdAnswer()
            ):
                hop = next(hop for hop in self.hops if hop.id == reply.attempt_id)
                self._obey_attempt(hop, reply)
            case _:
                assert_never(reply)

    def _obey_delivery(
        self, reply: step.RespondLocally | step.ForwardResponse | step.ForwardBody | step.ResetDelivery
    ) -> None:
        client = self.client
        if client.left or client.cut:
            return  # the stream is gone; Envoy hears nothing of it
        assert not client.over, f"{reply} after the client's side was over"
        match reply:
            case step.RespondLocally():
                assert client.status is None, "an error in place of headers that have left"
                client.error = reply.error
                self._end_delivery(LogCause.SIDECAR)
            case step.ForwardResponse():
                assert self.released is not None
                assert self.released.head is not None
                assert client.status is None, "two sets of headers"
                client.status, client.attempts = self.released.head.status, reply.attempts
                if self.released.head.end:
                    client.ended = True
                    self._end_delivery(LogCause.COMPLETED)
            case step.ForwardBody():
                assert client.status is not None, "a body reply before the headers reply resets the stream"
                assert self._body_told, "a body reply before any body has come resets the stream"
                assert reply.data or reply.end, "an empty reply"
                client.body += reply.data
                if reply.end:
                    client.ended = True
                    self._end_delivery(LogCause.COMPLETED)
            case step.ResetDelivery():
                client.reset = True
                self._end_delivery(LogCause.OTHER)

    def _obey_attempt(self, hop: Hop, reply: step.AttemptReply) -> None:
        if hop.at is At.OVER:
            return  # its stream is gone
        match reply:
            case step.AskPatience():
                assert hop.at in (At.GATE, At.HELD)
                messages = 1 if hop.at is At.GATE else 1 + len(hop.held)
                hop.patience[hop.at] += 1
                assert hop.patience[hop.at] <= messages, "Envoy extends a message's time once"
            case step.StartAttempt():
                assert hop.at is At.GATE
                earlier = {other.replica for other in self.hops if other is not hop and other.replica}
                if earlier:
                    assert reply.target is not None, "a replay that Envoy's weights would place"
                    assert reply.target.replica not in earlier, "a replica that was tried"
                    assert self.equals is None or reply.target.replica in self.equals, "no ready equal"
                hop.at = At.REPLICA
                hop.replica = self.replicas[0] if reply.target is None else str(reply.target.replica)
            case step.RefuseAttempt():
                assert hop.at in (At.GATE, At.REPLICA, At.LOST)
                # At the gate its id is in no header yet: it is logged without one.
                hop.over(LogCause.SIDECAR, "")
                self.take_failure(hop, status=409, mark=False, refusal=reply.code)
            case step.ReleaseAttempt():
                assert hop.at is At.HELD
                assert hop.head is not None
                assert self.released is None, "two answers for one client"
                hop.at = At.PASSING
                self.released = hop
                self.tell(DELIVERY, hop.head)
                self.tell(hop.source, AttemptClosed(hop.id))
                if hop.head.end:
                    hop.over(LogCause.COMPLETED, "via_upstream")
                held, hop.held = hop.held, []
                for data, end in held[: hop.passes]:
                    hop.pass_on(data, end)
                if hop.passes is not None:
                    hop.over(LogCause.UPSTREAM_RESET, "upstream_reset")
            case step.PassLocalReply():
                assert hop.at is At.LOST
                hop.over(hop.cause, "upstream_reset")
                self.take_failure(hop, status=502, mark=True, lost=hop.cause)
            case step.FailOver():
                assert hop.at in (At.REPLICA, At.LOST, At.HELD)
                hop.over(LogCause.SIDECAR, f"envoy_ext_{reply.outcome}")
                self.take_failure(hop, status=503, mark=True)
            case step.WithholdAnswer():
                assert hop.at is At.HELD
                hop.over(LogCause.SIDECAR, f"envoy_ext_{reply.code}")
                self.take_failure(hop, status=503, mark=False, refusal=reply.code)
            case _:
                assert_never(reply)
