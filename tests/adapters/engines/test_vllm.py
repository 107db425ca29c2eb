"""vLLM's pages, by content: V0, the years of both names, V1, data parallelism, sleep."""

from dataclasses import replace

import pytest

from envoy_ext.adapters.engines import parse_vllm
from envoy_ext.domain.sample import Sample
from tests.adapters.engines.pages import load_page

IDLE = Sample(
    at=7.0,
    running=0.0,
    waiting=0.0,
    kv_cache_usage=0.0,
    sleeping=False,
    progress=135.0,
    allocation_failures=0.0,
    process_started_at=1795969954.42,
    requests_total=3.0,
)


@pytest.mark.parametrize(
    ("name", "sample"),
    [
        (
            "vllm_v0_0.6",
            Sample(
                at=7.0,
                running=4.0,
                waiting=2.0,
                kv_cache_usage=0.73,
                sleeping=None,
                progress=27453.0 + 9921.0,
                allocation_failures=1.0,
                process_started_at=1742624005.57,
                requests_total=3.0,
            ),
        ),
        (
            "vllm_v1_transition_0.9-0.11",
            Sample(
                at=7.0,
                running=3.0,
                waiting=1.0,
                kv_cache_usage=0.41,
                sleeping=None,
                progress=8.0 + 32.0 + 5.0,
                allocation_failures=0.0,
                process_started_at=1788184174.08,
                requests_total=2.0,
            ),
        ),
        (
            "vllm_v1_kv_only_0.12plus",
            Sample(
                at=7.0,
                running=3.0,
                waiting=1.0,
                kv_cache_usage=0.41,
                sleeping=False,
                progress=45.0,
                allocation_failures=0.0,
                process_started_at=1788184174.08,
                requests_total=2.0,
            ),
        ),
        (
            "vllm_v1_0.24plus_single",
            Sample(
                at=7.0,
                running=37.0,
                waiting=12.0,
                kv_cache_usage=0.62,
                sleeping=False,
                progress=45.0,
                allocation_failures=0.0,
                process_started_at=1788184174.08,
                requests_total=2.0,
            ),
        ),
        ("vllm_metrics", IDLE),
        (
            "vllm_metrics_busy",
            replace(
                IDLE,
                running=4.0,
                kv_cache_usage=0.0006104260774020265,
                progress=67.0 + 587.0 + 409.0,
                requests_total=5.0,
            ),
        ),
    ],
)
def test_a_page_of_each_generation_reads_whole(name: str, sample: Sample) -> None:
    assert parse_vllm(load_page(name), 7.0) == sample


@pytest.mark.parametrize("name", ["vllm_help_type_only_no_samples", "vllm_python_only_7188"])
def test_a_page_without_the_engines_samples_says_nothing_rather_than_idle(name: str) -> None:
    assert parse_vllm(load_page(name), 7.0) == Sample(at=7.0)


def test_a_real_engine_that_works_shows_progress() -> None:
    idle = parse_vllm(load_page("vllm_metrics"), 1.0)
    busy = parse_vllm(load_page("vllm_metrics_busy"), 2.0)
    assert idle.progress is not None
    assert busy.progress is not None
    assert busy.progress > idle.progress
    assert busy.process_started_at == idle.process_started_at


TWO_ENGINES = b"""\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.97
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 5.0
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 50.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 1.0
"""


def test_requests_of_data_parallel_engines_add_up_and_the_fullest_cache_speaks() -> None:
    sample = parse_vllm(TWO_ENGINES, 0.0)
    assert (sample.running, sample.waiting, sample.kv_cache_usage) == (7.0, 9.0, 0.97)
    assert (sample.allocation_failures, sample.progress, sample.sleeping) == (7.0, 150.0, False)


def test_one_engine_that_tells_nothing_makes_the_sum_unknown() -> None:
    page = TWO_ENGINES.replace(
        b'num_requests_running{engine="1",model_name="m"} 4.0',
        b'num_requests_running{engine="1",model_name="m"} NaN',
    )
    sample = parse_vllm(page, 0.0)
    assert sample.running is None
    assert sample.waiting == 9.0


