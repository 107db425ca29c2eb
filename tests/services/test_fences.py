"""Who is looked at while a replay waits, and what comes of it."""

import asyncio
from collections.abc import Callable

import pytest

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.domain import places, silent_loss, step
from envoy_ext.domain.discovery import MemberChanges
from envoy_ext.domain.events import AttemptUnanswered, DeliveryClosed, LogCause
from envoy_ext.domain.exchange_shared import ExchangePolicy
from envoy_ext.domain.fleet_events import Scraped
from envoy_ext.domain.ids import AttemptId, FencingToken, ReplicaId
from envoy_ext.domain.notes import AttemptFinished, AttemptProved, FenceAwaited
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.domain.sample import Sample
from envoy_ext.domain.silent_loss import Confirmation
from envoy_ext.ports import Connection, Reach
from envoy_ext.services import fences
from envoy_ext.services.live_exchange import LiveExchange
from tests.support.members import member
from tests.support.sidecar import DELTA, POOL, Sent, Sidecar, play_until_delta

FENCE_S = 60.0
"""Longer than any test waits: what starts here has a proof."""

AT = "10.0.0.1:8000"
"""Where every attempt here goes, by Envoy's word."""


class FakeProbe:
    """Answers from a list, its last word for ever."""

    def __init__(self, *answers: Reach) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.refusing: set[str] = set()

    async def look(self, address: str) -> Reach:
        self.asked.append(address)
        if address in self.refusing:
            return Reach.REFUSED
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "LOOK_EVERY_S", 0.02)


async def start_first(sidecar: Sidecar) -> tuple[LiveExchange, AttemptId]:
    """A request whose first attempt is let go."""
    client = Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(), client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    joined = sidecar.exchanges.join(forward.exchange_id, Sent())
    assert joined is not None
    sidecar.exchanges.arrive_attempt(*joined)
    await sidecar.settle()
    return joined


def ask_again(sidecar: Sidecar, live: LiveExchange) -> Sent:
    """A second attempt that asks to start; its hop."""
    second = Sent()
    again = sidecar.exchanges.join(live.exchange.identity.exchange_id, second)
    assert again is not None
    sidecar.exchanges.arrive_attempt(*again)
    return second


async def lose_the_network(sidecar: Sidecar) -> tuple[LiveExchange, Sent]:
    """One attempt whose network is cut, and a second one that asks to start, with its hop."""
    live, attempt_id = await start_first(sidecar)
    lost = AttemptUnanswered(attempt_id, LogCause.UPSTREAM_TIMEOUT, ReplicaId("a"), "cut", AT)
    sidecar.reports.tell_loss(live, lost)
    return live, ask_again(sidecar, live)


async def lose_a_connection(sidecar: Sidecar, silent_s: float) -> tuple[LiveExchange, Sent]:
    """One attempt that is lost before it answered, and a second one that asks to start, with its hop."""
    live, attempt_id = await start_first(sidecar)
    await asyncio.sleep(silent_s)
    lost = AttemptUnanswered(attempt_id, LogCause.UPSTREAM_RESET, ReplicaId("a"), "reset", AT)
    sidecar.reports.tell_loss(live, lost)
    await sidecar.settle()
    return live, ask_again(sidecar, live)


def build_sidecar(
    probe: FakeProbe, url: str = "http://10.0.0.1:8000", kernel: "Kernel | None" = None
) -> Sidecar:
    failover = FailoverPolicy(fence_s=FENCE_S, max_replay_delay_s=2 * FENCE_S)
    sidecar = Sidecar(ExchangePolicy(failover, settle_s=0.05), probe=probe, connections=kernel)
    sidecar.fleet.change_members(POOL, MemberChanges(changed=(member("a", 1, url=url),)))
    return sidecar


async def test_a_replica_whose_port_refuses_is_dead_and_its_replay_starts() -> None:
    probe = FakeProbe(Reach.REFUSED)
    _, hop = await lose_the_network(build_sidecar(probe))
    await wait_for(lambda: any(isinstance(reply, step.StartAttempt) for reply in hop.replies))
    assert probe.asked == [AT]


