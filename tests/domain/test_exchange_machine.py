"""Whatever the five sources tell, in whatever order, lost or twice, an exchange keeps its promises:

1. After the first delta was sent no attempt but its own produces body for the client: one release in
   all, recorded no later than it is sent, and no start behind it. None starts again what has called a
   tool that nobody can answer for.
2. Every exchange reaches one ending before its last deadline; nothing stays in flight behind it.
3. The bytes a client gets are a prefix of the bytes one attempt sent, plus at most one terminal
   event; one last word in all, nothing after it, and never a short answer that looks whole.
"""

from itertools import chain

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envoy_ext.domain import step
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.events import (
    AnsweredHere,
    AttemptArrived,
    AttemptClosed,
    AttemptLogged,
    AttemptProgressed,
    AttemptStopped,
    DeliveryClosed,
    ExchangeLogged,
    ExchangeProgressed,
    JournalFailed,
    LogCause,
    OwnershipLost,
    RequestAdmitted,
    RequestMoved,
    RequestShed,
)
from envoy_ext.domain.ids import FencingToken, OperationId
from envoy_ext.domain.inspection import BodyKind, Inspector, Verdict
from envoy_ext.domain.notes import PhaseChanged
from envoy_ext.domain.outcomes import Ending, RungName
from envoy_ext.domain.records import AttemptStarted, FirstDeltaSent, OperationBegun, OperationEnded
from envoy_ext.domain.tool_calls import CallState
from envoy_ext.domain.tool_verdict import find_obstacle
from tests.support.exchange_builders import (
    JSON,
    SMALL,
    SSE,
    Policy,
    ReqChat,
    abort,
    delta,
    done,
    engine_error,
    finish,
    overloaded,
    ping,
    role,
    usage,
    validation_error,
)
from tests.support.exchange_envoy import ATTEMPT_LOG, EXCHANGE_LOG, At, Envoy
from tests.support.tool_builders import made

TERMINAL = b'data: {"error":{"code":"upstream_decode_interrupted"'
CHUNKS = [
    role(),
    ping(),
    usage(3),
    delta("Hel"),
    delta("lo"),
    delta("half")[:11],
    delta("Hel") + engine_error() + done(),
    finish(),
    finish() + done(),
    done(),
    abort(),
    engine_error(),
    overloaded(),
    validation_error(),
    b"data: {broken\n\n",
    b"data: " + b"x" * 600 + b"\n\n",
    b"\r",
    b"\n",
]
LEDGERS = {
    "nothing": (),
    "done": (made(CallState.RECORDED), made(CallState.NOT_SENT, "other")),
    "twice": (made(CallState.UNKNOWN, idempotent=True),),
    "begun": (made(CallState.BEGUN),),
    "unknown": (made(CallState.RECORDED), made(CallState.UNKNOWN, "other")),
    "not kept": (made(CallState.NOT_KEPT),),
    "unreadable": None,
}
"""What earlier attempts have called."""
FINAL = (step.RespondLocally, step.AnswerHere, step.ResetDelivery)
TO_CLIENT = (step.ForwardResponse, step.ForwardBody, *FINAL)