def test_the_same_engine_told_twice_counts_once() -> None:
    page = (
        b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        b'vllm:num_requests_running{model_name="m",engine="0"} 4.0\n'
        b'vllm:num_requests_running{engine="0",model_name="m",pid="7"} 4.0\n'
    )
    assert parse_vllm(page, 0.0).running == 4.0


def test_a_repeated_series_counts_once_with_its_last_value() -> None:
    page = b'vllm:generation_tokens_total{engine="0"} 5.0\nvllm:generation_tokens_total{engine="0"} 6.0\n'
    assert parse_vllm(page, 0.0).progress == 6.0


def test_the_old_name_of_the_cache_is_used_only_where_the_other_tells_nothing() -> None:
    old, both = b"vllm:gpu_cache_usage_perc 0.2\n", b"vllm:kv_cache_usage_perc 0.4\n"
    assert parse_vllm(old, 0.0).kv_cache_usage == 0.2
    assert parse_vllm(old + both, 0.0).kv_cache_usage == 0.4
    assert parse_vllm(old + b"vllm:kv_cache_usage_perc NaN\n", 0.0).kv_cache_usage == 0.2


def test_waiting_is_not_waiting_by_reason() -> None:
    page = b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0\n'
    assert parse_vllm(page, 0.0).waiting is None


def test_created_times_and_buckets_of_wanted_families_are_no_values() -> None:
    page = (
        b"vllm:num_preemptions_created 1.788184174081528e+09\n"
        b"vllm:generation_tokens_created 1.788184174081528e+09\n"
        b'vllm:iteration_tokens_total_bucket{le="1.0"} 5.0\n'
        b"vllm:iteration_tokens_total_sum 5.0\n"
    )
    assert parse_vllm(page, 0.0) == Sample(at=0.0)


def test_a_cache_over_its_size_is_full() -> None:
    assert parse_vllm(b"vllm:kv_cache_usage_perc 1.02\n", 0.0).kv_cache_usage == 1.0


@pytest.mark.parametrize("value", [b"NaN", b"-1", b"+Inf", b"-Inf"])
def test_what_cannot_be_meant_is_unknown(value: bytes) -> None:
    page = b"vllm:num_requests_waiting 1 1788184174.081\nvllm:kv_cache_usage_perc " + value + b"\n# EOF\n"
    sample = parse_vllm(page, 0.0)
    assert sample.waiting == 1.0
    assert sample.kv_cache_usage is None


def test_a_page_with_exemplars_timestamps_and_eof_reads_and_its_nan_is_unknown() -> None:
    assert parse_vllm(load_page("openmetrics_exemplar_nan_eof"), 7.0) == Sample(
        at=7.0, running=3.0, waiting=1.0
    )


def sleep_page(*engines: tuple[int, int, int]) -> bytes:
    words = ("awake", "weights_offloaded", "discard_all")
    return b"".join(
        b'vllm:engine_sleep_state{engine="%d",sleep_state="%s"} %d.0\n' % (index, word.encode(), value)
        for index, engine in enumerate(engines)
        for word, value in zip(words, engine, strict=True)
    )


@pytest.mark.parametrize(
    ("engines", "sleeping"),
    [
        ([(1, 0, 0)], False),
        ([(0, 1, 0)], True),
        ([(0, 0, 1)], True),
        ([(0, 0, 0)], True),  # level 0: paused, nothing given back
        ([(1, 0, 0), (1, 0, 0)], False),
        ([(1, 0, 0), (0, 1, 0)], True),
        ([], None),
    ],
)
def test_sleep_in_any_form_and_any_engine_is_sleep(
    engines: list[tuple[int, int, int]], sleeping: bool | None
) -> None:
    assert parse_vllm(sleep_page(*engines), 0.0).sleeping is sleeping


@pytest.mark.parametrize(("value", "sleeping"), [(1, True), (0, False)])
def test_a_word_for_sleep_speaks_where_the_one_for_being_awake_is_missing(value: int, sleeping: bool) -> None:
    page = b'vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} %d.0\n' % value
    assert parse_vllm(page, 0.0).sleeping is sleeping
