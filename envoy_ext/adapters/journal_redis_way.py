"""The way to the Redis server that has the journal.

It is one server, or the master that Sentinels name, or the node of a Cluster that has the slot.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, SlotNotCoveredError

from envoy_ext.domain.errors import JournalUnavailable

CONNECT_S: Final = 1.0
"""How long a connection may take to come about; on one network it takes milliseconds."""
ANSWER_S: Final = 1.5
"""How long an answer may take beside a wait for replicas; an fsync of a busy disk takes some 0.1 s."""
CONNECTIONS: Final = 8
"""The most that one gateway opens to a server: what is asked at once shares one (`journal_redis_lane`)."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user's name and password; neither is ever shown."""

    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """Where a Redis journal is, and how to get in.

    Exactly one of `socket`, `nodes` without `service`, and `nodes` (of Sentinels) with `service`.
    """

    nodes: tuple[tuple[str, int], ...] = ()
    socket: str | None = None
    service: str | None = None
    """The name by which Sentinels know the master."""
    cluster: bool = False
    db: int = 0
    tls: bool = False
    ca_file: str | None = None
    """None: the system's own CAs."""
    cert_file: str | None = None
    """What this gateway shows a server that asks for a certificate, with its key."""
    key_file: str | None = None
    login: Login = Login()
    sentinel_login: Login = Login()

    @property
    def shown(self) -> str:
        """For people: without any name or password."""
        if self.socket is not None:
            return f"unix://{self.socket}" + (f"?db={self.db}" if self.db else "")
        nodes = ", ".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes
        )
        if self.service is not None:
            return f"the master of {self.service} (sentinels {nodes})"
        return f"{'rediss' if self.tls else 'redis'}://{nodes}" + (f"/{self.db}" if self.db else "")


class Way(Protocol):
    """Leads to the server that has the keys. Used from one event loop."""

    @property
    def follows(self) -> bool:
        """Whether it can find the node that another one names (MOVED, ASK)."""

    async def find(self) -> "Redis":
        """The server to ask now. May ask others where it is; raises what redis-py does when nobody knows."""

    async def mend(self) -> None:
        """After a fault: forget what may be out of date, so that the next `find` looks again."""

    async def close(self) -> None:
        """Drop every connection."""


def build_way(place: RedisPlace, key: str, answer_s: float = ANSWER_S) -> Way:
    """The way to the server that has this key. Connects to nothing yet.

    Raises:
        JournalUnavailable: a file of the TLS settings cannot be used.
    """
    options = _build_options(place, place.login, answer_s)
    if place.cluster:
        return _ClusterWay(place, options, key)
    if place.service is not None:
        return _SentinelWay(place, options, answer_s)
    return _ServerWay(place, options)


def _build_options(place: RedisPlace, login: Login, answer_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": login.username,
        "password": login.password,
        "socket_timeout": answer_s,
        "socket_connect_timeout": CONNECT_S,
        # The lane repeats calls, which knows what may be repeated and for how long.
        "retry": Retry(NoBackoff(), 0),
        # Else a CLIENT SETINFO begins each connection, which a narrow ACL refuses.
        "driver_info": None,
        "protocol": 2,
        **_drop_what_is_given_up(answer_s),
    }
    if place.tls:
        _check_tls_files(place)
        options |= {
            "ssl": True,
            "ssl_ca_certs": place.ca_file,
            "ssl_certfile": place.cert_file,
            "ssl_keyfile": place.key_file,
            "ssl_check_hostname": True,
        }
    return options


def _drop_what_is_given_up(answer_s: float) -> dict[str, Any]:
    """Options by which the kernel stops sending what no answer is waited for any more.

    A closed connection goes on to send what the network has not taken, for many minutes; a begin that its
    caller has given up would come about when a cut network heals. Linux; RFC 5482.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return {}
    option = {socket.TCP_USER_TIMEOUT: round(answer_s * 1000)}
    return {"socket_keepalive": True, "socket_keepalive_options": option}


def _check_tls_files(place: RedisPlace) -> None:
    """Read them once, so that one that cannot be used is a fault of the start, with its name."""
    at = f"the journal at {place.shown} cannot be opened"
    for key in ("ca_file", "cert_file", "key_file"):
        path: str | None = getattr(place, key)
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as fault:
            raise JournalUnavailable(
                f"{at}: journal.{key}: {path} cannot be read: {fault.strerror}"
            ) from fault
    try:
        context = ssl.create_default_context(cafile=place.ca_file)
    except OSError as fault:  # an SSLError is one
        raise JournalUnavailable(f"{at}: journal.ca_file holds no certificate in PEM form") from fault
    try:
        if place.cert_file is not None:
            context.load_cert_chain(place.cert_file, place.key_file)
    except OSError as fault:
        raise JournalUnavailable(
            f"{at}: journal.cert_file and journal.key_file are not a certificate and its key in PEM form"
        ) from fault


class _ServerWay:
    """One server, by its address or its socket."""

    follows: Final = False

    def __init__(self, place: RedisPlace, options: Mapping[str, Any]) -> None:
        if place.socket is not None:
            self._client = Redis(
                unix_socket_path=place.socket, db=place.db, max_connections=CONNECTIONS, **options
            )
        else:
            host, port = place.nodes[0]
            self._client = Redis(host=host, port=port, db=place.db, max_connections=CONNECTIONS, **options)

    async def find(self) -> Redis:
        return self._client

    async def mend(self) -> None:
        # The name may lead to another server by now, as those of hosted services do after a failover.
        await self._client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        await self._client.aclose()


class _SentinelWay:
    """Whichever server is the master: each new connection asks the Sentinels first."""

    follows: Final = False

    def __init__(self, place: RedisPlace, options: Mapping[str, Any], answer_s: float) -> None:
        asked = _build_options(place, place.sentinel_login, answer_s)
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call]
            list(place.nodes), sentinel_kwargs=asked, **options
        )
        self._client: Redis = self._sentinel.master_for(
            place.service or "", db=place.db, max_connections=CONNECTIONS
        )

    async def find(self) -> Redis:
        return self._client

    async def mend(self) -> None:
        await self._client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        await self._client.aclose()
        for sentinel in self._sentinel.sentinels:
            await sentinel.aclose()


class _ClusterWay:
    """The node of a Cluster that has the slot. The cluster's client only says which one that is.

    Calls and the WAIT behind them need one connection, which its client for all nodes does not promise.
    """

    follows: Final = True

    def __init__(self, place: RedisPlace, options: Mapping[str, Any], key: str) -> None:
        self._options = options
        self._key = key
        host, port = place.nodes[0]
        self._cluster = RedisCluster(
            host=host,
            port=port,
            # Only the slot that is asked for matters here.
            require_full_coverage=False,
            **options,
        )
        self._client: Redis | None = None
        self._finding = asyncio.Lock()

    async def find(self) -> Redis:
        async with self._finding:
            if self._client is None:
                self._client = await self._find_node()
            return self._client

    async def _find_node(self) -> Redis:
        await self._cluster.initialize()
        try:
            node = self._cluster.get_node_from_key(self._key)
        except SlotNotCoveredError as error:
            raise RedisConnectionError("no node of the cluster has the slot of the journal") from error
        if node is None:
            raise RedisClusterException("no node of the cluster has the slot of the journal")
        return Redis(host=node.host, port=int(node.port), max_connections=CONNECTIONS, **self._options)

    async def mend(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        await self._cluster.aclose()

    async def close(self) -> None:
        await self.mend()
