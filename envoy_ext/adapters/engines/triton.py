"""Triton with the TensorRT-LLM backend: what its page says.

Names: triton-inference-server/tensorrtllm_backend, README "Triton Metrics" (23.11 and later), and
triton-inference-server/server, docs/user_guide/metrics.md for `nv_inference_*`. One family holds
several figures, told apart by a label; the page is on a port of its own.
"""

from collections.abc import Sequence
from typing import Final

from envoy_ext.adapters.engines.exposition import Series
from envoy_ext.adapters.engines.figures import (
    PROCESS_START,
    compute_peak,
    compute_progress,
    compute_share,
    compute_sum,
    read_families,
    select,
)
from envoy_ext.domain.sample import Sample

REQUESTS: Final = b"nv_trt_llm_request_metrics"
"""By `request_type`: waiting, context, scheduled, max, active."""
KV_CACHE: Final = b"nv_trt_llm_kv_cache_block_metrics"
"""By `kv_cache_block_type`: fraction, used, free, max, tokens_per."""
GENERAL: Final = b"nv_trt_llm_general_metrics"
"""By `general_type`: iteration_counter, timestamp."""
SUCCEEDED: Final = b"nv_inference_request_success"
FAILED: Final = b"nv_inference_request_failure"
PENDING: Final = b"nv_inference_pending_request_count"
"""Triton's own queue, in front of any backend."""

BACKEND: Final = (REQUESTS, KV_CACHE, GENERAL)
"""What only the TensorRT-LLM backend writes."""
FAMILIES: Final = frozenset({*BACKEND, SUCCEEDED, FAILED, PENDING, PROCESS_START})


def parse_triton(page: bytes, at: float) -> Sample:
    """The sample of a page. Raises `NotMetrics`."""
    found = read_families(page, FAMILIES)
    requests = {
        word: select(found.get(REQUESTS, ()), "request_type", word)
        for word in ("waiting", "scheduled", "active", "max")
    }
    # An ensemble counts a request once for itself and once for each step, all under `model`: the
    # largest is the number of requests.
    finished = compute_peak(found.get(SUCCEEDED, ()))
    return Sample(
        at=at,
        # Scheduled are those in the running batch, which other routers of this field read too
        # (llm-d, TotalRunningRequests).
        running=compute_sum(requests["scheduled"] or requests["active"]),
        # Triton's own queue is empty while the backend's is deep: it speaks where there is no such backend.
        waiting=compute_sum(requests["waiting"])
        if any(name in found for name in BACKEND)
        else compute_peak(found.get(PENDING, ())),
        kv_cache_usage=_compute_kv_cache(found.get(KV_CACHE, ())),
        max_running=compute_sum(requests["max"]),
        progress=compute_progress(
            (
                compute_sum(select(found.get(GENERAL, ()), "general_type", "iteration_counter")),
                compute_sum(found.get(SUCCEEDED, ())),
                compute_sum(found.get(FAILED, ())),
            )
        ),
        process_started_at=compute_peak(found.get(PROCESS_START, ())),
        requests_total=finished,
    )


def _compute_kv_cache(blocks: Sequence[Series]) -> float | None:
    """`fraction` is the backend's own word for it; used and max disagree with it in its README."""
    fraction, used, whole = (
        select(blocks, "kv_cache_block_type", word) for word in ("fraction", "used", "max")
    )
    if fraction:
        return compute_share(compute_peak(fraction))
    return compute_share(compute_peak(used), compute_peak(whole))
