"""Resources as they go over the wire: a name, its bytes, and a version that comes from the bytes.

Endpoints are built here from plain views. Clusters, listeners and routes come in encoded, from
whoever rendered them, and are only read for their name and for what they refer to.

An assignment is put together from encoded pieces: two encodings of one message, joined, decode to
the merged message (https://protobuf.dev/programming-guides/encoding/#last-one-wins), so an
endpoint whose weight moved costs two cached pieces instead of a tree of objects. That takes less
than half of the time, which is time of the event loop (bench/eds_cost.py).

Envoy takes the endpoints of a cluster as one resource, so all of its bytes go out whichever endpoint has
changed. Making them again is spared (`Assignment`): to join what was made before is little more than a copy.
"""

import ipaddress
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint, LocalityLbEndpoints
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from google.protobuf.message import DecodeError

from envoy_ext.domain import names
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.xds.kinds import Kind

METADATA_FINGERPRINT: Final = "fingerprint"
"""Beside the replica's id, in the same namespace of an endpoint's metadata."""

MOST_WEIGHT: Final = 2**32 - 1
"""Of all endpoints of a locality together; with more, Envoy refuses the assignment."""

_CACHED_ENDPOINTS: Final = 32_768
"""Three times the largest fleet that is measured, at some 300 bytes each."""

_VERSION_BYTES: Final = 12

_BLOCK: Final = 64
"""Endpoints whose bytes are kept together: making that many takes as long as joining a hundred blocks."""

_MESSAGES: Final[dict[Kind, Any]] = {
    Kind.CDS: Cluster,
    Kind.EDS: ClusterLoadAssignment,
    Kind.LDS: Listener,
    Kind.RDS: RouteConfiguration,
}

# The repeated messages that are framed here, as tags: field number and wire type "length-delimited".
# https://protobuf.dev/programming-guides/encoding/#structure
_ASSIGNMENT_ENDPOINTS: Final = bytes((ClusterLoadAssignment.ENDPOINTS_FIELD_NUMBER << 3 | 2,))
_LOCALITY_ENDPOINTS: Final = bytes((LocalityLbEndpoints.LB_ENDPOINTS_FIELD_NUMBER << 3 | 2,))


class Health(StrEnum):
    """How Envoy is to treat an endpoint. Neither DRAINING nor UNHEALTHY gets work, and both keep theirs.

    But below the panic threshold (fewer than 50 % ready, unless set) Envoy 1.40 sends work to both, the
    draining not excepted: a cluster whose replicas are taken out on purpose must set the threshold to 0.
    https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/panic_threshold
    """

    READY = "ready"
    DRAINING = "draining"
    UNREADY = "unready"


