"""trtllm-serve, TensorRT-LLM's own server: what its page says.

Names: tensorrt_llm/metrics/collector.py. 1.0 has latencies of finished requests only, so its load is
unknown; 1.3 has the load, when started with `enable_iter_perf_stats`. `/metrics` is JSON there;
Prometheus text is at `/prometheus/metrics`.
"""

from typing import Final

from envoy_ext.adapters.engines.figures import (
    PROCESS_START,
    compute_peak,
    compute_progress,
    compute_share,
    compute_sum,
    first_known,
    read_families,
)
from envoy_ext.domain.sample import Sample

RUNNING: Final = b"trtllm_num_requests_running"
WAITING: Final = b"trtllm_num_requests_waiting"
MAX_RUNNING: Final = b"trtllm_max_num_active_requests"
KV_CACHE: Final = b"trtllm_kv_cache_utilization"
KV_USED: Final = b"trtllm_kv_cache_used_blocks"
KV_MAX: Final = b"trtllm_kv_cache_max_blocks"
FINISHED: Final = b"trtllm_request_success_total"
FINISHED_1_0: Final = b"request_success_total"
COMPLETED: Final = b"trtllm_num_requests_completed_total"

WORK: Final = (
    b"trtllm_kv_cache_missed_blocks_total",
    b"trtllm_kv_cache_reused_blocks_total",
    b"trtllm_kv_cache_gen_alloc_blocks_total",
    b"trtllm_prompt_tokens_total",
    b"trtllm_generation_tokens_total",
    COMPLETED,
)
"""Counters of work: cache blocks move in prefill and decode, the others when a request ends."""

FAMILIES: Final = frozenset(
    {
        RUNNING,
        WAITING,
        MAX_RUNNING,
        KV_CACHE,
        KV_USED,
        KV_MAX,
        FINISHED,
        FINISHED_1_0,
        *WORK,
        PROCESS_START,
    }
)


def parse_trtllm(page: bytes, at: float) -> Sample:
    """The sample of a page. Raises `NotMetrics`."""
    found = read_families(page, FAMILIES)
    kv_cache = first_known(
        compute_share(compute_peak(found.get(KV_CACHE, ()))),
        compute_share(compute_sum(found.get(KV_USED, ())), compute_sum(found.get(KV_MAX, ()))),
    )
    return Sample(
        at=at,
        running=compute_sum(found.get(RUNNING, ())),
        waiting=compute_sum(found.get(WAITING, ())),
        kv_cache_usage=kv_cache,
        max_running=compute_sum(found.get(MAX_RUNNING, ())),
        progress=compute_progress(compute_sum(found.get(name, ())) for name in WORK),
        process_started_at=compute_peak(found.get(PROCESS_START, ())),
        requests_total=first_known(
            compute_sum(found.get(FINISHED, ())),
            compute_sum(found.get(FINISHED_1_0, ())),
            compute_sum(found.get(COMPLETED, ())),
        ),
    )
