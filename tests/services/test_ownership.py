"""Two gateways at one journal: what each does when the other has its key, or has found it gone."""

from collections.abc import Callable
from functools import partial

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import step
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import SeatLost
from envoy_ext.domain.events import AttemptAnswered, AttemptBody, ResponseBody
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, ReplicaId, SeatId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import Ending, Reason
from envoy_ext.domain.records import FirstDeltaSent, OperationBegun, OperationEnded
from envoy_ext.services.authz import CheckRequest
from envoy_ext.services.leases import LeaseAnswer, Leases
from tests.support.callers import build_head
from tests.support.clock import ManualClock
from tests.support.journals import leave
from tests.support.records import START
from tests.support.sidecar import DELTA, REST, SSE, Sent, Sidecar, play_until_delta

POLICY = LeasePolicy()


class Pair:
    """Two gateways that share a journal in memory."""

    def __init__(self) -> None:
        self.journal = MemoryJournal(exclusive=False)
        self.clock = ManualClock()
        self.a = Sidecar(journal=self.journal, clock=self.clock, name="a")
        self.b = Sidecar(journal=self.journal, name="b")

    def let_doubt_begin(self) -> None:
        """The first has not been able to beat for too long."""
        self.clock.advance(POLICY.ttl_s)

    async def find_gone(self, gateway: Sidecar) -> None:
        """The other one has watched it for long enough."""
        await leave(self.journal, gateway.keeper.seat)

    async def take_over(self, operation: Operation) -> Operation:
        """The second takes over what the first has begun."""
        await self.find_gone(self.a)
        return await self.journal.take_over(
            operation.operation_id, operation.token, self.b.keeper.seat, START
        )


def error_of(sent: Sent) -> step.RespondLocally:
    (reply,) = [reply for reply in sent.replies if isinstance(reply, step.RespondLocally)]
    return reply


async def ask(sidecar: Sidecar, key: str | None = None) -> Sent:
    client = Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(key=key), client)
    await sidecar.settle()
    return client


async def start_attempt(sidecar: Sidecar, client: Sent) -> tuple[Sent, Callable[[object], None], str]:
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    hop = Sent()
    joined = sidecar.exchanges.join(forward.exchange_id, hop)
    assert joined is not None
    live, attempt_id = joined
    sidecar.exchanges.arrive_attempt(live, attempt_id)
    await sidecar.settle()
    return hop, live.receive, attempt_id


# --- keys -----------------------------------------------------------------------------------


async def test_a_key_that_runs_at_the_other_gateway_is_in_progress() -> None:
    pair = Pair()
    await ask(pair.a, key="k")
    error = error_of(await ask(pair.b, key="k")).error
    assert error.code == "operation_in_progress"
    assert error.retry_after_s is not None
    (operation,) = await pair.journal.list_recent(10)
    assert error.operation_id == operation.operation_id


async def test_of_two_gateways_that_find_no_such_key_at_once_one_begins_it() -> None:
    class LooksAtOnce(MemoryJournal):
        async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
            return None

    journal = LooksAtOnce(exclusive=False)
    a, b = Sidecar(journal=journal, name="a"), Sidecar(journal=journal, name="b")
    first, second = await ask(a, key="k"), await ask(b, key="k")
    assert isinstance(first.replies[0], step.ForwardRequest)
    (operation,) = await journal.list_recent(10)
    error = error_of(second).error
    assert (error.code, error.operation_id) == ("operation_in_progress", operation.operation_id)
    assert len([one for one in journal.records if isinstance(one, OperationBegun)]) == 1
    # The key is free at that gateway for the next who asks.
    assert error_of(await ask(b, key="k")).error.code == "operation_in_progress"
    assert b.watcher.bugs == []


async def test_a_key_whose_operation_may_run_again_runs_once_more() -> None:
    pair = Pair()
    client = await ask(pair.a, key="k")
    hop, _, _ = await start_attempt(pair.a, client)
    assert isinstance(hop.replies[-1], step.StartAttempt)
    pair.a.exchanges.end_all()
    await pair.a.settle()
    assert isinstance((await ask(pair.b, key="k")).replies[0], step.ForwardRequest)
    newest, oldest = await pair.journal.list_recent(10)
    assert (oldest.ending, newest.ending) == (Ending.UPSTREAM_BROKE, None)


# --- what was taken over --------------------------------------------------------------------


async def test_no_attempt_starts_of_what_another_gateway_has_taken_over() -> None:
    pair = Pair()
    client = await ask(pair.a, key="k")
    (operation,) = await pair.journal.list_recent(1)
    forward = client.replies.pop()
    taken = await pair.take_over(operation)
    client.replies.append(forward)
    hop, _, _ = await start_attempt(pair.a, client)
    assert [type(reply) for reply in hop.replies] == [step.RefuseAttempt]
    assert error_of(client).error.reason is Reason.TAKEN_OVER
    assert await pair.journal.get(operation.operation_id) == taken
    assert pair.a.watcher.bugs == []


async def test_no_first_delta_leaves_of_what_another_gateway_has_taken_over() -> None:
    pair = Pair()
    client = await ask(pair.a, key="k")
    hop, receive, attempt_id = await start_attempt(pair.a, client)
    (operation,) = await pair.journal.list_recent(1)
    taken = await pair.take_over(operation)
    receive(AttemptAnswered(attempt_id, 200, SSE, "", ReplicaId("a"), end=False))
    receive(AttemptBody(attempt_id, DELTA, end=False))
    await pair.a.settle()
    assert isinstance(hop.replies[-1], step.WithholdAnswer)
    assert error_of(client).error.reason is Reason.TAKEN_OVER
    assert not any(isinstance(record, FirstDeltaSent) for record in pair.journal.records)
    assert await pair.journal.get(operation.operation_id) == taken
    assert pair.a.watcher.bugs == []