async def test_it_is_looked_at_again_while_the_replay_waits() -> None:
    probe = FakeProbe(Reach.SILENT, Reach.ACCEPTED, Reach.REFUSED)
    _, hop = await lose_the_network(build_sidecar(probe))
    await wait_for(lambda: any(isinstance(reply, step.StartAttempt) for reply in hop.replies))
    assert len(probe.asked) == 3


async def test_silence_proves_nothing_and_nobody_looks_when_nobody_waits() -> None:
    probe = FakeProbe(Reach.SILENT)
    sidecar = build_sidecar(probe)
    live, hop = await lose_the_network(sidecar)
    await wait_for(lambda: len(probe.asked) > 3)
    assert not any(isinstance(reply, step.StartAttempt) for reply in hop.replies)
    live.receive(DeliveryClosed())
    await sidecar.settle()
    asked = len(probe.asked)
    await asyncio.sleep(0.1)
    assert len(probe.asked) == asked


async def test_behind_a_host_name_the_very_address_is_asked_that_the_attempt_went_to() -> None:
    probe = FakeProbe(Reach.SILENT, Reach.REFUSED)
    _, hop = await lose_the_network(build_sidecar(probe, url="http://replica-a:8000"))
    await wait_for(lambda: any(isinstance(reply, step.StartAttempt) for reply in hop.replies))
    assert set(probe.asked) == {AT}


async def test_a_pod_that_came_under_the_name_of_one_that_was_cut_off_is_not_asked_in_its_place() -> None:
    """It starts elsewhere and refuses, while the one before it may compute on behind the cut."""
    probe = FakeProbe(Reach.SILENT)
    sidecar = build_sidecar(probe)
    live, hop = await lose_the_network(sidecar)
    sidecar.fleet.change_members(POOL, MemberChanges(replaced=(member("a", 9, identity="other"),)))
    probe.refusing.add("10.0.0.9:8000")
    await wait_for(lambda: len(probe.asked) > 3)
    assert set(probe.asked) == {AT}
    assert not any(isinstance(reply, step.StartAttempt) for reply in hop.replies)
    live.receive(DeliveryClosed())
    await sidecar.settle()


@pytest.mark.parametrize("loss", [LogCause.UPSTREAM_RESET, LogCause.UPSTREAM_TIMEOUT])
@pytest.mark.parametrize(
    "changes",
    [
        MemberChanges(removed=(ReplicaId("a"),), added=(member("c", 1, identity="other"),)),
        MemberChanges(replaced=(member("a", 1, identity="other"),)),
    ],
)
async def test_a_refusal_at_an_address_that_has_gone_to_another_pod_proves_nothing(
    loss: LogCause, changes: MemberChanges
) -> None:
    sidecar = build_sidecar(FakeProbe(Reach.REFUSED))
    live, attempt_id = await start_first(sidecar)
    sidecar.fleet.change_members(POOL, changes)
    sidecar.reports.tell_loss(live, AttemptUnanswered(attempt_id, loss, ReplicaId("a"), "lost", AT))
    await sidecar.settle()
    hop = ask_again(sidecar, live)
    await wait_for(lambda: any(isinstance(note, FenceAwaited) for note in sidecar.watcher.notes))
    await asyncio.sleep(0.1)
    assert not any(isinstance(reply, step.StartAttempt) for reply in hop.replies)
    (lost,) = [note for note in sidecar.watcher.notes if isinstance(note, AttemptFinished)]
    assert lost.outcome is AttemptOutcome.NETWORK_PARTITION
    live.receive(DeliveryClosed())
    await sidecar.settle()


