"""vLLM, V0 and V1: what its page says.

Names and meaning: vllm/v1/metrics/loggers.py and, for V0, vllm/engine/metrics.py; recorded pages of
0.6, 0.9 to 0.11, 0.12, 0.24 and of a real 0.32 in the tests.
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
    compute_sum_of_peaks,
    first_known,
    read_families,
)
from envoy_ext.domain.sample import Sample

RUNNING: Final = b"vllm:num_requests_running"
WAITING: Final = b"vllm:num_requests_waiting"
"""Pages of 0.24 have `..._waiting_by_reason` beside it, which splits the same number."""
KV_CACHE: Final = b"vllm:kv_cache_usage_perc"
"""1 means 100 percent, says its HELP. Since 0.9 (vllm-project/vllm#18354)."""
KV_CACHE_OLD: Final = b"vllm:gpu_cache_usage_perc"
"""The same figure under its first name: alone before 0.9, beside the other until vllm-project/vllm#29330."""
SLEEP_STATE: Final = b"vllm:engine_sleep_state"
"""One series for each word in `sleep_state`, 0 or 1; pages of 0.12 have it, older ones do not."""
PREEMPTIONS: Final = b"vllm:num_preemptions_total"
"""A preemption is a running request that lost its blocks because another could not get one."""
FINISHED: Final = b"vllm:request_success_total"
"""By `finished_reason`; counts aborts and errors too, whatever its name says."""
STEPS: Final = b"vllm:iteration_tokens_total_count"
"""`iteration_tokens_total` is a histogram: its count is the number of engine steps that gave a token."""
PROMPT_TOKENS: Final = b"vllm:prompt_tokens_total"
GENERATION_TOKENS: Final = b"vllm:generation_tokens_total"

FAMILIES: Final = frozenset(
    {
        RUNNING,
        WAITING,
        KV_CACHE,
        KV_CACHE_OLD,
        SLEEP_STATE,
        PREEMPTIONS,
        FINISHED,
        STEPS,
        PROMPT_TOKENS,
        GENERATION_TOKENS,
        PROCESS_START,
    }
)


def parse_vllm(page: bytes, at: float) -> Sample:
    """The sample of a page. Raises `NotMetrics`."""
    found = read_families(page, FAMILIES)
    # With data parallelism every series has an `engine` label and the page speaks for all engines of
    # the replica. Requests add up. The cache does not: vLLM's own balancer sends a request to one
    # engine and leaves it there, so a replica with one full engine preempts, however empty the
    # others are; a mean would hide that. V0 has no `engine` label and one engine.
    kv_cache = first_known(
        compute_peak(found.get(KV_CACHE, ())),
        compute_peak(found.get(KV_CACHE_OLD, ())),
    )
    return Sample(
        at=at,
        running=compute_sum_of_peaks(found.get(RUNNING, ()), "engine"),
        waiting=compute_sum_of_peaks(found.get(WAITING, ()), "engine"),
        kv_cache_usage=compute_share(kv_cache),
        sleeping=_read_sleeping(found.get(SLEEP_STATE, ())),
        # These move only in steps with outputs (the loggers get no IterationStats otherwise): in the
        # prefill of a long prompt, the cache's share alone tells that the engine works.
        progress=compute_progress(
            compute_sum(found.get(name, ())) for name in (STEPS, PROMPT_TOKENS, GENERATION_TOKENS)
        ),
        allocation_failures=compute_sum(found.get(PREEMPTIONS, ())),
        process_started_at=compute_peak(found.get(PROCESS_START, ())),
        requests_total=compute_sum(found.get(FINISHED, ())),
    )


def _read_sleeping(states: Sequence[Series]) -> bool | None:
    """True when any engine sleeps, because a request may be sent to that one.

    Sleep level 0 (scheduling paused, memory kept) sets `awake` to 0 and no other word to 1.
    """
    if not states:
        return None
    return any(
        series.value == 0 if series.labels.get("sleep_state") == "awake" else series.value == 1
        for series in states
    )
