"""What one look at a replica gave: one frozen picture, in which "not known" is None and never 0."""

from dataclasses import dataclass

from envoy_ext.domain.ids import PoolName


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU, as its exporter tells; a blank (DCGM's sentinel values) is None."""

    gpu: str
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    xid: int | None = None
    """The last XID error code; 0 when there was none."""
    ecc_double_bit: float | None = None
    """Volatile double-bit errors since the driver was loaded."""
    row_remap_failure: bool | None = None
    row_remap_pending: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One scrape of one engine. A family the page did not hold is None."""

    at: float
    """Monotonic seconds when the page had been read."""
    running: float | None = None
    """Requests being computed."""
    waiting: float | None = None
    """Requests in the engine's own queue."""
    kv_cache_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    max_running: float | None = None
    """How many the engine computes at once, where it tells."""
    sleeping: bool | None = None
    """The engine gave its memory back and answers nothing until it is woken."""
    progress: float | None = None
    """A counter that moves while the engine works on anything, in prefill and decode.

    vLLM has none that moves in prefill: there `kv_cache_usage` does. SGLang without its live counter
    mixes in a gauge: there it may fall by less than 1.
    """
    allocation_failures: float | None = None
    """A counter of preemptions or refused allocations."""
    process_started_at: float | None = None
    """Unix seconds; a change is another incarnation."""
    requests_total: float | None = None
    """A counter of finished requests; falling back is another incarnation."""
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    """A look that gave nothing. `reason` is low-cardinality and a metric label."""

    at: float
    reason: str
    """refused, reset, timeout, unreachable, starved, bad_status, loading, unsupported, not_metrics,
    too_large, engine_dead; of a control call also denied, declined, model_unknown and busy.

    refused and reset are the replica's own doing; unreachable is the network's or the resolver's. A
    timeout is a weak sign, and starved is none at all: the time ran out while this process did not run.
    """
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """Where one replica's signals are."""

    url: str
    """`http://host:port`, where requests go."""
    engine: str = "generic"
    metrics_url: str | None = None
    """None: where the engine has its metrics by default."""
    dcgm_url: str | None = None
    """The GPU exporter of the replica's node, when there is one."""
    gpus: tuple[int, ...] = ()
    """The replica's GPUs by index on the node; empty: all that the exporter shows."""
    pool: PoolName | None = None
    """Whose key it asks for."""