@pytest.mark.parametrize("before", ["before the loss", "while it is waited for"])
async def test_a_page_of_a_process_that_started_later_proves_the_death_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Its port accepts again, so no connection would tell."""
    monkeypatch.setattr(places, "CONNECT_S", 0.0)
    sidecar, clock = build_sidecar(FakeProbe(Reach.SILENT, Reach.ACCEPTED)), SystemClock()
    live, attempt_id = await start_first(sidecar)

    def show(started_at: float) -> None:
        sidecar.fleet.receive(ReplicaId("a"), Scraped(Sample(clock.now(), process_started_at=started_at)))

    show(1000.0)
    if before == "before the loss":
        show(1090.0)
    lost = AttemptUnanswered(attempt_id, LogCause.UPSTREAM_TIMEOUT, ReplicaId("a"), "cut", AT)
    sidecar.reports.tell_loss(live, lost)
    hop = ask_again(sidecar, live)
    await wait_for(lambda: any(isinstance(note, FenceAwaited) for note in sidecar.watcher.notes))
    if before != "before the loss":
        await asyncio.sleep(0.1)
        assert not any(isinstance(reply, step.StartAttempt) for reply in hop.replies)
        show(1090.0)
    await wait_for(lambda: any(isinstance(reply, step.StartAttempt) for reply in hop.replies))


async def test_a_connection_that_was_lost_is_looked_behind_before_it_is_told_of() -> None:
    """Refused: dead, and fenced, even where a worker had renewed. Accepted: let go. Silent: not known."""
    outcomes = {}
    for reach in Reach:
        probe = FakeProbe(reach)
        sidecar = build_sidecar(probe)
        played = await play_until_delta(sidecar)
        assert played.live.exchange.renew(played.attempt_id, FencingToken(1), 0.0)
        sidecar.reports.log_attempt(played.attempt_id, LogCause.UPSTREAM_RESET, AT, len(DELTA), "reset")
        played.delivery.receive(DeliveryClosed())
        operation = await sidecar.operation()
        outcomes[reach] = operation.attempts[0].outcome
        assert probe.asked == [AT]
    assert outcomes == {
        Reach.REFUSED: AttemptOutcome.REPLICA_DIED,
        Reach.ACCEPTED: AttemptOutcome.REPLICA_DIED,
        Reach.SILENT: AttemptOutcome.NETWORK_PARTITION,
    }


async def test_a_port_that_accepts_behind_a_long_silence_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut network that has healed: this side gave the connection up, and the replica computes on."""
    monkeypatch.setattr(silent_loss, "GIVEN_UP_S", silent_loss.LATE_S + 0.05)
    sidecar = build_sidecar(FakeProbe(Reach.ACCEPTED))
    live, hop = await lose_a_connection(sidecar, silent_s=0.1)
    await wait_for(lambda: any(isinstance(note, FenceAwaited) for note in sidecar.watcher.notes))
    assert not any(isinstance(reply, step.StartAttempt) for reply in hop.replies)
    (lost,) = [note for note in sidecar.watcher.notes if isinstance(note, AttemptFinished)]
    assert lost.outcome is AttemptOutcome.NETWORK_PARTITION
    live.receive(DeliveryClosed())
    await sidecar.settle()


@pytest.mark.parametrize(("reach", "silent_s"), [(Reach.ACCEPTED, 0.0), (Reach.REFUSED, 0.1)])
async def test_a_replica_that_let_go_or_died_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, reach: Reach, silent_s: float
) -> None:
    monkeypatch.setattr(silent_loss, "GIVEN_UP_S", silent_loss.LATE_S + (0.05 if silent_s else 60.0))
    sidecar = build_sidecar(FakeProbe(reach))
    _, hop = await lose_a_connection(sidecar, silent_s)
    await wait_for(lambda: any(isinstance(reply, step.StartAttempt) for reply in hop.replies))
    assert not any(isinstance(note, FenceAwaited) for note in sidecar.watcher.notes)


@pytest.mark.parametrize("cause", [LogCause.COMPLETED, LogCause.DOWNSTREAM_GONE, LogCause.CONNECT_REFUSED])
async def test_what_needs_no_look_gets_none(cause: LogCause) -> None:
    probe = FakeProbe(Reach.SILENT)
    sidecar = build_sidecar(probe)
    played = await play_until_delta(sidecar)
    sidecar.reports.log_attempt(played.attempt_id, cause, AT, len(DELTA), "")
    await sidecar.settle()
    assert probe.asked == []


