"""What an assignment of many endpoints costs to build and to push, side by side in one run.

    python bench/eds_cost.py [--endpoints 10000] [--streams 10] [--rounds 5] [--json FILE]

Four ways to build the same bytes, in turn, round by round, so that a drift of the machine's speed hits
all alike:

    pieces     as the sidecar does it, when every weight has moved since the last time
    first      the same with nothing remembered of an earlier build
    objects    the same protobuf package, message by message
    data-plane envoy-data-plane's typed messages (fewer endpoints: it takes long), compared per endpoint

And the push: a session with one stream of each protocol, and one hub with many streams, from
the snapshot to bytes on the wire. Figures are medians of CPU time over the rounds; quote the ratios.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import envoy_data_plane.envoy.config.core.v3 as plane_core
import envoy_data_plane.envoy.config.endpoint.v3 as plane
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy_data_plane.google.protobuf import Struct, Value

from envoy_ext.domain import names
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.xds import resources
from envoy_ext.xds.dialects import DELTA, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import EndpointView, PoolView, build_assignment
from envoy_ext.xds.session import Session
from envoy_ext.xds.snapshot import Snapshot, build_snapshot

DATA_PLANE_ENDPOINTS = 200
ZONES = 3
CLUSTER = names.POOL_CLUSTER_PREFIX + "bench"


def build_pool(endpoints: int, turn: int) -> PoolView:
    """A fleet in which every weight is another one each turn."""
    return PoolView(
        PoolName("bench"),
        tuple(
            EndpointView(
                ReplicaId(f"replica-{number}"),
                f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
                8000,
                weight=1 + (number + turn) % 100,
                zone=f"zone-{number % ZONES}",
                fingerprint="f1",
            )
            for number in range(endpoints)
        ),
    )


# --- four ways to build -----------------------------------------------------------------------------


def build_pieces(pool: PoolView) -> bytes:
    return build_assignment(pool).value


def build_first(pool: PoolView) -> bytes:
    for remembered in (resources._encode_replica, resources._encode_share):
        remembered.cache_clear()
    return build_assignment(pool).value


def build_objects(pool: PoolView) -> bytes:
    assignment = ClusterLoadAssignment(cluster_name=CLUSTER)
    localities: dict[str, Any] = {}
    for one in sorted(pool.endpoints, key=lambda one: (one.zone, one.address)):
        if one.zone not in localities:
            localities[one.zone] = assignment.endpoints.add()
            localities[one.zone].locality.zone = one.zone
        built = localities[one.zone].lb_endpoints.add(health_status=1)
        address = built.endpoint.address.socket_address
        address.address, address.port_value = one.address, one.port
        built.load_balancing_weight.value = one.weight
        fields = built.metadata.filter_metadata[names.METADATA_NAMESPACE].fields
        fields[names.METADATA_REPLICA].string_value = one.replica_id
        fields[resources.METADATA_FINGERPRINT].string_value = one.fingerprint
    return bytes(assignment.SerializeToString(deterministic=True))


def build_data_plane(pool: PoolView) -> bytes:
    localities: dict[str, list[plane.LbEndpoint]] = {}
    for one in sorted(pool.endpoints, key=lambda one: (one.zone, one.address)):
        fields = {
            names.METADATA_REPLICA: Value(string_value=one.replica_id),
            resources.METADATA_FINGERPRINT: Value(string_value=one.fingerprint),
        }
        address = plane_core.SocketAddress(address=one.address, port_value=one.port)
        localities.setdefault(one.zone, []).append(
            plane.LbEndpoint(
                endpoint=plane.Endpoint(address=plane_core.Address(socket_address=address)),
                health_status=plane_core.HealthStatus.HEALTHY,
                load_balancing_weight=one.weight,
                metadata=plane_core.Metadata(
                    filter_metadata={names.METADATA_NAMESPACE: Struct(fields=fields)}
                ),
            )
        )
    return bytes(
        plane.ClusterLoadAssignment(
            cluster_name=CLUSTER,
            endpoints=[
                plane.LocalityLbEndpoints(locality=plane_core.Locality(zone=zone), lb_endpoints=there)
                for zone, there in localities.items()
            ],
        )
    )


def check_same(endpoints: int) -> None:
    """All four say the same, or there is nothing to compare."""
    pool = build_pool(endpoints, 0)
    expected = ClusterLoadAssignment.FromString(build_objects(pool))
    for build in (build_pieces, build_first, build_data_plane):
        if ClusterLoadAssignment.FromString(build(pool)) != expected:
            raise SystemExit(f"{build.__name__} builds something else")


# --- the push ---------------------------------------------------------------------------------------


class Stream:
    """A session whose client takes everything."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.session = Session(dialect)
        self.session.receive(self._ask(""))

    def push(self, snapshot: Snapshot) -> int:
        """From a snapshot to the bytes of its answer; how many."""
        sent = 0
        for response in self.session.publish(snapshot).responses:
            sent += len(response.SerializeToString())
            self.session.receive(self._ask(response.nonce))
        return sent

    def _ask(self, nonce: str) -> Any:
        request = self.dialect.request(type_url=Kind.EDS.type_url, response_nonce=nonce)
        if self.dialect is STATE_OF_THE_WORLD:
            request.resource_names.append(CLUSTER)
        elif not nonce:
            request.resource_names_subscribe.append(CLUSTER)
        return request


