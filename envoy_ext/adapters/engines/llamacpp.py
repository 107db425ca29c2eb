"""llama.cpp's server: what its page says.

Names: tools/server/server-context.cpp, route `/metrics`, which exists with `--metrics` only (501
otherwise). No labels, no start time, no count of requests; a router's page may add a `model` label.
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

PROCESSING: Final = b"llamacpp:requests_processing"
DEFERRED: Final = b"llamacpp:requests_deferred"
KV_CACHE: Final = b"llamacpp:kv_cache_usage_ratio"
"""Build b4687 tells, b7xxx and later do not."""
DECODES: Final = b"llamacpp:n_decode_total"
"""One for each llama_decode call, in prefill and decode: the live signal."""
PROMPT_TOKENS: Final = b"llamacpp:prompt_tokens_total"
"""Counted at the prompt's end."""
PREDICTED_TOKENS: Final = b"llamacpp:tokens_predicted_total"
"""Counted when the slot is released."""
DRAFTS: Final = b"llamacpp:spec_decode_num_drafts_total"
"""`n_decode_total` leaves out the calls of speculative decoding."""

FAMILIES: Final = frozenset(
    {PROCESSING, DEFERRED, KV_CACHE, DECODES, PROMPT_TOKENS, PREDICTED_TOKENS, DRAFTS, PROCESS_START}
)


def parse_llamacpp(page: bytes, at: float) -> Sample:
    """The sample of a page. Raises `NotMetrics`."""
    found = read_families(page, FAMILIES)
    return Sample(
        at=at,
        running=compute_sum(found.get(PROCESSING, ())),
        waiting=compute_sum(found.get(DEFERRED, ())),
        kv_cache_usage=compute_share(compute_peak(found.get(KV_CACHE, ()))),
        progress=compute_progress(
            compute_sum(found.get(name, ())) for name in (DECODES, PROMPT_TOKENS, PREDICTED_TOKENS, DRAFTS)
        ),
        process_started_at=compute_peak(found.get(PROCESS_START, ())),
    )
