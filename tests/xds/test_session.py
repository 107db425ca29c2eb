"""A session says what the protocol asks of it, once, in order, and in the same way in both protocols."""

from typing import Any

import pytest
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment

from envoy_ext.domain.errors import PeerViolation
from envoy_ext.xds.dialects import DELTA, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import BY_TYPE_URL, Kind
from envoy_ext.xds.session import MOST_WORDS, Nacked, NotServed, Pushed, Session, Turn
from envoy_ext.xds.snapshot import Snapshot, build_snapshot
from tests.xds.builders import (
    BAD,
    cluster,
    clusters_with_endpoints,
    endpoints_alone,
    listener,
    pool,
    read_name,
    route,
)
from tests.xds.peer import PEERS, DeltaPeer, Peer, SotwPeer

both = pytest.mark.parametrize("make", PEERS)


def sotw(kind: Kind, *names: str, nonce: str = "", version: str = "", refusal: str | None = None) -> Any:
    request = STATE_OF_THE_WORLD.request(
        type_url=kind.type_url, resource_names=names, response_nonce=nonce, version_info=version
    )
    if refusal is not None:
        request.error_detail.message = refusal
    return request


def delta(
    kind: Kind,
    subscribe: str = "",
    unsubscribe: str = "",
    *,
    nonce: str = "",
    refusal: str | None = None,
    **held: str,
) -> Any:
    request = DELTA.request(
        type_url=kind.type_url,
        resource_names_subscribe=subscribe.split(),
        resource_names_unsubscribe=unsubscribe.split(),
        initial_resource_versions=held,
        response_nonce=nonce,
    )
    if refusal is not None:
        request.error_detail.message = refusal
    return request


def open_session(dialect: Dialect, snapshot: Snapshot) -> Session:
    session = Session(dialect)
    assert session.publish(snapshot) == Turn()
    return session


def named(response: Any) -> list[str]:
    kind = BY_TYPE_URL[response.type_url]
    if isinstance(response, STATE_OF_THE_WORLD.response):
        return [read_name(kind, one.value) for one in response.resources]
    return [one.name for one in response.resources]


def serving(**routed: str) -> Snapshot:
    """All four kinds: a listener whose routes lead to these pools, `pool name=content`."""
    contents = {name: int(number) for name, number in routed.items()}
    return build_snapshot(
        {
            Kind.CDS: [cluster(name, number) for name, number in contents.items()],
            Kind.EDS: [pool(name, number) for name, number in contents.items()],
            Kind.LDS: [listener("in", "to-in")],
            Kind.RDS: [route("to-in", contents, max(contents.values(), default=0))],
        }
    )


def start(make: type[Peer], snapshot: Snapshot, *kinds: Kind) -> Peer:
    peer = make(snapshot)
    peer.start(kinds)
    peer.settle()
    return peer


def watching(make: type[Peer], snapshot: Snapshot, *names: str) -> Peer:
    """A peer that takes endpoints alone."""
    peer = make(snapshot)
    for name in names:
        peer.watch(name)
    peer.settle()
    return peer


# --- answers ----------------------------------------------------------------------------------------


@both
def test_a_client_gets_what_it_asked_for_and_what_changes_of_it(make: type[Peer]) -> None:
    peer = watching(make, endpoints_alone(a=1, b=1), "pool_a")
    assert peer.numbers(Kind.EDS) == {"pool_a": 1}
    assert peer.publish(endpoints_alone(a=1, b=2)) == [], "nobody asked for b"
    [push] = peer.publish(endpoints_alone(a=3, b=2))
    assert named(push) == ["pool_a"]
    peer.settle()
    assert peer.numbers(Kind.EDS) == {"pool_a": 3}
    assert peer.session.is_settled


@both
def test_the_same_content_is_not_pushed_again(make: type[Peer]) -> None:
    peer = watching(make, endpoints_alone(a=1, b=2), "pool_a", "pool_b")
    for _ in range(100):
        assert peer.publish(endpoints_alone(b=2, a=1)) == []


