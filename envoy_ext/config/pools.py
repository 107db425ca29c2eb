"""Pools and their replicas, and how each replica is judged."""

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.circuit import Circuit
from envoy_ext.config.discovery import Discovery
from envoy_ext.config.quantities import Duration, DurationOrZero
from envoy_ext.config.section import SHORT_NAME, ListOf, Matching, NotEmpty, Section, Word
from envoy_ext.config.urls import MetricsUrl, Origin, parse_replica_url
from envoy_ext.domain.ids import PoolName, ReplicaId

REPLICA_ID: Final = Matching(
    r"[A-Za-z0-9._:-]{1,64}",
    "1 to 64 of A-Z, a-z, 0-9, dot, underscore, colon and - (it is host:port unless given)",
)


def _check_replica_url(url: str) -> str:
    parse_replica_url(url)
    return url


class Replica(Section):
    """One engine endpoint. `id` is `host:port` unless given."""

    id: Annotated[ReplicaId, REPLICA_ID] = ReplicaId("")
    url: Annotated[
        str,
        AfterValidator(_check_replica_url),
        WithJsonSchema({"type": "string", "pattern": "^http://[^/?#@]+/?$"}),
    ]
    metrics_url: MetricsUrl | None = None
    """None: `/metrics` of `url`."""
    dcgm_url: MetricsUrl | None = None
    gpus: ListOf[Annotated[int, Field(ge=0)]] = ()
    node: Word | None = None
    zone: Word | None = None

    @model_validator(mode="before")
    @classmethod
    def _derive_id(cls, data: object) -> object:
        """Host and port rather than a number in the list: a journal outlives a change of the list's order."""
        if not isinstance(data, dict) or "id" in data or not isinstance(data.get("url"), str):
            return data
        try:
            origin = parse_replica_url(data["url"])
        except PydanticCustomError:
            return data  # the url's own line says it
        return {**data, "id": f"{origin.host}:{origin.port}"}

    @property
    def origin(self) -> Origin:
        return parse_replica_url(self.url)


class Fingerprint(Section):
    """What two replicas must have in common for one to answer in the other's place.

    What is not given is not known. Where an engine tells a value itself, in its own words, that counts.
    """

    weights: Word | None = None
    quantization: Word | None = None
    tokenizer: Word | None = None
    chat_template: Word | None = None
    kv_dtype: Word | None = None
    parallel: Word | None = None
    adapters: ListOf[Word] | None = None
    """[] says that none are loaded; not given is not known."""


class Hysteresis(Section):
    """Two thresholds: a replica leaves at one and returns at the other, and between them nothing moves."""

    leave: Annotated[float, Field(gt=0)]
    return_: Annotated[float, Field(ge=0, alias="return")]

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.return_ >= self.leave:
            raise PydanticCustomError(
                "order", "return must be below leave, or a replica would come and go at one value"
            )
        return self


def _check_share(thresholds: Hysteresis) -> Hysteresis:
    if thresholds.leave > 1:
        raise PydanticCustomError("share", "leave is a share of the cache: at most 1, such as 0.95 for 95 %")
    return thresholds


class Readiness(Section):
    """When a replica gets work."""

    watch: bool = True
    """True: the replicas' own metrics and a control call decide. False: nobody looks at them, every
    configured replica is ready, and those that failed of late come last for a replay."""
    scrape: Duration = 1.0
    stale: Duration = 10.0
    """Metrics older than this say nothing."""
    hold: DurationOrZero = 5.0
    """How long a signal must last before it changes anything."""
    waiting: Hysteresis = Hysteresis.model_validate({"leave": 16, "return": 4})
    """Requests in the engine's own queue."""
    kv_cache: Annotated[Hysteresis, AfterValidator(_check_share)] = Hysteresis.model_validate(
        {"leave": 0.95, "return": 0.85}
    )
    gpu_temperature: Hysteresis = Hysteresis.model_validate({"leave": 90, "return": 80})
    """Degrees Celsius."""
    hang: Duration = 120.0
    """No progress for this long, with work in hand."""
    warmup: bool = True
    """Ask a replica for one token before it gets work."""

    @model_validator(mode="after")
    def _check_scrape(self) -> Self:
        if self.stale <= self.scrape:
            raise PydanticCustomError(
                "order", "stale must be longer than scrape, or every sample is stale before the next one"
            )
        return self


Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""In whatever currency people think in."""


class Cost(Section):
    """What people know and no metric tells: `envoy-ext capacity` reckons with it what a spare is worth."""

    downtime_per_hour: Money
    """What an hour costs in which none of the pool's work is done."""
    replica_per_hour: Money
    """What an hour of one replica costs."""
    failures_per_year: Annotated[float, Field(ge=0, le=8760)]
    """How often one replica fails."""
    recovery: Duration
    """From its failure until it serves again: notice, restart, model load."""
    currency: Annotated[str, Matching(r"[A-Z]{3}", "a currency's three letters, such as EUR")] | None = None


ASSUMED_CONCURRENCY: Final = 32


class Capacity(Section):
    """How much work one replica can hold, and what losing one costs."""

    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Requests it computes at once; an engine that tells a lower limit is believed. What is more waits in
    the gateway's queue. None: nothing waits there, unless the engine tells a limit, and weights and
    N+1 are reckoned with `ASSUMED_CONCURRENCY`."""
    cost: Cost | None = None

    @property
    def assumed_concurrency(self) -> int:
        """The figure to reckon with where one is needed."""
        return ASSUMED_CONCURRENCY if self.concurrency is None else self.concurrency


BOUNDARY: Final = Matching(r"local|site|external:[a-z0-9-]{1,40}", "local, site or external:<name>")


class Pool(Section):
    """The replicas that serve the same models with the same fingerprint."""

    name: Annotated[PoolName, SHORT_NAME]
    models: Annotated[ListOf[Word], NotEmpty()]
    engine: Literal["vllm", "sglang", "llamacpp", "tgi", "triton", "trtllm", "generic"] = "generic"
    boundary: Annotated[str, BOUNDARY] = "local"
    """Where a prompt goes when this pool answers it."""
    fingerprint: Fingerprint = Fingerprint()
    discovery: Discovery = Discovery(static=True)
    api_key_file: Annotated[str, Field(min_length=1)] | None = None
    """Holds the key that its replicas ask for. None: they are sent the client's credentials, or none."""
    replicas: ListOf[Replica] = ()
    """The static list; none where `discovery` finds them."""
    readiness: Readiness = Readiness()
    circuit: Circuit = Circuit()
    capacity: Capacity = Capacity()
