"""Which signal is live in which phase of which engine: each alone keeps a working engine from looking hung.

The pages are those of real engines; one series of each moves from look to look and all else stands still,
as it does in a long prefill or between two ends of requests.
"""

from dataclasses import replace

import pytest

from envoy_ext.adapters.engines import get_engine
from envoy_ext.domain.replica_life import ReplicaState
from tests.adapters.engines.pages import load_page
from tests.support.fleet_builders import POLICY, DrivenReplica

VLLM, SGLANG, SGLANG_LIVE = "vllm_v1_0.24plus_single", "sglang_single_0.5", "sglang_realtime_tokens_t0"
LLAMACPP, TGI, TRITON = "llamacpp_b7xxx_no_kv", "tgi_3.x", "triton_trtllm_backend"
REALTIME = b'sglang:realtime_tokens_total{engine_type="unified",mode='

LIVE = [
    ("vllm", VLLM, b"vllm:kv_cache_usage_perc{", 0.01),  # chunked prefill: no step has an output yet
    ("vllm", VLLM, b"vllm:iteration_tokens_total_count{", 1.0),
    ("vllm", VLLM, b"vllm:generation_tokens_total{", 8.0),
    ("vllm", "vllm_v0_0.6", b"vllm:generation_tokens_total{", 8.0),
    ("vllm", "vllm_v0_0.6", b"vllm:gpu_cache_usage_perc{", 0.01),
    (
        "sglang",
        SGLANG_LIVE,
        REALTIME + b'"prefill_compute"',
        512.0,
    ),
    ("sglang", SGLANG_LIVE, REALTIME + b'"decode"', 800.0),
    ("sglang", SGLANG, b"sglang:token_usage{", 0.01),  # builds without the live counter
    ("sglang", SGLANG, b"sglang:gen_throughput{", 1.5),
    ("llamacpp", LLAMACPP, b"llamacpp:n_decode_total ", 1.0),
    ("tgi", TGI, b'tgi_batch_inference_count{method="prefill"}', 1.0),
    ("tgi", TGI, b'tgi_batch_inference_count{method="decode"}', 1.0),
    ("triton", TRITON, b'nv_trt_llm_general_metrics{general_type="iteration_counter"', 1.0),
]
"""Engine, page, the beginning of the line that moves, and by how much."""

STILL = [
    ("vllm", VLLM, b"vllm:num_requests_waiting{", 1.0),
    ("sglang", "sglang_locked_running0_queue_deep", b"sglang:num_queue_reqs{", 1.0),
    ("tgi", TGI, b"tgi_queue_size ", 1.0),
    ("llamacpp", LLAMACPP, b"llamacpp:requests_deferred ", 1.0),
    ("triton", TRITON, b'nv_trt_llm_general_metrics{general_type="timestamp"', 50.0),
]
"""What rises in an engine that gets nowhere: its queue, its clock."""


def move(page: bytes, line: bytes, by: float) -> bytes:
    """The page with the value of one line raised."""
    start = page.index(b"\n" + line) + 1
    end = page.index(b"\n", start)
    labels, _, value = page[start:end].rpartition(b" ")
    return page[:start] + labels + b" %.6f" % (float(value) + by) + page[end:]


def play(engine: str, page: bytes, line: bytes, by: float, moves: int) -> DrivenReplica:
    """A replica that shows this page, moved on every fifty seconds."""
    replica = DrivenReplica(policy=replace(POLICY, hang_s=60.0, slow_start_s=0.0))
    parse = get_engine(engine).parse
    for _ in range(moves):
        sample = parse(page, replica.now)
        assert sample.running or sample.waiting, "there is work in hand"
        # How deep a queue may be is another question.
        replica.page = replace(sample, waiting=min(sample.waiting or 0, 3))
        replica.scrape()
        assert replica.state is ReplicaState.READY
        replica.wait(50)
        page = move(page, line, by)
    return replica


@pytest.mark.parametrize(("engine", "page", "line", "by"), LIVE, ids=lambda value: str(value)[:60])
def test_what_is_live_keeps_a_working_engine_from_looking_hung(
    engine: str, page: str, line: bytes, by: float
) -> None:
    replica = play(engine, load_page(page), line, by, moves=4)
    assert (replica.state, replica.reasons) == (ReplicaState.READY, [])


@pytest.mark.parametrize(("engine", "page", "line", "by"), STILL, ids=lambda value: str(value)[:60])
def test_what_rises_in_an_engine_that_gets_nowhere_is_no_progress(
    engine: str, page: str, line: bytes, by: float
) -> None:
    replica = play(engine, load_page(page), line, by, moves=2)
    assert (replica.state, replica.reasons) == (ReplicaState.UNREADY, ["hang"])