@both
def test_requests_before_the_first_snapshot_are_answered_when_it_comes(make: type[Peer]) -> None:
    peer = make()
    peer.start([Kind.CDS, Kind.LDS])
    peer.settle()
    assert not peer.heard
    peer.publish(serving(a="1"))
    peer.settle()
    assert peer.numbers(Kind.RDS) == {"to-in": 1}


@both
def test_a_kind_that_is_not_served_gets_no_answer(make: type[Peer]) -> None:
    peer = start(make, endpoints_alone(a=1), Kind.CDS)
    assert not peer.heard
    assert peer.session.is_settled


@pytest.mark.parametrize("dialect", [STATE_OF_THE_WORLD, DELTA])
def test_a_kind_that_nobody_knows_is_noted(dialect: Dialect) -> None:
    session = open_session(dialect, endpoints_alone(a=1))
    turn = session.receive(dialect.request(type_url="type.googleapis.com/envoy.service.runtime.v3.Runtime"))
    assert turn == Turn(notes=(NotServed("type.googleapis.com/envoy.service.runtime.v3.Runtime"),))


@pytest.mark.parametrize("dialect", [STATE_OF_THE_WORLD, DELTA])
def test_a_request_has_to_say_what_it_asks_for(dialect: Dialect) -> None:
    with pytest.raises(PeerViolation):
        open_session(dialect, endpoints_alone()).receive(dialect.request())


def test_an_unknown_name_is_answered_at_once_with_no_endpoints() -> None:
    session = open_session(STATE_OF_THE_WORLD, endpoints_alone(a=1))
    [answer] = session.receive(sotw(Kind.EDS, "pool_x", "pool_a")).responses
    assert named(answer) == ["pool_a"]
    [unknown] = session.receive(sotw(Kind.EDS, "pool_x", "pool_a", nonce=answer.nonce)).responses
    assert [ClusterLoadAssignment.FromString(one.value) for one in unknown.resources] == [
        ClusterLoadAssignment(cluster_name="pool_x")
    ]
    assert session.receive(sotw(Kind.EDS, "pool_x", "pool_a", nonce=unknown.nonce)) == Turn()


def test_an_unknown_name_is_answered_at_once_as_removed() -> None:
    session = open_session(DELTA, endpoints_alone(a=1))
    [answer] = session.receive(delta(Kind.EDS, "pool_x")).responses
    assert (named(answer), list(answer.removed_resources)) == ([], ["pool_x"])
    assert session.receive(delta(Kind.EDS, nonce=answer.nonce)) == Turn()


def test_an_unknown_route_gets_no_answer_until_it_exists() -> None:
    """State of the world has no word for it, and a made-up one would answer 404."""
    session = open_session(STATE_OF_THE_WORLD, build_snapshot({Kind.RDS: []}))
    assert session.receive(sotw(Kind.RDS, "to-in")) == Turn()
    [answer] = session.publish(build_snapshot({Kind.RDS: [route("to-in", "a")]})).responses
    assert named(answer) == ["to-in"]


@both
def test_endpoints_without_names_get_no_answer(make: type[Peer]) -> None:
    """Envoy asks so when its last cluster is gone; everything would be the wrong answer."""
    peer = make(endpoints_alone(a=1))
    peer.open(Kind.EDS)
    assert peer.settle() == 1
    peer.watch("pool_a")
    peer.settle()
    peer.unwatch("pool_a")
    assert peer.hear() == []
    assert peer.publish(endpoints_alone(a=2)) == []


@both
def test_a_client_that_asks_for_all_of_nothing_is_told_so(make: type[Peer]) -> None:
    """Envoy starts only when it knows its clusters."""
    peer = make(build_snapshot({Kind.CDS: []}))
    peer.start([Kind.CDS])
    [answer] = peer.hear()
    assert named(answer) == []
    assert peer.publish(build_snapshot({Kind.CDS: []})) == []


