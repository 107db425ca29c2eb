"""Mistakes that show only when two places of the file are read together.

They are read from the file's plain data and not from the finished model, so that they are told
together with every other mistake. Whatever has the wrong form is passed over: it has its own line.
"""

from collections.abc import Iterator

from pydantic_core import PydanticCustomError

from envoy_ext.config.jobs import find_jobs_conflicts
from envoy_ext.config.journal_conflicts import find_journal_conflicts
from envoy_ext.config.ladder import find_ladder_mistakes
from envoy_ext.config.mistakes import Location, format_location
from envoy_ext.config.model import (
    DEFAULT_SIDECAR_SOCKET,
    STREAMS_SOCKET,
    Admin,
    Envoy,
    Ingress,
    LeaseDoor,
    Operations,
)
from envoy_ext.config.section import check_socket_path
from envoy_ext.config.tools import ToolListener
from envoy_ext.config.urls import parse_replica_url

Mapping = dict[object, object]
"""A mapping of the file, of whatever form its values are."""

_EVERY_ADDRESS = ("0.0.0.0", "::")


def find_conflicts(data: Mapping) -> list[tuple[Location, str]]:
    """One location and message for each thing that two places of the file claim."""
    return [
        *_find_repeated(data),
        *_find_discovery_conflicts(data),
        *_find_shared_ports(data),
        *_find_socket_conflicts(data),
        *_find_endpoints_apart(data),
        *_find_ladder_mistakes(data),
        *_find_repeated_tools(data),
        *find_journal_conflicts(_section(data, ("journal",))),
        *_find_outage_conflicts(data),
        *_find_jobs_conflicts(data),
        *_find_job_socket_conflicts(data),
    ]


def _find_repeated(data: Mapping) -> Iterator[tuple[Location, str]]:
    names: dict[str, Location] = {}
    models: dict[str, Location] = {}
    ids: dict[str, Location] = {}
    for p, pool in _items(data.get("pools")):
        name = pool.get("name")
        yield from _claim(
            names, name, ("pools", p, "name"), "this name is taken by {first}: names must be unique"
        )
        for m, model in enumerate(_list(pool.get("models"))):
            yield from _claim(
                models,
                model,
                ("pools", p, "models", m),
                "this model is served by {first}: remove one of the two",
            )
        origins: dict[str, Location] = {}
        for r, replica in _items(pool.get("replicas")):
            at: Location = ("pools", p, "replicas", r)
            origin = _origin(replica.get("url"))
            repeated = list(
                _claim(origins, origin, (*at, "url"), "the same host and port as {first}: remove one")
            )
            yield from repeated
            if "id" in replica:
                yield from _claim(
                    ids, replica["id"], (*at, "id"), "this id is taken by {first}: ids must be unique"
                )
            elif not repeated:
                message = "its id, which is host:port unless given, is taken by {first}: give it an id"
                yield from _claim(ids, origin, at, message)


def _find_discovery_conflicts(data: Mapping) -> Iterator[tuple[Location, str]]:
    """A list of replicas belongs to static discovery, and to no other."""
    followed: dict[str, Location] = {}
    envoy = _section(data, ("envoy",))
    default = "xds" if envoy.get("resources") == "xds" else Envoy().endpoints
    told = envoy.get("endpoints", default) != "static"
    for p, pool in _items(data.get("pools")):
        discovery, replicas = pool.get("discovery", {"static": True}), pool.get("replicas", [])
        if not isinstance(discovery, dict):
            continue
        named = [name for name in ("dns", "kubernetes") if discovery.get(name) is not None]
        if not named and replicas == []:
            missing = "missing: list the replicas, or find them by discovery.dns or discovery.kubernetes"
            message = "must hold at least one entry" if "replicas" in pool else missing
            yield ("pools", p, "replicas"), message
        for name in named:
            at: Location = ("pools", p, "discovery", name)
            if _list(replicas):
                message = f"must be left out, since discovery.{name} finds the replicas"
                yield ("pools", p, "replicas"), message
            yield from _claim(
                followed, _identify(name, discovery[name]), at, "the same replicas as {first}: remove one"
            )
            if not told:
                told = True
                message = (
                    f"must be xds, since {format_location(at)} finds replicas that come and go: "
                    "Envoy hears of them from the sidecar"
                )
                yield ("envoy", "endpoints"), message


