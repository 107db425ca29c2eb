"""`/metrics` with the names of vLLM V1 (0.12 and later), one registry for each engine."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from envoy_ext.sim.control import LoadControl
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.state import EngineState

FINISHED_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
_ENGINE: Final = "0"
# vLLM's own bounds, thinned out.
_SECONDS: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    40.0,
    160.0,
)
_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class SimMetrics:
    """The families that readers of vLLM's page use, and some that were seen to confuse them."""

    def __init__(
        self, options: SimOptions, state: EngineState, started_at: float, load: LoadControl | None = None
    ) -> None:
        self._load = load or LoadControl()
        self._registry = CollectorRegistry()
        self._model = options.models[0]
        # An engine stands for a process: a restarted one shows another incarnation even when
        # both live in one test process.
        start = Gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            registry=self._registry,
        )
        start.set(started_at)
        self._build_gauges(options, state)
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Number of prefill tokens processed.")
        self.generation_tokens = self._counter(
            "vllm:generation_tokens", "Number of generation tokens processed."
        )
        self._counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.")
        self._success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            ["engine", "finished_reason", "model_name"],
            registry=self._registry,
        )
        for reason in FINISHED_REASONS:
            self._success.labels(_ENGINE, reason, self._model)
        self.iteration_tokens = self._histogram(
            "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _TOKENS
        )
        self.first_token_s = self._histogram(
            "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _SECONDS
        )
        self.request_s = self._histogram(
            "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _SECONDS
        )

    def count_finished(self, reason: str) -> None:
        """Count one ended request by vLLM's word for its end."""
        self._success.labels(_ENGINE, reason, self._model).inc()

    def expose(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def _build_gauges(self, options: SimOptions, state: EngineState) -> None:
        running = self._gauge("vllm:num_requests_running", "Number of requests in model execution batches.")
        running.labels(_ENGINE, self._model).set_function(lambda: self._load.read("running", state.running))
        waiting = self._gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.")
        waiting.labels(_ENGINE, self._model).set_function(lambda: self._load.read("waiting", state.waiting))
        by_reason = self._gauge(
            "vllm:num_requests_waiting_by_reason", "Number of requests waiting, by reason.", "reason"
        )
        by_reason.labels(_ENGINE, self._model, "capacity").set_function(
            lambda: self._load.read("waiting", state.waiting)
        )
        by_reason.labels(_ENGINE, self._model, "deferred").set(0)
        kv_cache = self._gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        capacity = options.kv_capacity_tokens
        kv_cache.labels(_ENGINE, self._model).set_function(
            lambda: self._load.read("kv_cache_usage", min(1.0, state.kv_tokens / capacity))
        )
        sleep = self._gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 1.", "sleep_state")
        for word in ("awake", "weights_offloaded", "discard_all"):
            sleep.labels(_ENGINE, self._model, word).set(word == "awake")

        info = Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            ["cache_dtype", "engine"],
            registry=self._registry,
        )
        info.labels(options.cache_dtype, _ENGINE).set(1)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, ["engine", "model_name", *labels], registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        family = Counter(name, text, ["engine", "model_name"], registry=self._registry)
        return family.labels(_ENGINE, self._model)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        family = Histogram(
            name, text, ["engine", "model_name"], registry=self._registry, buckets=tuple(buckets)
        )
        return family.labels(_ENGINE, self._model)
