"""Text Generation Inference: what its page says.

Names: router/src/server.rs, backends/v3/src/{backend,queue,lib}.rs. Counters have no `_total`, and a
family appears only when it was first set: an engine that never had a request tells nothing.
"""

from typing import Final

from envoy_ext.adapters.engines.figures import (
    PROCESS_START,
    compute_peak,
    compute_progress,
    compute_share,
    compute_sum,
    read_families,
)
from envoy_ext.domain.sample import Sample

BATCH_SIZE: Final = b"tgi_batch_current_size"
QUEUE_SIZE: Final = b"tgi_queue_size"
BATCH_TOKENS: Final = b"tgi_batch_current_max_tokens"
"""What the running requests may grow to. The v3 queue allocates blocks for prompt and `max_new_tokens` when a
request enters the batch, so this is cache in use, not a forecast."""
TOKEN_BUDGET: Final = b"tgi_batch_max_total_tokens"
INFERENCES: Final = b"tgi_batch_inference_count"
"""By `method`: one for each forward pass, in prefill and decode: the live signal."""
REQUESTS: Final = b"tgi_request_count"
"""Counted on arrival, so it is no progress, but it starts anew with the process like any counter."""

FAMILIES: Final = frozenset(
    {BATCH_SIZE, QUEUE_SIZE, BATCH_TOKENS, TOKEN_BUDGET, INFERENCES, REQUESTS, PROCESS_START}
)


def parse_tgi(page: bytes, at: float) -> Sample:
    """The sample of a page. Raises `NotMetrics`."""
    found = read_families(page, FAMILIES)
    return Sample(
        at=at,
        running=compute_sum(found.get(BATCH_SIZE, ())),
        waiting=compute_sum(found.get(QUEUE_SIZE, ())),
        kv_cache_usage=compute_share(
            compute_sum(found.get(BATCH_TOKENS, ())),
            compute_sum(found.get(TOKEN_BUDGET, ())),
        ),
        progress=compute_progress((compute_sum(found.get(INFERENCES, ())),)),
        process_started_at=compute_peak(found.get(PROCESS_START, ())),
        requests_total=compute_sum(found.get(REQUESTS, ())),
    )
