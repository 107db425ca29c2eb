"""The pages of llama.cpp, TGI, Triton, trtllm-serve and of engines without a name, by content."""

import pytest

from envoy_ext.adapters.engines import (
    NotMetrics,
    parse_generic,
    parse_llamacpp,
    parse_sglang,
    parse_tgi,
    parse_triton,
    parse_trtllm,
    parse_vllm,
)
from envoy_ext.domain.sample import Sample
from tests.adapters.engines.pages import load_page


def test_llamacpp_before_its_first_request_is_idle_though_one_family_is_nan() -> None:
    assert parse_llamacpp(load_page("llamacpp_b4687_before_first_request_nan"), 7.0) == Sample(
        at=7.0, running=0.0, waiting=0.0, kv_cache_usage=0.0, progress=0.0
    )


def test_llamacpp_without_a_cache_family_leaves_the_cache_unknown() -> None:
    assert parse_llamacpp(load_page("llamacpp_b7xxx_no_kv"), 7.0) == Sample(
        at=7.0, running=2.0, waiting=1.0, progress=2881.0 + 6886.0 + 3469.0
    )


def test_a_real_llamacpp_page_reads_whole() -> None:
    assert parse_llamacpp(load_page("xllamacpp_metrics"), 7.0) == Sample(
        at=7.0, running=0.0, waiting=0.0, progress=48.0 + 37.0 + 48.0 + 0.0
    )


def test_a_real_llamacpp_with_full_slots_and_a_queue_reads_as_its_slots_say() -> None:
    # Seven streams on two slots; `/slots` said that both were processing.
    assert parse_llamacpp(load_page("xllamacpp_metrics_busy"), 7.0) == Sample(
        at=7.0, running=2.0, waiting=5.0, progress=11.0 + 64.0
    )


@pytest.mark.parametrize("family", [b"n_decode_total 2881", b"prompt_tokens_total 6886"])
def test_every_decode_call_and_every_prompt_is_progress_of_llamacpp(family: bytes) -> None:
    page = load_page("llamacpp_b7xxx_no_kv")
    moved = page.replace(b"\nllamacpp:" + family, b"\nllamacpp:" + family + b"9")
    assert moved != page
    before, after = parse_llamacpp(page, 0.0), parse_llamacpp(moved, 0.0)
    assert before.progress is not None
    assert after.progress is not None
    assert after.progress > before.progress


def test_a_nan_in_a_used_family_of_llamacpp_is_unknown() -> None:
    page = b"llamacpp:requests_processing -nan\nllamacpp:requests_deferred 2\n"
    assert parse_llamacpp(page, 0.0) == Sample(at=0.0, waiting=2.0)


def test_tgi_reads_whole_with_counters_that_have_no_suffix() -> None:
    assert parse_tgi(load_page("tgi_3.x"), 7.0) == Sample(
        at=7.0,
        running=4.0,
        waiting=7.0,
        kv_cache_usage=4096 / 131072,
        progress=40.0 + 8123.0,
        requests_total=44.0,
    )


def test_arrivals_are_no_progress_of_tgi() -> None:
    page = load_page("tgi_3.x")
    more = page.replace(b"\ntgi_request_count 44", b"\ntgi_request_count 45")
    assert more != page
    assert parse_tgi(more, 0.0).progress == parse_tgi(page, 0.0).progress


def test_a_tgi_that_never_had_a_request_tells_its_budget_only() -> None:
    page = b"# TYPE tgi_batch_max_total_tokens gauge\ntgi_batch_max_total_tokens 131072\n"
    assert parse_tgi(page, 0.0) == Sample(at=0.0)
    assert parse_tgi(page + b"tgi_batch_current_max_tokens 131072\n", 0.0).kv_cache_usage == 1.0
    assert (
        parse_tgi(b"tgi_batch_max_total_tokens 0\ntgi_batch_current_max_tokens 0\n", 0.0).kv_cache_usage
        is None
    )


def test_triton_reads_whole_with_figures_told_apart_by_label() -> None:
    assert parse_triton(load_page("triton_trtllm_backend"), 7.0) == Sample(
        at=7.0,
        running=1.0,
        waiting=1.0,
        kv_cache_usage=0.4875,
        max_running=512.0,
        progress=59.0,
        requests_total=59.0,
    )


def test_triton_without_the_fraction_divides_blocks() -> None:
    page = (
        b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m"} 30\n'
        b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 40\n'
    )
    assert parse_triton(page, 0.0).kv_cache_usage == 0.75
    assert parse_triton(page.splitlines()[0], 0.0).kv_cache_usage is None


def test_iterations_are_progress_of_triton_and_the_clock_is_not() -> None:
    page = load_page("triton_trtllm_backend")
    iterated = page.replace(
        b'iteration_counter",model="tensorrt_llm",version="1"} 0', b'iteration_counter"} 7'
    )
    later = page.replace(b"} 1700074049", b"} 1700074050")
    assert iterated != page != later
    assert parse_triton(iterated, 0.0).progress == 66.0
    assert parse_triton(later, 0.0).progress == 59.0