# --- nonces -----------------------------------------------------------------------------------------


@both
def test_one_answer_of_a_kind_is_on_its_way_and_then_comes_the_newest(make: type[Peer]) -> None:
    peer = make(endpoints_alone(a=1))
    peer.watch("pool_a")
    peer.hear()
    for number in range(2, 50):
        assert peer.publish(endpoints_alone(a=number)) == []
    peer.settle()
    assert peer.heard == 2
    assert peer.numbers(Kind.EDS) == {"pool_a": 49}


def test_names_in_a_stale_request_count_when_they_come_with_a_fresh_nonce() -> None:
    session = open_session(STATE_OF_THE_WORLD, endpoints_alone(a=1, b=1))
    [first] = session.receive(sotw(Kind.EDS, "pool_a")).responses
    assert session.receive(sotw(Kind.EDS, "pool_a", nonce=first.nonce)) == Turn()
    [second] = session.publish(endpoints_alone(a=2, b=1)).responses
    assert session.receive(sotw(Kind.EDS, "pool_a", "pool_b", nonce=first.nonce)) == Turn(), "stale"
    assert session.receive(sotw(Kind.EDS, "pool_a", "pool_b")) == Turn(), "stale"
    [third] = session.receive(sotw(Kind.EDS, "pool_a", "pool_b", nonce=second.nonce)).responses
    assert named(third) == ["pool_b"]


def test_a_stale_refusal_is_nobodys() -> None:
    session = open_session(STATE_OF_THE_WORLD, endpoints_alone(a=1))
    session.receive(sotw(Kind.EDS, "pool_a"))
    assert session.receive(sotw(Kind.EDS, "pool_a", nonce="0", refusal="no")) == Turn()
    assert not session.is_settled, "the answer is still awaited"


def test_a_delta_request_changes_names_whatever_its_nonce() -> None:
    session = open_session(DELTA, endpoints_alone(a=1, b=1))
    [first] = session.receive(delta(Kind.EDS, "pool_a")).responses
    assert session.receive(delta(Kind.EDS, "pool_b", nonce="from another life")) == Turn(), "one at a time"
    [second] = session.receive(delta(Kind.EDS, nonce=first.nonce)).responses
    assert named(second) == ["pool_b"]


# --- refusals ---------------------------------------------------------------------------------------


@both
def test_refused_content_is_sent_once_and_its_successor_is_sent(make: type[Peer]) -> None:
    peer = watching(make, endpoints_alone(a=BAD), "pool_a")
    assert peer.heard == 1
    for _ in range(50):
        assert peer.publish(endpoints_alone(a=BAD)) == []
    peer.publish(endpoints_alone(a=1))
    peer.settle()
    assert peer.numbers(Kind.EDS) == {"pool_a": 1}
    assert [note for note in peer.notes if isinstance(note, Nacked)] == [Nacked(Kind.EDS, "bad number")]


@pytest.mark.parametrize(
    "refuse",
    [
        lambda answer: sotw(Kind.CDS, nonce=answer.nonce, version="older", refusal="no"),
        lambda answer: delta(Kind.CDS, nonce=answer.nonce, refusal="no"),
        lambda answer: delta(Kind.CDS, "pool_a *", nonce=answer.nonce, refusal="no"),
    ],
)
def test_a_client_that_refuses_and_asks_on_and_on_hears_nothing_twice(refuse: Any) -> None:
    probe = refuse(STATE_OF_THE_WORLD.response())
    dialect: Dialect = DELTA if isinstance(probe, DELTA.request) else STATE_OF_THE_WORLD
    session = open_session(dialect, build_snapshot({Kind.CDS: [cluster("a")]}))
    [answer] = session.receive(dialect.request(type_url=Kind.CDS.type_url)).responses
    refusal = refuse(answer)
    assert session.receive(refusal) == Turn(notes=(Nacked(Kind.CDS, "no"),))
    for _ in range(100):
        assert session.receive(refusal) == Turn(), "said once"
    for number in range(2, 5):
        [answer] = session.publish(build_snapshot({Kind.CDS: [cluster("a", number)]})).responses
        assert session.receive(refuse(answer)) == Turn(notes=(Nacked(Kind.CDS, "no"),))


