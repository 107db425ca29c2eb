"""The configuration file as one frozen model; every default stands here or in the section it belongs to."""

from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.callers import Callers
from envoy_ext.config.failure_policy import OnUpstreamFailure
from envoy_ext.config.idempotency import Idempotency
from envoy_ext.config.jobs import DEFAULT_WAITING_BYTES, DEFAULT_WAITING_BYTES_IN_MEMORY, Jobs
from envoy_ext.config.journal import Journal
from envoy_ext.config.ladder import OrRefuse, Rung
from envoy_ext.config.pools import BOUNDARY, Pool
from envoy_ext.config.quantities import Duration, DurationOrZero, SizeBetween, WaitOrZero
from envoy_ext.config.section import (
    SHORT_NAME,
    IpAddress,
    ListenPort,
    ListOf,
    NotEmpty,
    Port,
    Section,
    SocketPath,
    check_socket_path,
)
from envoy_ext.config.tools import Tools
from envoy_ext.domain.errors import ConfigError

DEFAULT_SIDECAR_SOCKET = "/run/envoy-ext/sidecar.sock"
STREAMS_SOCKET = "streams.sock"
"""The native transport's, beside the sidecar's socket."""


class Ingress(Section):
    """Where clients connect."""

    address: IpAddress = "0.0.0.0"
    port: ListenPort = 8080


class Operations(Section):
    """The port for operators: health, metrics, the journal."""

    address: IpAddress = "127.0.0.1"
    port: ListenPort = 9902
    token_file: str | None = None
    """Holds the bearer token for everything that changes state; None: only loopback may change state."""


class Sidecar(Section):
    """Where Envoy reaches the sidecar's gRPC server: a Unix socket, or an address and a port."""

    socket: SocketPath | None = None
    address: IpAddress | None = None
    port: Port | None = None
    transport: Literal["native", "grpc_aio"] | None = None
    """What carries the streams of requests: `grpc_aio`, gRPC's own server; `native`, one of our own beside
    it, which costs a fraction of that and serves an Envoy on the same host alone. None: `native` where a
    place is given for it, which `socket` and `streams_port` do."""
    streams_port: Port | None = None
    """Where `native` listens beside `port`. Beside `socket` it is the socket `streams.sock`."""

    @property
    def native(self) -> bool:
        """Whether the streams of requests go over the native transport."""
        if self.transport is None:
            return self.socket is not None or self.streams_port is not None
        return self.transport == "native"

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if self.socket is not None and (self.address is not None or self.port is not None):
            raise PydanticCustomError("sidecar", "has socket and address/port: keep one of the two")
        if self.socket is None and self.port is None:
            raise PydanticCustomError("sidecar", "needs socket, or address and port")
        if self.socket is None and self.address is None:
            raise PydanticCustomError("sidecar", "needs an address beside port, such as 127.0.0.1")
        return self

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        native = self.native
        if self.streams_port is not None and not (native and self.port is not None):
            raise PydanticCustomError(
                "sidecar", "has streams_port, which is for transport: native beside a port: remove it"
            )
        if not native or self.address is None:
            return self
        if not ip_address(self.address).is_loopback:
            raise PydanticCustomError(
                "sidecar",
                "has a native transport, which is for an Envoy on the same host: set address to 127.0.0.1, "
                "or write socket in its place, or remove streams_port and set transport to grpc_aio",
            )
        if self.streams_port is None:
            raise PydanticCustomError(
                "sidecar", "needs streams_port, where transport: native listens beside port"
            )
        return self


class Admin(Section):
    """Envoy's own admin port: whoever reaches it can stop Envoy, so keep it on loopback."""

    address: IpAddress = "127.0.0.1"
    port: ListenPort = 9901