def _identify(name: str, place: object) -> str | None:
    """What a source is known by; None where that has the wrong form."""
    if name == "dns":
        return place.lower() if isinstance(place, str) else None
    known = [place.get(key) for key in ("api", "namespace", "service")] if isinstance(place, dict) else []
    return repr(known) if known else None


def _claim(
    taken: dict[str, Location], key: object, at: Location, message: str
) -> Iterator[tuple[Location, str]]:
    if not isinstance(key, str):
        return
    first = taken.setdefault(key, at)
    if first != at:
        yield at, message.format(first=format_location(first))


def _find_shared_ports(data: Mapping) -> Iterator[tuple[Location, str]]:
    """Two listeners on one port; the line stands at a key that the file has, not at a default."""
    claimed: list[tuple[Location, object, object]] = []
    for at, default, key in (
        (("ingress",), Ingress(), "port"),
        (("operations",), Operations(), "port"),
        (("envoy", "admin"), Admin(), "port"),
        (("sidecar",), None, "port"),
        (("sidecar",), None, "streams_port"),
        (("lease", "http"), LeaseDoor(port=0), "port"),
        (("lease", "grpc"), LeaseDoor(port=0), "port"),
        (("tools", "listener"), ToolListener(port=0), "port"),
    ):
        section = _section(data, at)
        port = section.get(key, default.port if default else None)
        address = section.get("address", default.address if default else None)
        if section is _NO_SECTION or not isinstance(port, int) or port == 0:
            continue
        for other, other_address, other_port in claimed:
            same_address = (
                address == other_address or address in _EVERY_ADDRESS or other_address in _EVERY_ADDRESS
            )
            if port == other_port and same_address:
                here, there = ((*at, key), other) if key in section else ((*other, "port"), at)
                yield here, f"the same port as {format_location(there)}: give one of the two another"
        claimed.append((at, address, port))


def _find_socket_conflicts(data: Mapping) -> Iterator[tuple[Location, str]]:
    sidecar = _section(data, ("sidecar",)).get("socket") if "sidecar" in data else DEFAULT_SIDECAR_SOCKET
    egress = _section(data, ("envoy",)).get("egress_socket")
    if not isinstance(sidecar, str) or not _is_socket_path(sidecar):
        return
    yield from _find_streams_socket_conflicts(data, sidecar, egress)
    if egress is None and not _is_socket_path(sidecar.rpartition("/")[0] + "/egress.sock"):
        message = (
            "too long for Envoy's own socket, egress.sock beside it: shorten it, or set envoy.egress_socket"
        )
        yield ("sidecar", "socket"), message
    elif egress == sidecar:
        yield ("envoy", "egress_socket"), "the same path as sidecar.socket: they are two sockets"
    tools = _section(data, ("tools", "listener")).get("socket")
    if tools == sidecar:
        yield ("tools", "listener", "socket"), "the same path as sidecar.socket: they are two sockets"
    elif tools is not None and tools in (egress, sidecar.rpartition("/")[0] + "/egress.sock"):
        yield ("tools", "listener", "socket"), "the path of Envoy's own socket: write another"


def _find_streams_socket_conflicts(
    data: Mapping, sidecar: str, egress: object
) -> Iterator[tuple[Location, str]]:
    """The native transport has a socket of its own, beside the sidecar's."""
    if _section(data, ("sidecar",)).get("transport") not in (None, "native"):
        return
    streams = sidecar.rpartition("/")[0] + f"/{STREAMS_SOCKET}"
    message = (
        f"the path of the native transport's socket, {STREAMS_SOCKET} beside the sidecar's: write another"
    )
    for at, path in (
        (("sidecar", "socket"), sidecar),
        (("envoy", "egress_socket"), egress),
        (("tools", "listener", "socket"), _section(data, ("tools", "listener")).get("socket")),
    ):
        if path == streams:
            yield at, message
    if not _is_socket_path(streams):
        yield (
            ("sidecar", "socket"),
            f"too long for the native transport's, {STREAMS_SOCKET} beside it: shorten it",
        )


def _find_endpoints_apart(data: Mapping) -> Iterator[tuple[Location, str]]:
    envoy = _section(data, ("envoy",))
    if envoy.get("resources") == "xds" and envoy.get("endpoints") == "static":
        message = "is xds where envoy.resources is xds: remove this key, or set envoy.resources to static"
        yield ("envoy", "endpoints"), message


