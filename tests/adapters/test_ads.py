"""The hub brings every stream to what was published last: once for each turn of the loop, and each alone."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from envoy_ext.adapters.ads import DIALECTS, AdsHub, AdsSession
from envoy_ext.xds.dialects import DELTA, MOST_NAMES, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.session import Nacked, Note, NotServed, Pushed
from envoy_ext.xds.snapshot import build_snapshot
from tests.xds.builders import cluster, clusters_with_endpoints, endpoints_alone

either = pytest.mark.parametrize("dialect", DIALECTS)


class ListOutbox:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.aborted = False

    def send(self, response: Any) -> None:
        assert not self.aborted
        self.sent.append(response)

    def finish(self) -> None:
        raise AssertionError("a stream of resources never ends by itself")

    def abort(self) -> None:
        self.aborted = True


class Lab:
    """A hub and what it reported."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.bugs: list[tuple[str, BaseException]] = []
        self.hub = AdsHub(self.notes.append, lambda where, error: self.bugs.append((where, error)))

    def open(self, dialect: Dialect, *names: str) -> tuple[AdsSession, ListOutbox]:
        """A stream that asks for endpoints."""
        outbox = ListOutbox()
        session = AdsSession(self.hub, outbox, dialect)
        session.receive(ask(dialect, *names))
        return session, outbox


def ask(dialect: Dialect, *names: str, nonce: str = "") -> Any:
    fields: dict[str, Any] = {"type_url": Kind.EDS.type_url, "response_nonce": nonce}
    fields["resource_names" if dialect is STATE_OF_THE_WORLD else "resource_names_subscribe"] = names
    request = dialect.request(**fields)
    request.node.id = "edge"
    return request


def acknowledge(dialect: Dialect, session: AdsSession, response: Any, *names: str) -> None:
    session.receive(ask(dialect, *(names if dialect is STATE_OF_THE_WORLD else ()), nonce=response.nonce))


async def a_turn_of_the_loop() -> None:
    await asyncio.sleep(0)


@either
async def test_a_stream_is_answered_and_kept_up_to_date(dialect: Dialect) -> None:
    lab = Lab()
    lab.hub.publish(endpoints_alone(a=1))
    session, outbox = lab.open(dialect, "pool_a")
    assert len(outbox.sent) == 1
    acknowledge(dialect, session, outbox.sent[0], "pool_a")
    lab.hub.publish(endpoints_alone(a=2))
    assert len(outbox.sent) == 1
    await a_turn_of_the_loop()
    assert len(outbox.sent) == 2


@either
async def test_streams_that_came_first_wait_for_the_first_publication(dialect: Dialect) -> None:
    lab = Lab()
    _, outbox = lab.open(dialect, "pool_a")
    assert outbox.sent == []
    lab.hub.publish(endpoints_alone(a=1))
    await a_turn_of_the_loop()
    assert len(outbox.sent) == 1


@either
async def test_publications_of_one_turn_are_one_push(dialect: Dialect) -> None:
    lab = Lab()
    session, outbox = lab.open(dialect, "pool_a")
    for number in range(1, 20):
        lab.hub.publish(endpoints_alone(a=number))
    await a_turn_of_the_loop()
    assert len(outbox.sent) == 1
    acknowledge(dialect, session, outbox.sent[0], "pool_a")
    assert session.is_settled, "with the newest"


async def test_an_unchanged_publication_pushes_nothing() -> None:
    lab = Lab()
    lab.hub.publish(endpoints_alone(a=1))
    lab.open(DELTA, "pool_a")
    for _ in range(100):
        lab.hub.publish(endpoints_alone(a=1))
        await a_turn_of_the_loop()
    assert lab.hub.statistics().pushes[Kind.EDS] == 1


async def test_a_snapshot_that_does_not_fit_together_is_refused_and_the_last_one_stays() -> None:
    lab = Lab()
    good = clusters_with_endpoints(a=(1, 1))
    lab.hub.publish(good)
    with pytest.raises(ValueError, match="pool_a is named by cds, not there"):
        lab.hub.publish(build_snapshot({Kind.CDS: [cluster("a")], Kind.EDS: []}))
    assert lab.hub.snapshot is good