# --- measuring --------------------------------------------------------------------------------------


def measure(work: Callable[[], object]) -> float:
    """CPU seconds of one go."""
    started = time.process_time()
    work()
    return time.process_time() - started


def run(endpoints: int, streams: int, rounds: int) -> dict[str, float]:
    """CPU microseconds an endpoint, by what was done."""
    turns = count(1)
    few = min(endpoints, DATA_PLANE_ENDPOINTS)
    sotw, delta = Stream(STATE_OF_THE_WORLD), Stream(DELTA)
    many = [Stream((STATE_OF_THE_WORLD, DELTA)[number % 2]) for number in range(streams)]
    seen: dict[str, list[float]] = {}

    def note(name: str, work: Callable[[], object], size: int) -> None:
        seen.setdefault(name, []).append(1e6 * measure(work) / size)

    build_pieces(build_pool(endpoints, 0))
    for _ in range(rounds):
        turn = next(turns)
        pool, small = build_pool(endpoints, turn), build_pool(few, turn)
        for name, build in (("first", build_first), ("pieces", build_pieces), ("objects", build_objects)):
            # Pieces come after a build that filled the memory; its own weights are those of the next turn.
            if build is build_pieces:
                pool = build_pool(endpoints, next(turns))
            note(name, lambda build=build, pool=pool: build(pool), endpoints)
        note("data-plane", lambda small=small: build_data_plane(small), few)
        snapshot = build_snapshot({Kind.EDS: [build_assignment(pool)]})
        note("push, state of the world", lambda snapshot=snapshot: sotw.push(snapshot), endpoints)
        note("push, delta", lambda snapshot=snapshot: delta.push(snapshot), endpoints)
        note(
            f"push, {streams} streams",
            lambda snapshot=snapshot: [stream.push(snapshot) for stream in many],
            endpoints,
        )
    return {name: statistics.median(figures) for name, figures in seen.items()}


def report(rows: dict[str, float], endpoints: int, streams: int) -> None:
    """Print the table."""
    base = rows["pieces"]
    print(f"{'':28}{'us an endpoint':>16}{'against pieces':>16}")
    for name, figure in rows.items():
        print(f"{name:28}{figure:>16.2f}{'x' + format(figure / base, '.2f'):>16}")
    share = (base + rows[f"push, {streams} streams"]) * endpoints / 1e6
    print(
        f"\n{endpoints} endpoints with moved weights, rebuilt and pushed to {streams} streams every second: "
        f"{100 * share:.1f} % of one core"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--endpoints", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    check_same(DATA_PLANE_ENDPOINTS)
    print(f"{given.rounds} rounds, {os.cpu_count()} cores\n")
    figures = run(given.endpoints, given.streams, given.rounds)
    report(figures, given.endpoints, given.streams)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