@both
def test_a_bad_resource_does_not_keep_good_ones_from_the_client(make: type[Peer]) -> None:
    peer = watching(make, endpoints_alone(a=1, b=1, c=1), "pool_a", "pool_b", "pool_c")
    peer.publish(endpoints_alone(a=2, b=BAD, c=2))
    peer.settle()
    assert peer.numbers(Kind.EDS) == {"pool_a": 2, "pool_b": 1, "pool_c": 2}
    heard = peer.heard
    peer.publish(endpoints_alone(a=3, b=BAD, c=3))
    peer.settle()
    assert peer.numbers(Kind.EDS) == {"pool_a": 3, "pool_b": 1, "pool_c": 3}
    assert peer.heard == heard + 1, "what is known to be bad stays out of it"


@both
def test_a_refusal_takes_no_removal_along(make: type[Peer]) -> None:
    peer = start(make, clusters_with_endpoints(a=(1, 1), b=(1, 1)), Kind.CDS)
    peer.publish(clusters_with_endpoints(a=(BAD, 1)))
    peer.settle()
    peer.publish(clusters_with_endpoints(a=(2, 1)))
    peer.settle()
    assert peer.numbers(Kind.CDS) == {"pool_a": 2}
    assert peer.names[Kind.EDS] == {"pool_a"}


def test_a_reason_is_shortened_in_the_middle_and_made_printable() -> None:
    """Envoy prints what it refused before it says why."""
    session = open_session(STATE_OF_THE_WORLD, endpoints_alone(a=1))
    [answer] = session.receive(sotw(Kind.EDS, "pool_a")).responses
    words = (
        "debug\n\x1b[31mproto" + 5000 * "\n  endpoint { }" + "\n}: value must be greater than or equal to 1"
    )
    [note] = session.receive(sotw(Kind.EDS, "pool_a", nonce=answer.nonce, refusal=words)).notes
    assert isinstance(note, Nacked)
    assert note.detail.startswith("debug [31mproto endpoint { }")
    assert note.detail.endswith("}: value must be greater than or equal to 1")
    assert note.detail.isprintable()
    assert len(note.detail) <= MOST_WORDS + 3


def test_an_empty_reason_is_a_refusal_all_the_same() -> None:
    """What counts is that `error_detail` is there."""
    session = open_session(STATE_OF_THE_WORLD, endpoints_alone(a=1))
    [answer] = session.receive(sotw(Kind.EDS, "pool_a")).responses
    refusal = sotw(Kind.EDS, "pool_a", nonce=answer.nonce, version=answer.version_info)
    refusal.error_detail.SetInParent()
    assert session.receive(refusal).notes == (Nacked(Kind.EDS, ""),)


# --- reconnects -------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("after", [endpoints_alone(a=2), endpoints_alone(a=1)], ids=["changed", "equal"])
def test_after_a_restart_of_the_server_a_client_is_answered(make: type[Peer], after: Snapshot) -> None:
    """Also when nothing changed: its cluster may be warming."""
    peer = watching(make, endpoints_alone(a=1), "pool_a")
    peer.connect(after)
    peer.start([Kind.EDS])
    [answer] = peer.hear()
    assert named(answer) == ["pool_a"]
    peer.settle()
    assert peer.session.is_settled