async def test_an_end_that_nobody_wants_to_know_is_not_owed() -> None:
    pair = Pair()
    played = await play_until_delta(pair.a)
    operation = await pair.a.operation()
    taken = await pair.take_over(operation)
    played.delivery.receive(ResponseBody(REST, end=True))
    await pair.a.settle()
    assert any(isinstance(reply, step.ForwardBody) and reply.end for reply in played.client.replies)
    assert not any(isinstance(record, OperationEnded) for record in pair.journal.records)
    assert await pair.journal.get(operation.operation_id) == taken


async def test_a_gateway_that_learns_of_it_ends_every_stream_of_the_seat_it_lost() -> None:
    pair = Pair()
    played = await play_until_delta(pair.a)
    waiting = await ask(pair.a)
    old = pair.a.keeper.seat
    await pair.find_gone(pair.a)
    pair.clock.advance(POLICY.renew_s)
    await pair.a.keeper.beat()
    await pair.a.settle()
    assert pair.a.keeper.seat != old
    assert error_of(waiting).error.reason is Reason.TAKEN_OVER
    last = played.client.replies[-1]
    assert isinstance(last, step.ForwardBody)
    assert (last.end, b'"reason":"taken_over"' in last.data) == (True, True)
    # With its new seat it serves.
    again = await play_until_delta(pair.a)
    assert isinstance(again.attempt.replies[-1], step.ReleaseAttempt)


# --- a gateway in doubt ---------------------------------------------------------------------


async def test_a_gateway_in_doubt_takes_no_requests_and_says_so() -> None:
    pair = Pair()
    pair.let_doubt_begin()
    for key in (None, "k"):
        error = error_of(await ask(pair.a, key)).error
        assert (error.code, error.http_status) == ("upstream_unavailable", 503)
        assert error.retry_after_s is not None
    denied = await pair.a.authz.check(CheckRequest(build_head()))
    assert isinstance(denied, ClientError)
    assert denied.code == "upstream_unavailable"
    assert await pair.journal.list_recent(10) == []


async def test_a_gateway_in_doubt_starts_no_attempt() -> None:
    pair = Pair()
    client = await ask(pair.a)
    pair.let_doubt_begin()
    hop, _, _ = await start_attempt(pair.a, client)
    assert [type(reply) for reply in hop.replies] == [step.RefuseAttempt]


async def test_a_gateway_in_doubt_goes_on_with_a_stream_that_nobody_has_taken() -> None:
    pair = Pair()
    played = await play_until_delta(pair.a)
    pair.let_doubt_begin()
    played.delivery.receive(ResponseBody(REST, end=True))
    await pair.a.settle()
    assert (await pair.a.operation()).ending is Ending.FINISHED


async def test_a_gateway_in_doubt_gives_no_time_to_what_could_run_again_and_refuses_none_for_good() -> None:
    pair = Pair()
    client = await ask(pair.a, key="k")
    _, receive, attempt_id = await start_attempt(pair.a, client)
    leases = Leases(pair.a.exchanges, pair.a.fleet.streams, pair.clock)
    (operation,) = await pair.journal.list_recent(1)
    renew = partial(leases.renew, operation.operation_id, AttemptId(attempt_id), FencingToken(1))
    pair.let_doubt_begin()
    assert renew() is LeaseAnswer.NOT_NOW
    await pair.a.keeper.beat()
    assert renew() is LeaseAnswer.GRANTED
    receive(AttemptAnswered(attempt_id, 200, SSE, "", ReplicaId("a"), end=False))
    receive(AttemptBody(attempt_id, DELTA, end=False))
    await pair.a.settle()
    pair.let_doubt_begin()
    assert renew() is LeaseAnswer.GRANTED, "no key runs again of which a first delta was recorded"


async def test_a_gateway_in_doubt_gives_time_to_what_nobody_runs_again() -> None:
    """Its stream goes on too, and without that it would be cut."""
    pair = Pair()
    played = await play_until_delta(pair.a)
    leases = Leases(pair.a.exchanges, pair.a.fleet.streams, pair.clock)
    operation_id = played.live.exchange.identity.operation_id
    pair.let_doubt_begin()
    assert leases.renew(operation_id, played.attempt_id, FencingToken(1)) is LeaseAnswer.GRANTED
    await pair.find_gone(pair.a)
    await pair.a.keeper.beat()
    assert leases.renew(operation_id, played.attempt_id, FencingToken(1)) is not LeaseAnswer.GRANTED


async def test_a_gateway_with_another_seat_grants_no_lease_of_the_one_before() -> None:
    pair = Pair()
    played = await play_until_delta(pair.a)
    leases = Leases(pair.a.exchanges, pair.a.fleet.streams, pair.clock)
    await pair.find_gone(pair.a)
    await pair.a.keeper.take()
    assert pair.a.keeper.may_act
    operation_id = played.live.exchange.identity.operation_id
    assert leases.renew(operation_id, played.attempt_id, 1) is LeaseAnswer.NOT_NOW


async def test_an_operation_that_begins_in_a_seat_just_lost_does_not_run() -> None:
    class LosesSeats(MemoryJournal):
        async def begin(
            self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
        ) -> Operation | None:
            raise SeatLost("removed while it was on its way")

    sidecar = Sidecar(journal=LosesSeats(exclusive=False))
    error = error_of(await ask(sidecar)).error
    assert (error.code, error.reason) == ("upstream_unavailable", Reason.TAKEN_OVER)
    assert sidecar.watcher.bugs == []
