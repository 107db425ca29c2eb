"""Slices in, replicas out. The invariant: each pod once and each address once, whatever overlaps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.discovery import Listing, ListingFailed, Member, Standing
from envoy_ext.domain.endpoint_slices import build_listing, read_slice
from tests.support.slices import HTTP, METRICS, ending, pod, slice_of

LISTED, HELD, LEAVING = Standing


def listing(*slices: dict[str, Any], port: int | str = "http") -> tuple[Member, ...]:
    told = build_listing([read_slice(one) for one in slices], port)
    assert isinstance(told, Listing), told
    return told.members


def standings(*slices: dict[str, Any]) -> dict[str, Standing]:
    return {one.replica: one.standing for one in listing(*slices)}


def test_a_pod_is_a_replica_with_its_place() -> None:
    (member,) = listing(slice_of(pod("vllm-0", "10.1.2.3", uid="u-1", node="n1", zone="z1")))
    assert member == Member(
        replica="vllm-0",  # type: ignore[arg-type]
        url="http://10.1.2.3:8000",
        addresses=("10.1.2.3:8000",),
        standing=LISTED,
        identity="u-1",
        node="n1",
        zone="z1",
    )


CONDITIONS = [
    # ready, serving, terminating: what it may do
    (True, True, False, LISTED),
    (None, None, None, LISTED),
    (None, None, False, LISTED),
    (True, None, None, LISTED),
    (False, False, False, HELD),
    (False, None, None, HELD),
    (False, True, True, LEAVING),
    (False, False, True, LEAVING),
    (None, None, True, LEAVING),
    # publishNotReadyAddresses declares all ready: those that start, and those that are ended
    (True, False, False, LISTED),
    (True, True, True, LEAVING),
    (True, False, True, LEAVING),
]


@pytest.mark.parametrize(("ready", "serving", "terminating", "standing"), CONDITIONS)
def test_conditions_say_what_a_pod_may_do(
    ready: bool | None, serving: bool | None, terminating: bool | None, standing: Standing
) -> None:
    one = pod("a", "10.0.0.1", ready=ready, serving=serving, terminating=terminating)
    assert standings(slice_of(one)) == {"a": standing}


def test_slices_of_a_service_are_read_together() -> None:
    many = [slice_of(pod(f"p{n}", f"10.0.{n}.1"), name=f"s{n}") for n in range(5)]
    assert [one.replica for one in listing(*many)] == ["p0", "p1", "p2", "p3", "p4"]


def test_a_named_port_may_have_another_number_in_another_slice() -> None:
    old = slice_of(pod("a", "10.0.0.1"), name="s1")
    new = slice_of(pod("b", "10.0.0.2"), name="s2", ports=[{"name": "http", "port": 9100, "protocol": "TCP"}])
    assert [one.url for one in listing(old, new)] == ["http://10.0.0.1:8000", "http://10.0.0.2:9100"]


PORTS: list[tuple[list[dict[str, Any]] | None, int | str, int | None]] = [
    ([HTTP, METRICS], "http", 8000),
    ([HTTP, METRICS], "metrics", 9000),
    ([HTTP, METRICS], 9000, 9000),
    ([{"name": "", "port": 8000, "protocol": "TCP"}], 8000, 8000),
    ([{"name": None, "port": 8000}], 8000, 8000),
    ([{"port": 8000}], "http", None),
    ([HTTP], 80, None),
    ([HTTP], "grpc", None),
    ([{"name": "http", "port": 8000, "protocol": "UDP"}, METRICS], "http", None),
    ([], 8000, 8000),  # a headless Service without ports
    ([], "http", None),
    ([{"name": "any", "port": None, "protocol": "TCP"}], 8000, 8000),  # "all ports"
    ([{"name": "http", "port": 70000, "protocol": "TCP"}, METRICS], "http", None),
    ([{"name": "http", "port": True, "protocol": "TCP"}, METRICS], "http", None),
]


@pytest.mark.parametrize(("ports", "wanted", "number"), PORTS)
def test_a_port_is_found_by_name_or_number(
    ports: list[dict[str, Any]], wanted: int | str, number: int | None
) -> None:
    told = build_listing([read_slice(slice_of(pod("a", "10.0.0.1"), ports=ports))], wanted)
    if number is None:
        assert isinstance(told, ListingFailed)
        assert told.reason == "no_port"
    else:
        assert isinstance(told, Listing)
        assert told.members[0].url == f"http://10.0.0.1:{number}"


def test_a_port_that_no_pod_has_is_told_with_those_they_have() -> None:
    told = build_listing([read_slice(slice_of(pod("a", "10.0.0.1"), ports=[HTTP, METRICS]))], 80)
    assert told == ListingFailed(
        "no_port",
        "no port 80: the Service's pods have http 8000, metrics 9000; "
        "discovery.kubernetes.port is one of those, by name or number",
    )


def test_a_service_without_pods_has_no_replicas_whatever_its_port() -> None:
    assert listing() == ()
    assert listing(slice_of(ports=[])) == ()
    assert listing({**slice_of(), "endpoints": None, "ports": None}) == ()


def test_a_slice_without_the_port_does_not_hide_another_that_has_it() -> None:
    other = slice_of(pod("b", "10.0.0.2"), name="s2", ports=[METRICS])
    assert [one.replica for one in listing(slice_of(pod("a", "10.0.0.1")), other)] == ["a"]


def test_names_for_addresses_are_passed_over() -> None:
    named = slice_of(pod("b", "vllm.example"), name="s2", family="FQDN")
    assert [one.replica for one in listing(slice_of(pod("a", "10.0.0.1")), named)] == ["a"]
    assert listing(named) == ()


def test_a_dual_stack_pod_is_one_replica_at_its_first_family() -> None:
    four = slice_of(pod("a", "10.0.0.1"), name="s4")
    six = slice_of(pod("a", "2001:db8::1"), name="s6", family="IPv6")
    assert [one.url for one in listing(six, four)] == ["http://10.0.0.1:8000"]
    (alone,) = listing(six)
    assert (alone.url, alone.addresses) == ("http://[2001:db8::1]:8000", ("[2001:db8::1]:8000",))


def test_a_dual_stack_pod_that_goes_does_not_come_back_by_its_other_family() -> None:
    six = slice_of(pod("a", "2001:db8::1"), name="s6", family="IPv6")
    assert listing(slice_of(name="s4"), six) == ()


def test_an_endpoint_that_nobody_names_is_called_by_its_address() -> None:
    nameless = {"addresses": ["10.0.0.9", "10.0.0.10"]}
    six = {"addresses": ["2001:DB8::9"]}
    assert [one.replica for one in listing(slice_of(nameless))] == ["10.0.0.9:8000"]
    assert [one.replica for one in listing(slice_of(six, family="IPv6"))] == ["2001:db8::9:8000"]


# --- overlaps ---------------------------------------------------------------------------------------


def test_a_pod_in_two_slices_is_one_and_its_end_counts() -> None:
    one, other = slice_of(pod("a", "10.0.0.1"), name="s1"), slice_of(ending("a", "10.0.0.1"), name="s2")
    assert standings(one, other) == standings(other, one) == {"a": LEAVING}


def test_of_two_pods_under_one_name_the_one_that_stays_is_there() -> None:
    old = slice_of(ending("vllm-0", "10.0.0.1", uid="u-1"), name="s1")
    new = slice_of(pod("vllm-0", "10.0.0.2", uid="u-2", ready=False), name="s2")
    for slices in ((old, new), (new, old)):
        assert [(one.identity, one.standing) for one in listing(*slices)] == [("u-2", HELD)]


def test_of_two_pods_at_one_address_the_one_that_stays_is_there() -> None:
    shared = slice_of(ending("old", "10.0.0.1"), pod("new", "10.0.0.1"))
    assert standings(shared) == {"new": LISTED}


ENDPOINTS = st.builds(
    pod,
    name=st.sampled_from("abc"),
    address=st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    ready=st.sampled_from([True, False, None]),
    terminating=st.sampled_from([True, False, None]),
    uid=st.sampled_from(["u-1", "u-2"]),
)
SLICES = st.lists(st.lists(ENDPOINTS, max_size=4), max_size=4).map(
    lambda groups: [slice_of(*group, name=f"s{number}") for number, group in enumerate(groups)]
)


@given(SLICES, st.randoms())
def test_each_pod_and_each_address_stands_once_in_any_order_of_slices(slices, random) -> None:  # type: ignore[no-untyped-def]
    members = listing(*slices)
    assert len({one.replica for one in members}) == len(members)
    assert len({one.addresses for one in members}) == len(members)
    assert listing(*random.sample(slices, len(slices))) == members


@given(SLICES)
def test_whoever_is_listed_stands_in_a_slice_as_it_is_listed(slices: list[dict[str, Any]]) -> None:
    there = {
        (one["targetRef"]["name"], one["targetRef"]["uid"], f"{one['addresses'][0]}:8000")
        for each in slices
        for one in each["endpoints"]
    }
    assert {(one.replica, one.identity, one.addresses[0]) for one in listing(*slices)} <= there
    assert bool(there) == bool(listing(*slices))


# --- what is not as it should be --------------------------------------------------------------------

USELESS: list[object] = [
    None,
    "pod",
    {},
    {"addresses": None},
    {"addresses": []},
    {"addresses": [7, None, "", "ten", "10.0.0", "10.0.0.256", "2001:db8::1", "10.0.0.1:8000"]},
]


@pytest.mark.parametrize("endpoint", USELESS, ids=str)
def test_an_endpoint_that_cannot_be_used_takes_no_other_along(endpoint: object) -> None:
    tree = slice_of(pod("a", "10.0.0.1"))
    tree["endpoints"].insert(0, endpoint)
    assert [one.replica for one in listing(tree)] == ["a"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\nb", "\ud800", "ü", "x" * 254], ids=ascii)
def test_a_name_that_is_none_gives_way_to_the_address(name: str) -> None:
    assert listing(slice_of(pod(name, "10.0.0.1", node=name, zone=name))) == listing(
        slice_of({"addresses": ["10.0.0.1"], "targetRef": {"uid": f"uid-of-{name}"}})
    )


def test_an_address_with_the_zone_of_a_link_is_none_that_envoy_takes() -> None:
    linked = pod("a", "fe80::1%eth0")
    assert listing(slice_of(linked, pod("b", "2001:db8::2"), family="IPv6"))[0].replica == "b"


@pytest.mark.parametrize(
    "tree", [None, [], {}, {"metadata": {"name": "s"}}, {"addressType": "IPv4"}], ids=str
)
def test_what_is_no_slice_is_refused(tree: object) -> None:
    with pytest.raises(ValueError, match="EndpointSlice"):
        read_slice(tree)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, JSON, JSON, JSON)
def test_no_json_makes_reading_fail(
    ports: object, endpoints: object, conditions: object, target: object
) -> None:
    odd = {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": target, "zone": ports}
    tree = {**slice_of(), "ports": ports}
    for found in (endpoints, [odd], [endpoints]):
        build_listing([read_slice({**tree, "endpoints": found})], "http")