def test_a_version_from_another_life_is_no_reason_for_silence() -> None:
    session = open_session(STATE_OF_THE_WORLD, endpoints_alone(a=1))
    for version in ("1", endpoints_alone(a=1).versions[Kind.EDS]):
        [answer] = session.receive(sotw(Kind.EDS, "pool_a", version=version, nonce="7")).responses
        assert named(answer) == ["pool_a"]
        session = open_session(STATE_OF_THE_WORLD, endpoints_alone(a=1))


def test_a_delta_client_is_not_told_of_what_it_holds_and_told_of_what_is_gone() -> None:
    snapshot = build_snapshot({Kind.CDS: [cluster("a"), cluster("b", 2)]})
    held = {"pool_a": cluster("a").version, "pool_b": cluster("b", 1).version, "pool_c": "1"}
    session = open_session(DELTA, snapshot)
    [changed] = session.receive(delta(Kind.CDS, **held)).responses
    assert (named(changed), list(changed.removed_resources)) == (["pool_b"], [])
    [gone] = session.receive(delta(Kind.CDS, nonce=changed.nonce)).responses
    assert (named(gone), list(gone.removed_resources)) == ([], ["pool_c"])
    assert session.receive(delta(Kind.CDS, nonce=gone.nonce)) == Turn()


@both
def test_a_cluster_that_was_warming_when_the_stream_broke_gets_warm(make: type[Peer]) -> None:
    peer = start(make, clusters_with_endpoints(a=(1, 1)), Kind.CDS)
    peer.publish(clusters_with_endpoints(a=(2, 1)))
    peer.answer()
    assert peer.warming == {"pool_a"}
    peer.connect(clusters_with_endpoints(a=(2, 1)))
    peer.start([Kind.EDS, Kind.CDS])
    peer.settle()
    assert not peer.warming


# --- order ------------------------------------------------------------------------------------------


@both
def test_endpoints_are_sent_again_after_their_cluster_changed(make: type[Peer]) -> None:
    peer = start(make, clusters_with_endpoints(a=(1, 1), b=(1, 1)), Kind.CDS)
    clusters, endpoints = peer.publish(clusters_with_endpoints(a=(2, 1), b=(1, 1)))
    assert BY_TYPE_URL[clusters.type_url] is Kind.CDS
    assert (BY_TYPE_URL[endpoints.type_url], named(endpoints)) == (Kind.EDS, ["pool_a"])
    peer.settle()
    assert not peer.warming


@both
def test_refused_endpoints_are_tried_again_with_a_changed_cluster(make: type[Peer]) -> None:
    peer = start(make, clusters_with_endpoints(a=(1, BAD)), Kind.CDS)
    peer.publish(clusters_with_endpoints(a=(2, BAD)))
    peer.settle()
    assert [note for note in peer.notes if isinstance(note, Nacked)] == 2 * [Nacked(Kind.EDS, "bad number")]


@both
def test_one_publication_of_everything_goes_out_in_warming_order(make: type[Peer]) -> None:
    peer = start(make, serving(a="1"), Kind.CDS, Kind.LDS)
    peer.notes.clear()
    peer.publish(serving(a="2", b="2"))
    peer.settle()
    pushed = [note.kind for note in peer.notes if isinstance(note, Pushed)]
    assert pushed[:2] == [Kind.CDS, Kind.EDS]
    assert pushed.index(Kind.RDS) > max(at for at, kind in enumerate(pushed) if kind in (Kind.CDS, Kind.EDS))
    assert peer.numbers(Kind.RDS) == {"to-in": 2}


@both
def test_routes_wait_until_new_clusters_are_warm(make: type[Peer]) -> None:
    peer = start(make, serving(a="1"), Kind.CDS, Kind.LDS)
    peer.publish(serving(a="1", b="2"))
    peer.answer()
    assert "pool_b" in peer.warming
    while peer.warming:
        assert peer.numbers(Kind.RDS) == {"to-in": 1}
        peer.step()
    peer.settle()
    assert peer.numbers(Kind.RDS) == {"to-in": 2}


