"""A snapshot is versioned by what is in it and checked before it is served."""

import random

import pytest

from envoy_ext.domain.ids import PoolName
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import PoolView, build_assignment
from envoy_ext.xds.snapshot import Snapshot, build_snapshot
from tests.xds.builders import (
    cluster,
    clusters_with_endpoints,
    endpoint,
    endpoints_alone,
    listener,
    pool,
    route,
)


def test_a_hundred_rebuilds_in_random_order_are_one_version() -> None:
    chance = random.Random(7)
    versions = set()
    for _ in range(100):
        endpoints = [endpoint(number, zone=f"z{number % 3}") for number in range(20)]
        chance.shuffle(endpoints)
        assignments = [build_assignment(PoolView(PoolName("a"), tuple(endpoints)))]
        assignments += [pool(name, 1) for name in "cdef"]
        chance.shuffle(assignments)
        versions.add(build_snapshot({Kind.EDS: assignments}).versions[Kind.EDS])
    assert len(versions) == 1


def test_each_kind_has_a_version_of_its_own() -> None:
    before = clusters_with_endpoints(a=(1, 1))
    after = clusters_with_endpoints(a=(1, 2))
    assert before.versions[Kind.CDS] == after.versions[Kind.CDS]
    assert before.versions[Kind.EDS] != after.versions[Kind.EDS]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (endpoints_alone(a=1), endpoints_alone(a=2)),
        (endpoints_alone(a=1), endpoints_alone(a=1, b=())),
        (endpoints_alone(a=1), endpoints_alone()),
        (endpoints_alone(a=1, b=2), endpoints_alone(a=2, b=1)),
    ],
)
def test_other_content_is_another_version(one: Snapshot, other: Snapshot) -> None:
    assert one.versions[Kind.EDS] != other.versions[Kind.EDS]


def test_a_name_stands_once() -> None:
    with pytest.raises(ValueError, match="eds pool_a twice"):
        build_snapshot({Kind.EDS: [pool("a", 1), pool("a", 2)]})


def test_a_resource_stands_under_its_own_kind() -> None:
    with pytest.raises(ValueError, match="cds pool_a among eds"):
        build_snapshot({Kind.EDS: [cluster("a")]})


def test_a_snapshot_cannot_be_changed() -> None:
    snapshot = endpoints_alone(a=1)
    with pytest.raises(TypeError):
        snapshot.offers[Kind.EDS]["pool_b"] = pool("b")  # type: ignore[index]
    with pytest.raises(TypeError):
        snapshot.versions[Kind.EDS] = "x"  # type: ignore[index]


def test_what_is_named_must_be_there_and_what_is_there_must_be_named() -> None:
    snapshot = build_snapshot(
        {
            Kind.CDS: [cluster("a"), cluster("b")],
            Kind.EDS: [pool("b", 1), pool("c", 1)],
            Kind.LDS: [listener("in", "to-in")],
            Kind.RDS: [route("to-out", "b")],
        }
    )
    assert snapshot.find_inconsistencies() == (
        "eds pool_a is named by cds, not there",
        "eds pool_c is not named by cds",
        "rds to-in is named by lds, not there",
        "rds to-out is not named by lds",
    )


@pytest.mark.parametrize(
    "snapshot",
    [
        endpoints_alone(a=1),
        build_snapshot({}),
        clusters_with_endpoints(a=(1, 1), b=(1, 1)),
        build_snapshot({Kind.CDS: [cluster("a")]}),
        build_snapshot({Kind.RDS: [route("to-in", "b")], Kind.CDS: []}),
    ],
)
def test_kinds_are_held_against_each_other_only_where_both_are_served(snapshot: Snapshot) -> None:
    assert snapshot.find_inconsistencies() == ()