class ExchangeMachine(RuleBasedStateMachine):
    @initialize(
        deadline_s=st.sampled_from([None, None, 4.0, 30.0]),
        prompt_tokens=st.sampled_from([100, 100, 100, 50_000]),
        max_attempts=st.integers(1, 3),
        replicas=st.integers(1, 3),
        journal_fails_at=st.sampled_from([None, None, None, OperationBegun, AttemptStarted, FirstDeltaSent]),
        journal_failure=st.sampled_from([JournalFailed(), OwnershipLost(refused=True)]),
        queued=st.booleans(),
        ledger=st.sampled_from(["no tools", "no tools", *LEDGERS]),
        repeats=st.booleans(),
    )
    def begin(
        self,
        deadline_s,
        prompt_tokens,
        max_attempts,
        replicas,
        journal_fails_at,
        journal_failure,
        queued,
        ledger,
        repeats,
    ):
        watches = ledger in LEDGERS
        limits = {"max_event_bytes": 500, "client_stall_s": 1.2, "watches_tools": watches}

        self.envoy = Envoy(
            ReqChat(deadline_s=deadline_s, prompt_tokens=prompt_tokens),
            policy=Policy(max_attempts=max_attempts, **limits),
            ledger=LEDGERS.get(ledger, ()),
            ledger_id=OperationId("op_0") if repeats else None,
            replicas=("a", "b", "c")[:replicas],
            manual=True,
            journal_fails_at=journal_fails_at,
            journal_failure=journal_failure,
            queued=queued,
        )
        self.checks_first = watches and repeats
        self.forbidden = watches and find_obstacle(LEDGERS[ledger]) is not None
        self.waits = queued
        self.heard = []
        self.log_lost = False
        self.checked = 0
        self.released = 0
        self.committed = False
        self.starts = 0
        self.begun = self.ended = 0
        self.last_word_said = False
        self.closed_at = None
        self.phase = None

    # --- the sidecar hears ---

    def sources(self):
        return [source for source, queue in self.envoy.queues.items() if queue]

    @precondition(lambda self: self.sources())
    @rule(data=st.data(), times=st.integers(1, 4))
    def hears(self, data, times):
        for _ in range(times):
            if not (sources := self.sources()):
                return
            source = data.draw(st.sampled_from(sources))
            event = self.envoy.queues[source][0]
            if isinstance(event, AttemptLogged | ExchangeLogged):
                self.heard.append(event)
            if isinstance(event, DeliveryClosed):
                self.closed_at = len(self.envoy.produced)
            self.envoy.deliver(source)

    @precondition(lambda self: self.heard)
    @rule(data=st.data())
    def hears_a_log_entry_twice(self, data):
        self.envoy.receive(data.draw(st.sampled_from(self.heard)))

    @precondition(lambda self: any(self.envoy.queues.get(log) for log in (ATTEMPT_LOG, EXCHANGE_LOG)))
    @rule(data=st.data())
    def a_log_entry_is_lost(self, data):
        logs = [log for log in (ATTEMPT_LOG, EXCHANGE_LOG) if self.envoy.queues.get(log)]
        self.envoy.queues[data.draw(st.sampled_from(logs))].popleft()
        self.log_lost = True

    @rule()
    def the_end_of_an_attempts_stream_is_lost(self):
        for queue in self.envoy.queues.values():
            if queue and isinstance(queue[0], AttemptClosed):
                queue.popleft()

    # --- its pool's queue, which tells each request one word ---

    @precondition(lambda self: self.waits)
    @rule()
    def the_queue_lets_it_in(self):
        self.waits = False
        self.envoy.receive(RequestAdmitted())
        self.envoy.pump()

    @precondition(lambda self: self.waits)
    @rule(code=st.sampled_from(["queue_full", "queue_deadline_exceeded", "deadline_exceeded", "draining"]))
    def the_queue_refuses_it(self, code):
        self.waits = False
        self.envoy.receive(RequestShed(code, 2))
        self.envoy.pump()

    # --- its class's ladder, in the place of a refusal ---

    @precondition(lambda self: self.waits)
    @rule()
    def the_ladder_moves_it(self):
        self.waits = False
        facts = ReqChat().facts
        self.envoy.receive(RequestMoved(SMALL, facts, (RungName.POOL,), b"{}"))
        self.envoy.receive(RequestAdmitted())
        self.envoy.pump()

    @precondition(lambda self: self.waits)
    @rule(settled=st.booleans())
    def the_ladder_answers_it(self, settled):
        self.waits = False
        self.settled = settled
        self.envoy.receive(AnsweredHere("text/plain", b"later", (RungName.TEMPLATE,), "queue_full", settled))
        self.envoy.pump()

    # --- the fleet changes ---

    @rule(equals=st.none() | st.sets(st.sampled_from("abc")))
    def other_replicas_are_ready_equals(self, equals):
        """Envoy's double asserts that a replay goes to one of them and to none that was tried."""
        self.envoy.equals = equals

    # --- Envoy, the replicas and the client act ---

    def hop_at(self, *places):
        """The one attempt that a replica works on, if it has come to one of these places."""
        return next((hop for hop in self.envoy.hops if hop.at in places), None)

    @precondition(lambda self: self.hop_at(At.REPLICA))
    @rule(
        status=st.sampled_from([200, 200, 200, 200, 400, 429, 500, 503]),
        kind=st.sampled_from([SSE, SSE, SSE, SSE, JSON]),
        misrouted=st.sampled_from([False, False, False, True]),
        chunks=st.lists(st.sampled_from(CHUNKS), max_size=4),
        end=st.booleans(),
    )
    def a_replica_answers(self, status, kind, misrouted, chunks, end):
        by = None if misrouted else ""
        self.hop_at(At.REPLICA).answers(*chunks, status=status, type=kind, by=by, end=end)

    @precondition(lambda self: self.hop_at(At.HELD, At.PASSING))
    @rule(chunk=st.sampled_from(CHUNKS), cut=st.integers(0, 40))
    def a_replica_sends(self, chunk, cut):
        parts = [part for part in (chunk[:cut], chunk[cut:]) if part]
        self.hop_at(At.HELD, At.PASSING).sends(*parts)

    @precondition(lambda self: self.hop_at(At.HELD, At.PASSING))
    @rule()
    def a_replica_ends(self):
        self.hop_at(At.HELD, At.PASSING).ends()

    @precondition(lambda self: self.hop_at(At.REPLICA, At.HELD, At.PASSING))
    @rule(
        cause=st.sampled_from(
            [LogCause.UPSTREAM_RESET, LogCause.UNREACHABLE, LogCause.UPSTREAM_TIMEOUT, LogCause.OTHER]
        )
    )
    def a_replica_is_lost(self, cause):
        self.hop_at(At.REPLICA, At.HELD, At.PASSING).is_lost(cause)
        self.log_lost |= cause is LogCause.OTHER

    @precondition(lambda self: self.hop_at(At.REPLICA, At.LOST, At.HELD, At.PASSING))
    @rule()
    def a_replica_confirms_nothing(self):
        self.hop_at(At.REPLICA, At.LOST, At.HELD, At.PASSING).confirms_nothing()

    @precondition(lambda self: self.envoy.hops)
    @rule(data=st.data(), token=st.integers(1, 5))
    def a_worker_asks_for_more_time(self, data, token):
        hop = data.draw(st.sampled_from(self.envoy.hops))
        number = self.envoy.hops.index(hop) + 1
        if self.heard_of(hop) and self.envoy.exchange.renew(hop.id, FencingToken(token), self.envoy.now):
            assert token == number
            assert hop is [one for one in self.envoy.hops if self.heard_of(one)][-1]

    @precondition(lambda self: self.envoy.hops)
    @rule(data=st.data(), token=st.integers(1, 5))
    def a_worker_has_stopped(self, data, token):
        hop = data.draw(st.sampled_from(self.envoy.hops))
        if self.heard_of(hop):
            self.envoy.receive(AttemptStopped(hop.id, FencingToken(token)))
            assert not self.envoy.exchange.renew(hop.id, FencingToken(token), self.envoy.now)

    def heard_of(self, hop):
        """Whether the exchange knows the attempt: its worker cannot speak before."""
        return not any(isinstance(event, AttemptArrived) for event in self.envoy.queues.get(hop.source, ()))

    @rule()
    def somebody_retries(self):
        if self.envoy.hops and len(self.envoy.hops) < 5:
            self.envoy.asks_again()

    @precondition(lambda self: self.hop_at(At.HELD, At.PASSING))
    @rule(taken=st.integers(0, 2000), times=st.sampled_from([1, 1, 9]))
    def envoy_looks(self, taken, times):
        hop = self.hop_at(At.HELD, At.PASSING)
        for _ in range(times if self.heard_of(hop) else 0):
            self.envoy.wait(0.2)
            self.envoy.receive(AttemptProgressed(hop.id, hop.passed_bytes))
            self.envoy.receive(ExchangeProgressed(taken))

    @rule()
    def the_client_leaves(self):
        self.envoy.client_leaves()

    @rule()
    def the_sidecar_stops(self):
        self.envoy.drain_expires()

    @rule()
    def another_gateway_takes_it_over(self):
        self.envoy.loses_its_ownership()

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.6, 1.1, 8.0]))
    def time_passes(self, seconds):
        self.envoy.wait(seconds)

    # --- the promises ---

    @invariant()
    def every_step_keeps_the_order(self):
        for taken in self.envoy.produced[self.checked :]:
            closed = self.closed_at is not None and self.checked >= self.closed_at
            self.checked += 1
            for record in taken.records:
                self.begun += isinstance(record, OperationBegun)
                self.ended += isinstance(record, OperationEnded)
                if isinstance(record, FirstDeltaSent):
                    assert not self.committed
                    self.committed = True
            for reply in taken.replies:
                if isinstance(reply, step.ForwardRequest):
                    assert not self.waits, "a request went on that waits for its slot"
                    assert not closed, "a request of a client that has gone went on"
                if isinstance(reply, step.StartAttempt):
                    assert not self.committed, "a start behind the first delta"
                    again = self.starts > 0 or self.checks_first
                    assert not (again and self.forbidden), "a start that the tool ledger forbids"
                    assert self.released == 0, "a start behind a release"
                    self.starts += 1
                if isinstance(reply, step.ReleaseAttempt):
                    self.released += 1
                if isinstance(reply, TO_CLIENT):
                    assert not closed, f"{reply} behind the end of the stream"
                    assert not self.last_word_said, f"{reply} behind the last word"
                    self.last_word_said = isinstance(reply, FINAL) or getattr(reply, "end", False)
            for note in taken.notes:
                if isinstance(note, PhaseChanged):
                    assert note.before is self.phase
                    self.phase = note.after
        assert self.begun == 1
        assert self.ended == (self.envoy.exchange.resolution is not None)
        assert self.released <= 1
        assert self.starts <= self.envoy.policy.failover.max_attempts

    @invariant()
    def the_client_gets_the_bytes_of_one_attempt(self):
        client = self.envoy.client
        body, mark, event = bytes(client.body).partition(TERMINAL)
        if mark:
            assert client.ended
            assert event.count(b"\n\n") == 1
            assert event.endswith(b"}}\n\n")
            assert body == b"" or body.endswith((b"\n", b"\r"))
        released = self.envoy.released
        if body:
            assert released is not None
            assert bytes(released.sent).startswith(body)

    def teardown(self):
        if not hasattr(self, "envoy"):
            return
        envoy = self.envoy
        if self.waits:
            self.the_queue_refuses_it("queue_deadline_exceeded")
        self.let_everything_be_heard()
        while (hop := self.hop_at(At.REPLICA, At.HELD, At.PASSING)) is not None:
            hop.is_lost()
            self.let_everything_be_heard()
        if not self.log_lost:
            assert envoy.client.over, "a client that waits for nothing"
        envoy.closes_broken_connection()
        self.let_everything_be_heard()
        envoy.wait(envoy.policy.settle_s)
        assert envoy.exchange.next_deadline() is None
        assert envoy.exchange.finished
        self.every_step_keeps_the_order()
        self.the_client_gets_the_bytes_of_one_attempt()
        assert self.ended == 1
        assert self.phase is None
        self.the_ending_is_true()

    def let_everything_be_heard(self):
        envoy = self.envoy
        for _ in range(6):  # a fence, a grace, a retry and what they bring about
            while sources := self.sources():
                envoy.deliver(sources[0])
            envoy.wait(8.0)

    def the_ending_is_true(self):
        envoy, client = self.envoy, self.envoy.client
        end = envoy.exchange.resolution.ending
        records = list(chain.from_iterable(taken.records for taken in envoy.produced))
        if client.own_answer is not None:
            assert self.starts == 0
            assert end is (Ending.FINISHED if self.settled else Ending.REFUSED)
            return
        if self.starts == 0 and not client.left:
            assert end in (Ending.REFUSED, Ending.UPSTREAM_BROKE, Ending.UNKNOWN)
        if client.status == 200 and envoy.released.head.content_type == SSE:
            inspector = Inspector(ApiFamily.CHAT, BodyKind.SSE, 500)
            inspector.feed(bytes(client.body))
            verdict = inspector.verdict_at_eof()
            if client.ended:
                assert verdict is not Verdict.TRUNCATED, "a short answer that looks whole"
            if end is Ending.FINISHED and any(isinstance(record, FirstDeltaSent) for record in records):
                assert verdict is Verdict.COMPLETE
            if verdict is Verdict.COMPLETE and client.ended:
                assert end is Ending.FINISHED
        if client.error is not None:
            assert end in (Ending.UPSTREAM_BROKE, Ending.REFUSED)


ExchangeMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestExchange = ExchangeMachine.TestCase