@both
def test_a_cluster_goes_only_after_the_routes_to_it(make: type[Peer]) -> None:
    peer = start(make, serving(a="1", b="2"), Kind.CDS, Kind.LDS)
    peer.publish(serving(a="3"))
    seen = []
    while peer.step():
        seen.append((peer.numbers(Kind.RDS)["to-in"], sorted(peer.held[Kind.CDS])))
    assert (3, ["pool_a", "pool_b"]) in seen, "the routes first"
    assert (2, ["pool_a"]) not in seen, "not the cluster first"
    assert seen[-1] == (3, ["pool_a"])
    assert peer.numbers(Kind.EDS) == {"pool_a": 3}


@both
def test_a_cluster_stays_while_the_client_refuses_the_routes_away_from_it(make: type[Peer]) -> None:
    peer = start(make, serving(a="1", b="2"), Kind.CDS, Kind.LDS)
    without_b = {Kind.CDS: [cluster("a")], Kind.EDS: [pool("a", 1)], Kind.LDS: [listener("in", "to-in")]}
    peer.publish(build_snapshot({**without_b, Kind.RDS: [route("to-in", "a", BAD)]}))
    peer.settle()
    assert sorted(peer.held[Kind.CDS]) == ["pool_a", "pool_b"]
    assert not peer.session.is_settled
    peer.publish(build_snapshot({**without_b, Kind.RDS: [route("to-in", "a", 3)]}))
    peer.settle()
    assert sorted(peer.held[Kind.CDS]) == ["pool_a"]
    assert peer.session.is_settled


@both
def test_everything_can_go_and_come_back(make: type[Peer]) -> None:
    peer = start(make, serving(a="1"), Kind.CDS, Kind.LDS)
    nothing = build_snapshot({kind: [] for kind in Kind})
    for snapshot, routes in ((nothing, {}), (serving(a="1"), {"to-in": 1})):
        peer.publish(snapshot)
        peer.settle()
        assert peer.numbers(Kind.RDS) == routes
        assert peer.session.is_settled


# --- the wire ---------------------------------------------------------------------------------------


def test_an_answer_of_clusters_is_whole_and_one_of_endpoints_is_not() -> None:
    peer = start(SotwPeer, clusters_with_endpoints(a=(1, 1), b=(1, 1)), Kind.CDS)
    clusters, _ = peer.publish(clusters_with_endpoints(a=(1, 1), b=(2, 1)))
    assert named(clusters) == ["pool_a", "pool_b"]
    peer.settle()
    [endpoints] = peer.publish(clusters_with_endpoints(a=(1, 1), b=(2, 2)))
    assert named(endpoints) == ["pool_b"]


def test_a_delta_answer_holds_only_what_changed() -> None:
    peer = start(DeltaPeer, clusters_with_endpoints(a=(1, 1), b=(1, 1)), Kind.CDS)
    clusters, _ = peer.publish(clusters_with_endpoints(a=(1, 1), b=(2, 1)))
    assert named(clusters) == ["pool_b"]
    assert clusters.resources[0].version == cluster("b", 2).version


def test_the_version_of_an_answer_is_the_one_of_the_snapshot() -> None:
    snapshot = clusters_with_endpoints(a=(1, 1))
    session = open_session(STATE_OF_THE_WORLD, snapshot)
    for request in (sotw(Kind.CDS), sotw(Kind.EDS, "pool_a")):
        [answer] = session.receive(request).responses
        assert answer.version_info == snapshot.versions[BY_TYPE_URL[request.type_url]]


@pytest.mark.parametrize("dialect", [STATE_OF_THE_WORLD, DELTA])
def test_the_first_request_says_who_asks(dialect: Dialect) -> None:
    session = open_session(dialect, endpoints_alone())
    request = dialect.request(type_url=Kind.EDS.type_url)
    request.node.id = "edge-1"
    session.receive(request)
    session.receive(dialect.request(type_url=Kind.EDS.type_url))
    assert session.node == "edge-1"
