"""An engine whose name is not configured: its page is read by the families it shows.

Many servers borrow the names of a known engine, vLLM's most of all. A page with none of them still
tells when its process started, which is all that is then known.
"""

from collections.abc import Callable
from typing import Final

from envoy_ext.adapters.engines.figures import PROCESS_START, compute_peak, read_families
from envoy_ext.adapters.engines.llamacpp import parse_llamacpp
from envoy_ext.adapters.engines.sglang import parse_sglang
from envoy_ext.adapters.engines.tgi import parse_tgi
from envoy_ext.adapters.engines.triton import parse_triton
from envoy_ext.adapters.engines.trtllm import parse_trtllm
from envoy_ext.adapters.engines.vllm import parse_vllm
from envoy_ext.domain.sample import Sample

Parse = Callable[[bytes, float], Sample]

PREFIXES: Final[tuple[tuple[bytes, Parse], ...]] = (
    (b"vllm:", parse_vllm),
    (b"sglang:", parse_sglang),
    (b"llamacpp:", parse_llamacpp),
    (b"tgi_", parse_tgi),
    (b"trtllm_", parse_trtllm),
    (b"nv_", parse_triton),
)
"""The first with a sample on the page wins. Triton is last, because its vLLM backend adds vLLM's families."""


def parse_generic(page: bytes, at: float) -> Sample:
    """The sample of a page. Raises `NotMetrics`."""
    for prefix, parse in PREFIXES:
        if page.startswith(prefix) or b"\n" + prefix in page:
            return parse(page, at)
    found = read_families(page, frozenset({PROCESS_START}))
    return Sample(at=at, process_started_at=compute_peak(found.get(PROCESS_START, ())))