class Envoy(Section):
    concurrency: Annotated[int, Field(ge=1, le=256)] = 2
    """Worker threads."""
    admin: Admin | None = Admin()
    """None: no admin port."""
    resources: Literal["static", "xds"] = "static"
    """Where Envoy has its clusters, listeners and routes from: `static`, from its bootstrap; `xds`, from
    the sidecar, so that a changed configuration needs a restart of the sidecar and none of Envoy."""
    endpoints: Literal["static", "xds"] = "xds"
    """Where Envoy has the replicas from: `xds`, from the sidecar, with health and weight, so that new
    work follows `readiness`; `static`, from the bootstrap. Always `xds` where `resources` are."""
    egress_socket: SocketPath | None = None
    """The Unix socket between Envoy's two listeners; None: `egress.sock` beside the sidecar's socket."""


LEAST_LAG_S: Final = 0.01
"""A loop that has enough to do is late by some milliseconds, and does all of it."""


def _check_lag(seconds: float) -> float:
    if 0 < seconds < LEAST_LAG_S:
        raise PydanticCustomError(
            "lag", "must be at least 10ms: a busy loop is late by some of them; or 0, which refuses nothing"
        )
    return seconds


MOST_REQUESTS: Final = 50_000
"""A request whose answer is waited for takes two of the 100,000 streams that Envoy opens to the sidecar."""


class Limits(Section):
    max_requests: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] = 20_000
    """In flight at once, over all pools, with those that wait for a slot; what comes beyond them gets 429."""
    max_request_bytes: Annotated[int, SizeBetween("1KiB", "1GiB")] = 16 << 20
    """Larger bodies get 413; up to it a body can be replayed."""
    max_sse_event_bytes: Annotated[int, SizeBetween("1KiB", "256MiB")] = 1 << 20
    """A stream with a larger event passes on unwatched."""
    client_write_stall: Duration = 60.0
    """How long a client may take nothing of what waits for it."""
    max_event_loop_lag: Annotated[DurationOrZero, AfterValidator(_check_lag)] = 0.1
    """Above it, when it lasts, new requests are refused; 0: never."""


class RetryBudget(Section):
    """Replays that may run at once: a share of the requests in flight, and never fewer than a few."""

    percent: Annotated[float, Field(ge=0, le=100)] = 20.0
    min_concurrency: Annotated[int, Field(ge=0, le=100_000)] = 3


class LeaseDoor(Section):
    """Where workers beside the engines reach the lease service."""

    address: IpAddress = "127.0.0.1"
    port: ListenPort


class Lease(Section):
    ttl: Duration = 6.0
    renew: Duration = 2.0
    margin: Duration = 1.0
    """What the gateway waits beyond the last moment a worker could believe in its lease."""
    http: LeaseDoor | None = None
    """None: no worker is expected. Set it to an address that replicas reach, and no client."""
    grpc: LeaseDoor | None = None

    @model_validator(mode="after")
    def _check_renewal(self) -> Self:
        if self.renew * 2 > self.ttl:
            raise PydanticCustomError(
                "order", "renew must be at most half of ttl, so that one lost renewal does not end a lease"
            )
        return self


class TrafficClass(Section):
    """Requests with this name in `x-request-class`. `default` is the class of all others."""

    weight: Annotated[int, Field(ge=1, le=100)] = 1
    """Its part of the slots, while others of its priority wait too."""
    priority: Annotated[int, Field(ge=0, le=100)] = 0
    """Higher goes first, and can keep lower ones waiting for good."""
    max_wait: WaitOrZero | None = None
    """None: that of `admission`."""
    unrecorded: bool = False
    """Whether its requests may run while nothing can be recorded (`journal.on_unavailable`)."""
    ladder: ListOf[Annotated[Rung, OrRefuse()]] = ()
    """What is given up, in this order, before one of its requests is refused."""
    side_effects: bool = False
    """Its operations act on the world: they are run as they are, or refused."""


class Admission(Section):
    """What happens to requests that find no slot (`capacity.concurrency`) free."""

    queue: Annotated[int, Field(ge=0, le=10_000)] = 256
    """Requests that may wait, for each pool."""
    max_wait: WaitOrZero = 30.0
    """The longest that one waits."""
    classes: dict[Annotated[str, SHORT_NAME], TrafficClass] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )


class DataClass(Section):
    """Requests with this name in `x-data-class`. `default` is the class of those without one."""

    boundaries: Annotated[ListOf[Annotated[str, BOUNDARY]], NotEmpty()]
    """Those that their prompts may cross, each by its full name."""


class Shutdown(Section):
    grace: DurationOrZero = 30.0
    """How long streams in flight may finish after SIGTERM."""


def _check_prefix(prefix: str) -> str:
    if not prefix.startswith("/") or any(c in prefix for c in "?#") or not prefix.isprintable():
        raise PydanticCustomError("prefix", "not a path prefix: write /metrics or /v1/audio/")
    return prefix


PathPrefix = Annotated[
    str, AfterValidator(_check_prefix), WithJsonSchema({"type": "string", "pattern": "^/[^?#]*$"})
]


class Config(Section):
    """Everything the sidecar and Envoy's bootstrap are built from."""

    pools: Annotated[ListOf[Pool], NotEmpty()]
    ingress: Ingress = Ingress()
    operations: Operations = Operations()
    sidecar: Sidecar = Sidecar(socket=DEFAULT_SIDECAR_SOCKET)
    envoy: Envoy = Envoy()
    journal: Journal = Journal()
    limits: Limits = Limits()
    retry_budget: RetryBudget = RetryBudget()
    lease: Lease = Lease()
    on_upstream_failure: OnUpstreamFailure = OnUpstreamFailure()
    admission: Admission = Admission()
    tools: Tools | None = None
    """None: no tool listener, and nothing of a tool is known."""
    data_classes: dict[Annotated[str, SHORT_NAME], DataClass] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )
    """Which pools a request may reach, by the class of its data. Without `default` here, that class
    reaches local pools only."""
    callers: Callers | None = None
    """None: everybody is let in, and no credential is checked."""
    idempotency: Idempotency = Idempotency()
    jobs: Jobs | None = None
    """None: no request becomes a job. `{}` is enough to have them."""
    pass_through: ListOf[PathPrefix] = ()
    """Prefixes of paths that pass unwatched; any other path that is no inference API is refused."""
    shutdown: Shutdown = Shutdown()

    @property
    def max_waiting_bytes(self) -> int:
        """`jobs.max_waiting_bytes`, or what stands for it."""
        in_memory = self.journal.store == "memory"
        default = DEFAULT_WAITING_BYTES_IN_MEMORY if in_memory else DEFAULT_WAITING_BYTES
        return default if self.jobs is None else self.jobs.max_waiting_bytes or default

    @property
    def egress_socket(self) -> str:
        """The Unix socket between Envoy's two listeners."""
        if self.envoy.egress_socket is not None:
            return self.envoy.egress_socket
        return str(PurePosixPath(self.sidecar.socket or DEFAULT_SIDECAR_SOCKET).with_name("egress.sock"))

    @property
    def jobs_socket(self) -> str:
        """The Unix socket at which Envoy takes the runs of jobs: beside the one between its two listeners."""
        return str(PurePosixPath(self.egress_socket).with_name("jobs.sock"))

    @property
    def streams_socket(self) -> str | None:
        """The Unix socket of the native transport; None where there is none, or it listens at a port."""
        sidecar = self.sidecar
        if not sidecar.native or sidecar.socket is None:
            return None
        return str(PurePosixPath(sidecar.socket).with_name(STREAMS_SOCKET))

    def with_sockets_in(self, directory: str) -> "Config":
        """The same configuration with all Unix sockets in one private directory."""
        sidecar, egress = f"{directory}/sidecar.sock", f"{directory}/egress.sock"
        try:
            check_socket_path(sidecar)
        except PydanticCustomError as mistake:
            raise ConfigError([f"{sidecar}: {mistake.message()}"]) from None
        sockets = {
            "sidecar": Sidecar(socket=sidecar, transport=self.sidecar.transport),
            "envoy": self.envoy.model_copy(update={"egress_socket": egress}),
        }
        return self.model_copy(update=sockets)