async def test_a_refused_connection_fences_an_attempt_whose_worker_had_renewed() -> None:
    """Also behind a host name: the address is the very one that the attempt went to."""
    sidecar = build_sidecar(FakeProbe(Reach.REFUSED), url="http://replica-a:8000")
    live, attempt_id = await start_first(sidecar)
    assert live.exchange.renew(attempt_id, FencingToken(1), SystemClock().now())
    lost = AttemptUnanswered(attempt_id, LogCause.UPSTREAM_RESET, ReplicaId("a"), "reset", AT)
    sidecar.reports.tell_loss(live, lost)
    await sidecar.settle()
    second = ask_again(sidecar, live)
    await wait_for(lambda: any(isinstance(reply, step.StartAttempt) for reply in second.replies))
    assert not any(isinstance(note, FenceAwaited) for note in sidecar.watcher.notes)


TO_A = Connection("10.0.0.9", 40_000, "10.0.0.1", 8000)


class Kernel:
    """Says this of every connection."""

    def __init__(self, told: Confirmation | None) -> None:
        self.told = told
        self.asked: list[Connection] = []

    def read_acked(self, connection: Connection) -> int | None:
        return None

    def read_confirmation(self, connection: Connection) -> Confirmation | None:
        self.asked.append(connection)
        return self.told


NOT_CONFIRMED = Confirmation(silent_s=60.0, unconfirmed=1, resends=9, probes=0)


async def look(sidecar: Sidecar, kernel: Kernel, connection: Connection = TO_A) -> Sent:
    """Envoy tells of an attempt that has waited for long; its hop."""
    client, hop = Sent(), Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(), client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    joined = sidecar.exchanges.join(forward.exchange_id, hop)
    assert joined is not None
    sidecar.exchanges.arrive_attempt(*joined)
    await sidecar.settle()
    sidecar.reports.note_attempt_progress(joined[1], 0, connection)
    await sidecar.settle()
    joined[0].receive(DeliveryClosed())
    await sidecar.settle()
    return hop


@pytest.mark.parametrize(
    ("reach", "outcome"),
    [
        (Reach.SILENT, AttemptOutcome.NETWORK_PARTITION),
        (Reach.REFUSED, AttemptOutcome.REPLICA_DIED),
        (Reach.ACCEPTED, None),
    ],
)
async def test_a_replica_that_confirms_nothing_is_lost_unless_somebody_is_there(
    monkeypatch: pytest.MonkeyPatch, reach: Reach, outcome: AttemptOutcome | None
) -> None:
    monkeypatch.setattr(silent_loss, "GIVEN_UP_S", silent_loss.LATE_S)
    probe, kernel = FakeProbe(reach), Kernel(NOT_CONFIRMED)
    sidecar = build_sidecar(probe, kernel=kernel)
    hop = await look(sidecar, kernel)
    failed = [reply.outcome for reply in hop.replies if isinstance(reply, step.FailOver)]
    assert failed == ([] if outcome is None else [outcome])
    assert (kernel.asked, probe.asked) == ([TO_A], [AT])
    proved = any(isinstance(note, AttemptProved) for note in sidecar.watcher.notes)
    assert proved is (reach is Reach.REFUSED)


@pytest.mark.parametrize("told", [None, Confirmation(60.0, 0, 0, 0)])
async def test_where_nothing_is_known_or_all_is_confirmed_nobody_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, told: Confirmation | None
) -> None:
    monkeypatch.setattr(silent_loss, "GIVEN_UP_S", silent_loss.LATE_S)
    probe, kernel = FakeProbe(Reach.SILENT), Kernel(told)
    hop = await look(build_sidecar(probe, kernel=kernel), kernel)
    assert not any(isinstance(reply, step.FailOver) for reply in hop.replies)
    assert (kernel.asked, probe.asked) == ([TO_A], [])


async def test_an_attempt_that_has_no_connection_yet_is_not_asked_about() -> None:
    kernel = Kernel(NOT_CONFIRMED)
    await look(build_sidecar(FakeProbe(Reach.SILENT), kernel=kernel), kernel, Connection("", 0, "", 0))
    assert kernel.asked == []