def _find_repeated_tools(data: Mapping) -> Iterator[tuple[Location, str]]:
    names: dict[str, Location] = {}
    prefixes: dict[str, Location] = {}
    for r, route in _items(_section(data, ("tools",)).get("routes")):
        at: Location = ("tools", "routes", r)
        taken = "this name is taken by {first}: names must be unique"
        yield from _claim(names, route.get("name"), (*at, "name"), taken)
        prefix = route.get("prefix")
        same = "the same paths as {first}: give one of the two another prefix"
        plain = prefix.rstrip("/") if isinstance(prefix, str) else None
        yield from _claim(prefixes, plain, (*at, "prefix"), same)


def _find_outage_conflicts(data: Mapping) -> Iterator[tuple[Location, str]]:
    """What runs unrecorded is said in two places: that it may, and which classes do."""
    goes_on = _section(data, ("journal",)).get("on_unavailable") == "continue_unrecorded"
    classes = _section(data, ("admission", "classes"))
    allowed = [
        name for name, one in classes.items() if isinstance(one, dict) and one.get("unrecorded") is True
    ]
    if goes_on and not allowed:
        message = (
            "no class may go on unrecorded: set unrecorded: true in a class of admission.classes, "
            "or remove this key"
        )
        yield ("journal", "on_unavailable"), message
    for name in [] if goes_on else allowed:
        message = (
            "has no effect where journal.on_unavailable is refuse: remove this key, "
            "or set journal.on_unavailable to continue_unrecorded"
        )
        yield ("admission", "classes", str(name), "unrecorded"), message


def _find_jobs_conflicts(data: Mapping) -> Iterator[tuple[Location, str]]:
    if isinstance(data.get("jobs"), dict):
        at = ("jobs", "journal", "limits")
        yield from find_jobs_conflicts(*(_section(data, (name,)) for name in at))


def _find_job_socket_conflicts(data: Mapping) -> Iterator[tuple[Location, str]]:
    if data.get("jobs") is None:
        return
    envoy, sidecar = _section(data, ("envoy",)), _section(data, ("sidecar",))
    if envoy.get("egress_socket") is None and "port" in sidecar and "socket" not in sidecar:
        message = (
            "Envoy takes the runs of jobs at a Unix socket: set sidecar.socket, or envoy.egress_socket "
            "in a directory that the sidecar reaches too"
        )
        yield ("jobs",), message
    own, beside = sidecar.get("socket", DEFAULT_SIDECAR_SOCKET), envoy.get("egress_socket")
    base = own if beside is None else beside
    place = f"{base.rpartition('/')[0]}/jobs.sock" if isinstance(base, str) else None
    for at in (("sidecar", "socket"), ("envoy", "egress_socket"), ("tools", "listener", "socket")):
        if place is not None and _section(data, at[:-1]).get(at[-1]) == place:
            yield at, "the path of Envoy's own socket for jobs: write another"


def _find_ladder_mistakes(data: Mapping) -> Iterator[tuple[Location, str]]:
    pools = {str(pool.get("name")) for _, pool in _items(data.get("pools"))}
    has_jobs = data.get("jobs") is not None
    for name, one in _section(data, ("admission", "classes")).items():
        if isinstance(one, dict) and isinstance(name, str):
            at = ("admission", "classes", name, "ladder")
            yield from find_ladder_mistakes(
                one.get("ladder"), at, one.get("side_effects"), pools, has_jobs=has_jobs
            )


def _is_socket_path(path: str) -> bool:
    try:
        check_socket_path(path)
    except PydanticCustomError:
        return False
    return True


_NO_SECTION: Mapping = {}
"""Stands for a section that is switched off or has the wrong form."""


def _section(data: Mapping, at: tuple[str, ...]) -> Mapping:
    section: object = data
    for name in at:
        section = section.get(name, {}) if isinstance(section, dict) else _NO_SECTION
    return section if isinstance(section, dict) else _NO_SECTION


def _items(value: object) -> Iterator[tuple[int, Mapping]]:
    return ((i, one) for i, one in enumerate(_list(value)) if isinstance(one, dict))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _origin(url: object) -> str | None:
    """In the form of a derived id."""
    if not isinstance(url, str):
        return None
    try:
        origin = parse_replica_url(url)
    except PydanticCustomError:
        return None
    return f"{origin.host}:{origin.port}"
