"""Where the journal is kept."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.quantities import Duration, Retention, SizeBetween, parse_duration
from envoy_ext.config.section import ListOf, Matching, NotEmpty, Section, Word

LONGEST_REPLICA_WAIT_S: Final = 5.0
"""Every write waits for so long when a replica is away, and a gateway's beats are writes too."""
_URL_FORM: Final = "not a URL of the form redis://host:6379, rediss://host:6379 or unix:///run/redis.sock"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """What a URL of a Redis server says. Names and passwords are never shown."""

    tls: bool
    host: str
    """"" where `socket` is given."""
    port: int
    socket: str | None
    db: int
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)


def parse_redis_url(url: str) -> RedisUrl:
    """The parts of a Redis URL, or an error that says what is wrong, and repeats nothing of it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _mistake(_URL_FORM) from None
    if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment or not url.isprintable():
        raise _mistake(_URL_FORM)
    is_socket = parts.scheme == "unix"
    if is_socket and (parts.hostname or not parts.path.strip("/")):
        raise _mistake("a socket is written as unix:///run/redis.sock, with three slashes")
    if not is_socket and (not parts.hostname or port == 0 or " " in parts.netloc):
        raise _mistake(_URL_FORM)
    return RedisUrl(
        tls=parts.scheme == "rediss",
        host=parts.hostname or "",
        port=port or 6379,
        socket=unquote(parts.path) if is_socket else None,
        db=_read_db(parts, in_path=not is_socket),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )


def _read_db(parts: SplitResult, *, in_path: bool) -> int:
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    text = query.pop("db", None)
    if query:
        raise _mistake("its query may hold db alone: what else there is to say has keys of its own")
    if in_path and parts.path.strip("/"):
        if text is not None:
            raise _mistake("names the database twice: keep /N or ?db=N")
        text = parts.path.strip("/")
    if text is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise _mistake("the database is a number, such as redis://host:6379/0")
    return int(text)


def _mistake(message: str) -> PydanticCustomError:
    return PydanticCustomError("redis_url", "{message}", {"message": message})


def _check_redis_url(url: str) -> str:
    parse_redis_url(url)
    return url


RedisUrlText = Annotated[
    str,
    AfterValidator(_check_redis_url),
    WithJsonSchema({"type": "string", "pattern": r"^(rediss?://[^\s#]+|unix:(//[^/\s]*)?/[^\s#]+)$"}),
]


def _check_node(value: str) -> str:
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s/@:\[\]?#]+):[0-9]{1,5}", value) or not (
        1 <= int(value.rpartition(":")[2]) <= 65535
    ):
        raise PydanticCustomError("node", "must be host:port, such as sentinel-1.example:26379")
    return value


Node = Annotated[
    str, AfterValidator(_check_node), WithJsonSchema({"type": "string", "pattern": r"^[^/?#@\s]+:\d{1,5}$"})
]


def _parse_replica_wait(value: object) -> float:
    seconds = parse_duration(value)
    if not 0 < seconds <= LONGEST_REPLICA_WAIT_S:
        raise PydanticCustomError("duration", "must be more than 0 and at most 5s: each write may take it")
    return seconds


ReplicaWait = Annotated[
    float,
    BeforeValidator(_parse_replica_wait),
    WithJsonSchema(
        {
            "description": "30s, 500ms, 2m or 1h; a bare number is seconds",
            "anyOf": [
                {"type": "string", "pattern": r"^\s*\d+(\.\d+)?(ms|s|m|h)\s*$"},
                {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_REPLICA_WAIT_S},
            ],
        }
    ),
]


class Sentinel(Section):
    """The Sentinels that know which server is the master."""

    service: Word
    """The master's name there."""
    nodes: Annotated[ListOf[Node], NotEmpty()]
    db: Annotated[int, Field(ge=0, le=99_999)] = 0
    """The database at the master."""
    tls: bool = False
    """Whether the Sentinels and the servers speak TLS."""
    username: str | None = None
    """At the Sentinels themselves; the servers' stand in `journal`."""
    password_file: str | None = None

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each."""
        return tuple(
            (host.strip("[]"), int(port)) for host, _, port in (one.rpartition(":") for one in self.nodes)
        )


LONGEST_CALL_S: Final = 4.0
"""Envoy gives a request up that has heard nothing of its sidecar for 5 s."""


def _check_timeout(seconds: float) -> float:
    if seconds > LONGEST_CALL_S:
        raise PydanticCustomError(
            "timeout",
            "longer than {longest}s: Envoy gives a request up after 5s, before it could be refused",
            {"longest": f"{LONGEST_CALL_S:g}"},
        )
    return seconds


class Journal(Section):
    store: Literal["memory", "sqlite", "redis"] = "sqlite"
    path: Annotated[str, Field(min_length=1)] = "envoy-ext.db"
    synchronous: Literal["full", "normal"] = "normal"
    """In WAL mode `normal` survives the death of the process; `full` also survives power loss."""
    shared: bool = False
    """Whether other sidecars on this machine use the same file; all of them must say so. Redis is shared by
    nature."""
    timeout: Annotated[Duration, AfterValidator(_check_timeout)] = 3.0
    """How long one call to the store may take. Longer than the 2 s that SQLite waits for a lock, so that its
    own words are heard."""
    on_unavailable: Literal["refuse", "continue_unrecorded"] = "refuse"
    """What happens to new work while the store is down: none of it is taken, or that of the classes
    whose `unrecorded` is true goes on without a record."""
    retention: Retention = 7 * 86_400.0
    """How long an operation is kept after its end, with its kept answer and the results of its tools' calls.
    A key that comes again later begins a new operation."""
    max_operations: Annotated[int, Field(ge=1_000, le=1_000_000_000)] | None = None
    """Beyond it those that ended first go before their time. None: 1,000,000, and 50,000 in memory."""
    max_bytes: Annotated[int, SizeBetween("16MiB", "1024GiB")] | None = None
    """The same, by what they take in the file, or as text in memory. None: 4 GiB, and 256 MiB in memory."""
    url: Annotated[RedisUrlText | None, Field(repr=False)] = None
    """The Redis server, or a node of its cluster. A password may stand in it; a file is the better place."""
    sentinel: Sentinel | None = None
    """In place of `url`."""
    cluster: bool = False
    """Whether `url` names a node of a Redis Cluster."""
    username: str | None = None
    password_file: str | None = None
    """Read at the start."""
    ca_file: str | None = None
    """None: the system's own CAs."""
    cert_file: str | None = None
    """What is shown to a server that asks for a certificate (`tls-auth-clients`), with its key."""
    key_file: str | None = None
    prefix: Annotated[str, Matching(r"[A-Za-z0-9._:/-]{1,64}", "1 to 64 letters, digits, and . _ : / -")] = (
        "envoy-ext"
    )
    """Of the keys at Redis. Gateways that share a journal have the same."""
    wait_replicas: Annotated[int, Field(ge=0, le=16)] = 0
    """How many replicas are to have a write before it counts as done."""
    wait_timeout: ReplicaWait = 1.0
    """How long they may take for it."""

    @model_validator(mode="after")
    def _check_replica_wait(self) -> Self:
        if self.wait_replicas and self.wait_timeout >= self.timeout:
            raise PydanticCustomError(
                "order", "wait_timeout must be shorter than timeout, which is the bound of a whole call"
            )
        return self

    @model_validator(mode="after")
    def _check_shared(self) -> Self:
        if self.shared and self.store == "memory":
            raise PydanticCustomError(
                "shared", "memory belongs to one process: only a sqlite journal can be shared"
            )
        return self

    @property
    def redis_url(self) -> RedisUrl | None:
        """The parts of `url`."""
        return None if self.url is None else parse_redis_url(self.url)
