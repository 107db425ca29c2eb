"""EndpointSlices of a Service, as the Kubernetes API tells them, and the replicas they add up to.

A Service has several slices: one set for each address family, one for each port number where a named
port differs from pod to pod, and more when there are many pods. They must be read together, and an
endpoint may stand in two of them for a moment:
https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#duplicate-endpoints

Whatever else is in them is passed over. `hints` too: they spread a Service's traffic over zones by
their CPUs, and replicas are too few and too dear to be left out for being elsewhere. So is `serving`:
a pod that is being ended may still serve, but a stream that begins there would be cut by its end.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from envoy_ext.domain.discovery import Listing, ListingFailed, Member, Standing
from envoy_ext.domain.ids import ReplicaId

FAMILIES: Final = ("IPv4", "IPv6")
"""Types of address that Envoy can be given; a name (`FQDN`) it cannot. The first one that is there counts,
so that a pod of a dual-stack Service is one replica with one share of the work."""

_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")
"""What the API allows of pods, nodes and zones; who writes a slice by hand may write anything."""

_CAUTION: Final = {Standing.LISTED: 0, Standing.HELD: 1, Standing.LEAVING: 2}


@dataclass(frozen=True, slots=True)
class SlicePort:
    """A TCP port of every endpoint in a slice. Without a number, any is meant."""

    name: str
    number: int | None


@dataclass(frozen=True, slots=True)
class SliceEndpoint:
    """One pod, or whatever else stands behind an address."""

    address: str
    standing: Standing
    name: str = ""
    """Of the object it belongs to, the pod; "" where nobody says."""
    uid: str = ""
    node: str | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointSlice:
    """One slice. `version` is opaque: it can be handed back, and not compared."""

    name: str
    version: str
    family: str
    ports: tuple[SlicePort, ...]
    endpoints: tuple[SliceEndpoint, ...]


def read_slice(tree: object) -> EndpointSlice:
    """A slice in the API's JSON. An endpoint that cannot be used is left out.

    Raises:
        ValueError: it is no slice.
    """
    meta = _mapping(_get(tree, "metadata"))
    name, family = _text(meta, "name"), _text(tree, "addressType")
    if not name or not family:
        raise ValueError("an EndpointSlice without a name or an addressType")
    return EndpointSlice(
        name=name,
        version=_text(meta, "resourceVersion"),
        family=family,
        ports=tuple(port for one in _list(_get(tree, "ports")) if (port := _read_port(one)) is not None),
        endpoints=tuple(
            endpoint
            for one in (_list(_get(tree, "endpoints")) if family in FAMILIES else ())
            if (endpoint := _read_endpoint(one, family)) is not None
        ),
    )


def build_listing(slices: Iterable[EndpointSlice], port: int | str) -> Listing | ListingFailed:
    """The replicas of a Service: one for each pod, at its port of this name or number.

    Where no slice that has an endpoint has that port, that is said instead: it is a mistake of the
    configuration, and no word about any replica.
    """
    usable = [one for one in slices if one.family in FAMILIES]
    families = {one.family for one in usable}
    chosen = [one for one in usable if one.family == next(name for name in FAMILIES if name in families)]
    populated = [one for one in chosen if one.endpoints]
    numbers = {one.name: _find_port(one.ports, port) for one in populated}
    if populated and not any(numbers.values()):
        return ListingFailed("no_port", _describe_ports(populated, port))
    return Listing(
        _join(
            _build_member(endpoint, number)
            for one in populated
            if (number := numbers[one.name]) is not None
            for endpoint in one.endpoints
        )
    )


# --- several slices into one list -------------------------------------------------------------------


def _join(found: Iterable[Member]) -> tuple[Member, ...]:
    """Each pod once, and each address once; in the order of the ids.

    Of one pod's two entries the more cautious counts: that a pod is being ended is never taken back.
    Of two pods under one name, or at one address, the one that is not being ended is there.
    """
    pods: dict[tuple[ReplicaId, str], Member] = {}
    for member in found:
        key = member.replica, member.identity
        pods[key] = max(pods.get(key, member), member, key=lambda one: (_caution(one), one.url))
    names = _keep_least_cautious(pods.values(), lambda one: one.replica)
    places = _keep_least_cautious(names, lambda one: one.url)
    return tuple(sorted(places, key=lambda one: one.replica))


def _keep_least_cautious(members: Iterable[Member], key: Callable[[Member], str]) -> list[Member]:
    kept: dict[str, Member] = {}
    for member in members:
        other = kept.get(key(member), member)
        kept[key(member)] = min(other, member, key=lambda one: (_caution(one), one.replica, one.identity))
    return list(kept.values())


def _caution(member: Member) -> int:
    return _CAUTION[member.standing]


def _build_member(endpoint: SliceEndpoint, port: int) -> Member:
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    at = f"{host}:{port}"
    return Member(
        replica=ReplicaId(endpoint.name or f"{endpoint.address}:{port}"),
        url=f"http://{at}",
        addresses=(at,),
        standing=endpoint.standing,
        identity=endpoint.uid,
        node=endpoint.node,
        zone=endpoint.zone,
    )


def _find_port(ports: Sequence[SlicePort], wanted: int | str) -> int | None:
    """The number of a port. A slice without ports, or with one that has no number, has every number."""
    if isinstance(wanted, str):
        return next((port.number for port in ports if port.name == wanted), None)
    free = not ports or any(port.number is None for port in ports)
    return wanted if free or any(port.number == wanted for port in ports) else None


def _describe_ports(slices: Sequence[EndpointSlice], wanted: int | str) -> str:
    there = sorted({f"{port.name or 'unnamed'} {port.number}" for one in slices for port in one.ports})
    said = f"the Service's pods have {', '.join(there)}" if there else "the Service's pods have no ports"
    return f"no port {wanted}: {said}; discovery.kubernetes.port is one of those, by name or number"


# --- the API's JSON ---------------------------------------------------------------------------------


def _read_port(tree: object) -> SlicePort | None:
    number = _get(tree, "port")
    if _text(tree, "protocol") not in ("", "TCP"):
        return None
    if number is not None and not (_is_int(number) and 0 < int(str(number)) < 1 << 16):
        return None
    return SlicePort(_text(tree, "name"), None if number is None else int(str(number)))


def _read_endpoint(tree: object, family: str) -> SliceEndpoint | None:
    """Its first address: all of them are the same pod's, and most clients use only that one."""
    address = next((one for one in _list(_get(tree, "addresses")) if _is_address(one, family)), None)
    if address is None:
        return None
    target = _mapping(_get(tree, "targetRef"))
    return SliceEndpoint(
        address=str(ip_address(str(address))),
        standing=_read_standing(_mapping(_get(tree, "conditions"))),
        name=_name(target, "name"),
        uid=_text(target, "uid"),
        node=_name(tree, "nodeName") or None,
        zone=_name(tree, "zone") or None,
    )


def _read_standing(conditions: Mapping[str, object]) -> Standing:
    """A condition that is not set says: ready, and not being ended.

    With `publishNotReadyAddresses` a Service declares all its pods ready, even those being ended.
    """
    if conditions.get("terminating") is True:
        return Standing.LEAVING
    return Standing.HELD if conditions.get("ready") is False else Standing.LISTED


def _is_address(value: object, family: str) -> bool:
    """An address that Envoy takes: of the family, and without the zone of a link (`%eth0`)."""
    try:
        address = ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    return address is not None and f"IPv{address.version}" == family


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _get(tree: object, key: str) -> object:
    return tree.get(key) if isinstance(tree, dict) else None


def _text(tree: object, key: str) -> str:
    value = _get(tree, key)
    return value if isinstance(value, str) else ""


def _name(tree: object, key: str) -> str:
    value = _text(tree, key)
    return value if _NAME.fullmatch(value) else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