async def test_fifty_streams_get_their_own_and_leave() -> None:
    lab = Lab()
    pools = {f"p{number}": 1 for number in range(10)}
    lab.hub.publish(endpoints_alone(**pools))
    streams = []
    for number in range(50):
        dialect, name = DIALECTS[number % 2], f"pool_p{number % 10}"
        streams.append((dialect, name, *lab.open(dialect, name)))
    for dialect, name, session, outbox in streams:
        acknowledge(dialect, session, outbox.sent[-1], name)
    assert lab.hub.statistics().settled == 50
    lab.hub.publish(endpoints_alone(**{**pools, "p3": 2}))
    await a_turn_of_the_loop()
    assert Counter(len(outbox.sent) for *_, outbox in streams) == {1: 45, 2: 5}
    statistics = lab.hub.statistics()
    assert (statistics.streams, statistics.settled, statistics.nodes) == (50, 45, ("edge",))
    for *_, session, _ in streams:
        session.closed()
    assert lab.hub.statistics().streams == 0


async def test_a_bug_in_one_stream_ends_that_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    broken, broken_outbox = lab.open(DELTA, "pool_a")
    _, outbox = lab.open(DELTA, "pool_a")
    monkeypatch.setattr(broken, "_session", None)
    lab.hub.publish(endpoints_alone(a=1))
    await a_turn_of_the_loop()
    assert len(outbox.sent) == 1
    assert broken_outbox.aborted
    assert [where for where, _ in lab.bugs] == ["xds push"]
    assert lab.hub.statistics().streams == 1
    broken.closed()


@either
async def test_a_request_that_asks_for_nothing_ends_the_stream(dialect: Dialect) -> None:
    lab = Lab()
    session, outbox = lab.open(dialect, "pool_a")
    session.receive(dialect.request())
    assert outbox.aborted
    assert lab.notes == [NotServed("", "a request on an aggregated stream has no type_url")]
    assert lab.bugs == []


@either
async def test_a_client_that_asks_for_too_much_loses_its_stream_and_nobody_else_anything(
    dialect: Dialect,
) -> None:
    lab = Lab()
    lab.hub.publish(endpoints_alone(a=1))
    _, other = lab.open(dialect, "pool_a")
    _, outbox = lab.open(dialect, *(f"pool_{number}" for number in range(MOST_NAMES + 1)))
    assert outbox.aborted
    assert outbox.sent == []
    assert lab.notes[-1] == NotServed(
        Kind.EDS.type_url, f"more than {MOST_NAMES} names of one kind on a stream"
    )
    assert lab.bugs == []
    assert lab.hub.statistics().streams == 1
    assert len(other.sent) == 1


@either
async def test_pushes_and_refusals_are_counted_and_reported(dialect: Dialect) -> None:
    lab = Lab()
    lab.hub.publish(endpoints_alone(a=1))
    session, outbox = lab.open(dialect, "pool_a")
    refusal = ask(dialect, *(["pool_a"] if dialect is STATE_OF_THE_WORLD else []), nonce=outbox.sent[0].nonce)
    refusal.error_detail.message = "no"
    for _ in range(10):
        session.receive(refusal)
    assert lab.notes == [Pushed(Kind.EDS, 1, 0), Nacked(Kind.EDS, "no")]
    statistics = lab.hub.statistics()
    assert (statistics.pushes[Kind.EDS], statistics.refusals[Kind.EDS], statistics.settled) == (1, 1, 0)


async def test_a_push_that_was_planned_reaches_no_stream_that_left() -> None:
    lab = Lab()
    session, outbox = lab.open(DELTA, "pool_a")
    lab.hub.publish(endpoints_alone(a=1))
    session.closed()
    await a_turn_of_the_loop()
    assert outbox.sent == []


@either
async def test_whoever_waits_for_an_envoy_hears_when_one_took_what_is_offered(dialect: Dialect) -> None:
    lab = Lab()
    lab.hub.publish(endpoints_alone(a=1))
    session, outbox = lab.open(dialect, "pool_a")
    waiting = asyncio.create_task(lab.hub.wait_taken(Kind.EDS))
    await a_turn_of_the_loop()
    assert not waiting.done(), "it was sent, and nobody said that it was taken"
    acknowledge(dialect, session, outbox.sent[0], "pool_a")
    await waiting

    lab.hub.publish(endpoints_alone(a=2))
    waiting = asyncio.create_task(lab.hub.wait_taken(Kind.EDS))
    for _ in range(3):
        await a_turn_of_the_loop()
    assert not waiting.done(), "what was offered before does not count"
    acknowledge(dialect, session, outbox.sent[1], "pool_a")
    await waiting