_HEALTH: Final = {Health.READY: 1, Health.UNREADY: 2, Health.DRAINING: 3}
"""`envoy.config.core.v3.HealthStatus`: HEALTHY, UNHEALTHY, DRAINING."""


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One replica as Envoy should see it."""

    replica_id: ReplicaId
    address: str
    """An IP address: Envoy refuses a whole assignment that holds a host name."""
    port: int
    health: Health = Health.READY
    weight: int = 1
    zone: str = ""
    fingerprint: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    """More keys beside replica and fingerprint; later ones win."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """The replicas of one pool. No endpoints is an answer too: requests fail at once."""

    name: PoolName
    endpoints: tuple[EndpointView, ...] = ()


@dataclass(frozen=True, slots=True)
class Resource:
    """One named resource, ready for an `Any`. Made by the functions below, never changed."""

    kind: Kind
    name: str
    value: bytes
    version: str
    """From the content alone: a restart of the server neither repeats nor changes one."""
    refers_to: frozenset[str] = frozenset()
    """A cluster: the assignment it takes its endpoints from. A listener: its route configurations."""


def build_assignment(pool: PoolView) -> Resource:
    """The endpoints of a pool's cluster. The same replicas in any order give the same bytes.

    Raises:
        ValueError: an endpoint has no IP address, or no port that there is.
    """
    assignment = Assignment(pool.name)
    for endpoint in sorted(pool.endpoints, key=_read_key):
        assignment.add(endpoint)
    return assignment.build()


class Assignment:
    """One pool's endpoints, followed from change to change; `build` gives what `build_assignment` would.

    Endpoints stand in their order in blocks, each with its bytes and its digest, and a change has one block
    made anew.
    """

    def __init__(self, pool: PoolName) -> None:
        self._name = names.POOL_CLUSTER_PREFIX + pool
        self._localities: dict[str, _Locality] = {}

    def add(self, endpoint: EndpointView) -> None:
        """It is there too, behind any with the same zone, address, port and replica."""
        self._find(endpoint.zone).add(endpoint)

    def put(self, endpoint: EndpointView) -> None:
        """It is there, as this says; one with the same zone, address, port and replica is replaced."""
        self._find(endpoint.zone).put(endpoint)

    def drop(self, endpoint: EndpointView) -> None:
        """It is not there any more."""
        locality = self._localities.get(endpoint.zone)
        if locality is not None and not locality.drop(endpoint):
            del self._localities[endpoint.zone]

    def build(self) -> Resource:
        """The endpoints that are there.

        Raises:
            ValueError: one has no IP address, or no port that there is.
        """
        encoded = [_encode_name(self._name)]
        digest = blake2b(encoded[0], digest_size=_VERSION_BYTES)
        # One locality for each zone; without locality weights Envoy chooses among all of them by weight.
        for zone in sorted(self._localities):
            pieces, digests = self._localities[zone].encode()
            encoded += (_ASSIGNMENT_ENDPOINTS, _encode_varint(sum(map(len, pieces))), *pieces)
            digest.update(b"".join(digests))
        return Resource(Kind.EDS, self._name, b"".join(encoded), digest.hexdigest())

    def _find(self, zone: str) -> "_Locality":
        locality = self._localities.get(zone)
        if locality is None:
            locality = self._localities[zone] = _Locality(zone)
        return locality


_Key = tuple[str, int, ReplicaId]
"""What endpoints of a locality stand in the order of."""


def _read_key(endpoint: EndpointView) -> _Key:
    return endpoint.address, endpoint.port, endpoint.replica_id


class _Locality:
    """The endpoints of one zone. Blocks are cut by place and not by history, so that the same endpoints have
    the same digests, however they came to be there."""

    def __init__(self, zone: str) -> None:
        self._zone = _encode_zone(zone)
        self._keys: list[_Key] = []
        self._endpoints: list[EndpointView] = []
        self._blocks: list[tuple[bytes, bytes] | None] = []
        """Bytes and digest; None for what has to be made."""
        self._weight = 0
        """Of all together."""
        self._limited = False

    def put(self, endpoint: EndpointView) -> None:
        key = _read_key(endpoint)
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place] == key:
            self._weight += max(1, endpoint.weight) - max(1, self._endpoints[place].weight)
            self._endpoints[place] = endpoint
            self._blocks[place // _BLOCK] = None
        else:
            self._insert(place, endpoint)

    def add(self, endpoint: EndpointView) -> None:
        self._insert(bisect_right(self._keys, _read_key(endpoint)), endpoint)

    def drop(self, endpoint: EndpointView) -> bool:
        """Whether there is another one."""
        key = _read_key(endpoint)
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place] == key:
            del self._keys[place]
            self._weight -= max(1, self._endpoints.pop(place).weight)
            self._move(place)
        return bool(self._keys)

    def encode(self) -> tuple[list[bytes], list[bytes]]:
        """Its bytes and its digests, in pieces."""
        weights: list[int] | None = None
        if self._limited or self._weight > MOST_WEIGHT:
            weights = limit_weights([one.weight for one in self._endpoints])
            self._limited = self._weight > MOST_WEIGHT
            self._blocks = [None] * len(self._blocks)  # what one weighs depends on all
        made = [block or self._make(number, weights) for number, block in enumerate(self._blocks)]
        return [self._zone, *(block for block, _ in made)], [self._zone, *(digest for _, digest in made)]

    def _insert(self, place: int, endpoint: EndpointView) -> None:
        self._keys.insert(place, _read_key(endpoint))
        self._endpoints.insert(place, endpoint)
        self._weight += max(1, endpoint.weight)
        self._move(place)

    def _move(self, place: int) -> None:
        """What stands there and behind it stands elsewhere than before."""
        self._blocks[place // _BLOCK :] = [None] * (-(-len(self._keys) // _BLOCK) - place // _BLOCK)

    def _make(self, number: int, weights: list[int] | None) -> tuple[bytes, bytes]:
        begin, end = number * _BLOCK, (number + 1) * _BLOCK
        there = self._endpoints[begin:end]
        own = [max(1, one.weight) for one in there] if weights is None else weights[begin:end]
        encoded = b"".join(
            _frame(
                _LOCALITY_ENDPOINTS,
                _encode_replica(one.replica_id, one.address, one.port, one.fingerprint, one.metadata)
                + _encode_share(one.health, weight),
            )
            for one, weight in zip(there, own, strict=True)
        )
        block = self._blocks[number] = encoded, blake2b(encoded, digest_size=_VERSION_BYTES).digest()
        return block


def build_empty_assignment(cluster: str) -> Resource:
    """The answer to a question about endpoints that nobody knows of: there are none."""
    return _seal(Kind.EDS, cluster, _encode_name(cluster))


def read_resource(kind: Kind, encoded: bytes) -> Resource:
    """A resource that somebody else built; its name is the one in its bytes.

    Raises:
        ValueError: these are not the bytes of a named resource of this kind.
    """
    try:
        message = _MESSAGES[kind].FromString(encoded)
        name = message.cluster_name if kind is Kind.EDS else message.name
        refers_to = frozenset(_list_references(kind, message))
    except DecodeError as error:
        raise ValueError(f"not a {kind} resource: {error}") from None
    if not name:
        raise ValueError(f"a {kind} resource without a name")
    # Encoded again: whatever order its builder gave the keys of maps, the version stays the same.
    return _seal(kind, name, message.SerializeToString(deterministic=True), refers_to)


def compute_version(resources: Iterable[Resource]) -> str:
    """The version of a set of resources, whatever their order."""
    digest = blake2b(digest_size=_VERSION_BYTES)
    for resource in sorted(resources, key=lambda one: one.name):
        name = resource.name.encode()
        digest.update(len(name).to_bytes(4) + name + resource.version.encode())
    return digest.hexdigest()


def limit_weights(weights: list[int]) -> list[int]:
    """The weights of one locality as Envoy takes them: none below 1, no more than `MOST_WEIGHT` in all.

    A weight of 0 is not "no traffic" but a refused assignment, and the pool would keep the one before.
    Who should get no new work is `DRAINING`, or left out.
    """
    if min(weights, default=1) < 1:
        weights = [max(1, weight) for weight in weights]
    total = sum(weights)
    if total <= MOST_WEIGHT:
        return weights
    room = MOST_WEIGHT - len(weights)  # what rounding up to 1 can add
    return [max(1, weight * room // total) for weight in weights]


def _seal(kind: Kind, name: str, value: bytes, refers_to: frozenset[str] = frozenset()) -> Resource:
    version = blake2b(value, digest_size=_VERSION_BYTES).hexdigest()
    return Resource(kind, name, value, version, refers_to)


@lru_cache(_CACHED_ENDPOINTS)
def _encode_replica(
    replica_id: str, address: str, port: int, fingerprint: str, metadata: tuple[tuple[str, str], ...]
) -> bytes:
    """What stays the same of an endpoint while its load changes."""
    ipaddress.ip_address(address)
    if not 0 < port < 1 << 16:
        raise ValueError(f"{port} is not a port")
    endpoint = LbEndpoint()
    socket_address = endpoint.endpoint.address.socket_address
    socket_address.address, socket_address.port_value = address, port
    fields = endpoint.metadata.filter_metadata[names.METADATA_NAMESPACE].fields
    fields[names.METADATA_REPLICA].string_value = replica_id
    if fingerprint:
        fields[METADATA_FINGERPRINT].string_value = fingerprint
    for key, value in metadata:
        fields[key].string_value = value
    return _serialize(endpoint)


@lru_cache(_CACHED_ENDPOINTS)
def _encode_share(health: Health, weight: int) -> bytes:
    endpoint = LbEndpoint(health_status=_HEALTH[health])
    endpoint.load_balancing_weight.value = weight
    return _serialize(endpoint)


@lru_cache(256)
def _encode_zone(zone: str) -> bytes:
    locality = LocalityLbEndpoints()
    locality.locality.zone = zone
    return _serialize(locality)


def _encode_name(cluster: str) -> bytes:
    return _serialize(ClusterLoadAssignment(cluster_name=cluster))


def _serialize(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def _frame(tag: bytes, payload: bytes) -> bytes:
    """One element of a repeated message field."""
    return tag + _encode_varint(len(payload)) + payload


@lru_cache(1024)
def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _list_references(kind: Kind, message: Any) -> Iterable[str]:
    match kind:
        case Kind.CDS:
            if message.WhichOneof("cluster_discovery_type") == "type" and message.type == Cluster.EDS:
                yield message.eds_cluster_config.service_name or message.name
        case Kind.LDS:
            for chain in (*message.filter_chains, message.default_filter_chain):
                for network_filter in chain.filters:
                    manager = HttpConnectionManager()
                    if network_filter.typed_config.Unpack(manager) and manager.HasField("rds"):
                        yield manager.rds.route_config_name
        case Kind.EDS | Kind.RDS:
            pass