def test_tritons_own_queue_speaks_when_the_backend_does_not() -> None:
    pending = b'nv_inference_pending_request_count{model="m",version="1"} 5\n'
    waiting = b'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 1\n'
    blocks = b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.9\n'
    active = b'nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 3\n'
    assert parse_triton(pending, 0.0).waiting == 5.0
    assert parse_triton(pending + waiting, 0.0).waiting == 1.0
    assert parse_triton(pending + waiting.replace(b" 1", b" NaN"), 0.0).waiting is None
    assert parse_triton(pending + blocks, 0.0).waiting is None, (
        "its queue is the backend's, which tells nothing"
    )
    assert parse_triton(active, 0.0).running == 3.0
    scheduled = active.replace(b"active", b"scheduled").replace(b" 3", b" NaN")
    assert parse_triton(scheduled + active, 0.0).running is None


TRTLLM_1_3 = b"""\
# HELP trtllm_num_requests_running Number of active requests
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3.0
# TYPE trtllm_num_requests_waiting gauge
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
# TYPE trtllm_max_num_active_requests gauge
trtllm_max_num_active_requests{engine_type="trtllm",model_name="m"} 2048.0
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.4875
# TYPE trtllm_kv_cache_host_utilization gauge
trtllm_kv_cache_host_utilization{engine_type="trtllm",model_name="m"} 0.9
# TYPE trtllm_kv_cache_missed_blocks_total counter
trtllm_kv_cache_missed_blocks_total{engine_type="trtllm",model_name="m"} 120.0
# TYPE trtllm_kv_cache_missed_blocks_created gauge
trtllm_kv_cache_missed_blocks_created{engine_type="trtllm",model_name="m"} 1.7e+09
# TYPE trtllm_kv_cache_gen_alloc_blocks_total counter
trtllm_kv_cache_gen_alloc_blocks_total{engine_type="trtllm",model_name="m"} 30.0
# TYPE trtllm_num_requests_completed_total counter
trtllm_num_requests_completed_total{engine_type="trtllm",model_name="m"} 9.0
# TYPE trtllm_request_success_total counter
trtllm_request_success_total{engine_type="trtllm",finished_reason="length",model_name="m"} 4.0
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="m"} 5.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.78818417408e+09
"""


def test_trtllm_1_3_reads_whole() -> None:
    assert parse_trtllm(TRTLLM_1_3, 7.0) == Sample(
        at=7.0,
        running=3.0,
        waiting=1.0,
        kv_cache_usage=0.4875,
        max_running=2048.0,
        progress=120.0 + 30.0 + 9.0,
        process_started_at=1788184174.08,
        requests_total=9.0,
    )


def test_trtllm_1_0_tells_no_load() -> None:
    assert parse_trtllm(load_page("trtllm_serve_prometheus_metrics_1.0"), 7.0) == Sample(at=7.0)
    finished = b'request_success_total{finished_reason="stop"} 4.0\n'
    assert parse_trtllm(finished, 7.0) == Sample(at=7.0, requests_total=4.0)


def test_trtllm_without_the_utilisation_divides_blocks() -> None:
    page = b"trtllm_kv_cache_used_blocks 10\ntrtllm_kv_cache_max_blocks 40\n"
    assert parse_trtllm(page, 0.0).kv_cache_usage == 0.25


def test_the_json_page_of_trtllm_is_no_metrics() -> None:
    with pytest.raises(NotMetrics):
        parse_trtllm(b'[{"iter": 1, "numActiveRequests": 3}]', 0.0)


@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("vllm_metrics_busy", parse_vllm),
        ("vllm_v0_0.6", parse_vllm),
        ("sglang_single_0.5", parse_sglang),
        ("xllamacpp_metrics", parse_llamacpp),
        ("tgi_3.x", parse_tgi),
        ("triton_trtllm_backend", parse_triton),
    ],
)
def test_an_engine_without_a_name_is_read_by_its_families(name: str, parse: type) -> None:
    page = load_page(name)
    assert parse_generic(page, 7.0) == parse(page, 7.0)
    assert parse_generic(page, 7.0).running is not None


def test_an_engine_without_a_name_may_be_trtllm() -> None:
    assert parse_generic(TRTLLM_1_3, 7.0) == parse_trtllm(TRTLLM_1_3, 7.0)


def test_a_page_of_no_known_engine_tells_its_start_and_no_load() -> None:
    page = b"process_start_time_seconds 1.7e+09\nhttp_requests_total 12\nmyengine_running 3\n"
    assert parse_generic(page, 7.0) == Sample(at=7.0, process_started_at=1.7e9)


def test_a_page_that_begins_with_a_sample_shows_its_engine() -> None:
    assert parse_generic(b"llamacpp:requests_processing 2\n", 7.0).running == 2.0


def test_a_known_prefix_in_a_comment_or_a_label_is_no_engine() -> None:
    page = b'# HELP vllm:num_requests_running Number.\nother{a="vllm:x"} 1\nllamacpp:requests_processing 2\n'
    assert parse_generic(page, 7.0).running == 2.0
