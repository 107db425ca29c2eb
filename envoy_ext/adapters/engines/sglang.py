"""SGLang: what its page says.

Names and labels: python/sglang/srt/observability/metrics_collector.py (before 2026
srt/metrics/collector.py). A page holds the gauges of every scheduler rank that logs.
"""

from collections.abc import Sequence
from typing import Final

from envoy_ext.adapters.engines.exposition import Series
from envoy_ext.adapters.engines.figures import (
    PROCESS_START,
    Families,
    compute_peak,
    compute_progress,
    compute_share,
    compute_sum,
    compute_sum_of_peaks,
    read_families,
    select,
)
from envoy_ext.domain.sample import Sample

RUNNING: Final = b"sglang:num_running_reqs"
"""`sglang:num_requests_running`, by analogy with vLLM, does not exist."""
QUEUED: Final = b"sglang:num_queue_reqs"
TOKEN_USAGE: Final = b"sglang:token_usage"
"""0 to 1, the fullest of all memory pools (attention, sliding window, state space)."""
LIVE_TOKENS: Final = b"sglang:realtime_tokens_total"
"""By `mode`, counted at each log interval; builds of 2026."""
THROUGHPUT: Final = b"sglang:gen_throughput"
PROMPT_TOKENS: Final = b"sglang:prompt_tokens_total"
GENERATION_TOKENS: Final = b"sglang:generation_tokens_total"
FINISHED: Final = b"sglang:num_requests_total"
RETRACTED: Final = b"sglang:num_retracted_requests_total"
"""Retraction is SGLang's preemption. The older gauge `num_retracted_reqs` holds one interval: no counter."""

FAMILIES: Final = frozenset(
    {
        RUNNING,
        QUEUED,
        TOKEN_USAGE,
        LIVE_TOKENS,
        THROUGHPUT,
        PROMPT_TOKENS,
        GENERATION_TOKENS,
        FINISHED,
        RETRACTED,
        PROCESS_START,
    }
)


def parse_sglang(page: bytes, at: float) -> Sample:
    """The sample of a page. Raises `NotMetrics`."""
    found = read_families(page, FAMILIES)
    return Sample(
        at=at,
        running=_compute_requests(found.get(RUNNING, ())),
        waiting=_compute_requests(found.get(QUEUED, ())),
        kv_cache_usage=compute_share(compute_peak(found.get(TOKEN_USAGE, ()))),
        progress=_compute_progress(found),
        allocation_failures=compute_sum_of_peaks(found.get(RETRACTED, ()), "dp_rank"),
        process_started_at=compute_peak(found.get(PROCESS_START, ())),
        requests_total=compute_sum(found.get(FINISHED, ())),
    )


def _compute_progress(found: Families) -> float | None:
    """The live counter, and the totals, which move when a request ends (observe_one_finished_request).

    Builds without the live counter have the throughput, a gauge written at each log interval. It adds
    a share below 1, so there the number may fall by less than 1 in a running engine. It does so only
    beside the totals, and those come with the count of requests, which tells a restart.
    """
    live = compute_sum_of_peaks(found.get(LIVE_TOKENS, ()), "dp_rank", "mode")
    totals = compute_progress(
        compute_sum(found.get(name, ())) for name in (PROMPT_TOKENS, GENERATION_TOKENS, FINISHED)
    )
    throughput = compute_peak(found.get(THROUGHPUT, ()))
    if live is None and totals is not None and throughput is not None:
        return totals + throughput / (1.0 + throughput)
    return compute_progress((live, totals))


def _compute_requests(family: Sequence[Series]) -> float | None:
    """Requests, each counted once.

    The ranks of tensor, pipeline and expert parallelism run the same batch, and each tells it whole
    (sgl-project/sglang#31896): the largest is the batch. Data parallel ranks have batches of their
    own, which add up. Labels that name the model differ between builds (`name`, `model_name`) and
    play no part.

    With priority scheduling the series with an empty `priority` is the total and the others split
    it, also into priorities that are gone. Without a total, the priorities add up.
    """
    totals = select(family, "priority", "")
    if totals:
        return compute_sum_of_peaks(totals, "dp_rank")
    return compute_sum_of_peaks(family, "dp_rank", "priority")
