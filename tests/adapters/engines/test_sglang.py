"""SGLang's pages, by content: ranks, priorities, and a scheduler that stands still."""

import re

import pytest

from envoy_ext.adapters.engines import parse_sglang
from envoy_ext.domain.sample import Sample
from tests.adapters.engines.pages import load_page

THROUGHPUT_SHARE = 86.5 / 87.5
TOTALS = 4.88226e06 + 139795.0 + 217.0


@pytest.mark.parametrize("name", ["sglang_single_0.4", "sglang_single_0.5"])
@pytest.mark.parametrize("label", [b"model_name", b"name"])
def test_a_page_reads_whole_with_and_without_ranks_whatever_names_the_model(name: str, label: bytes) -> None:
    page = load_page(name).replace(b"model_name=", label + b"=")
    assert parse_sglang(page, 7.0) == Sample(
        at=7.0,
        running=3.0,
        waiting=2.0,
        kv_cache_usage=0.28,
        progress=TOTALS + THROUGHPUT_SHARE,
        requests_total=217.0,
    )


def test_ranks_that_tell_the_same_batch_count_it_once() -> None:
    sample = parse_sglang(load_page("sglang_cp_duplicated_ranks"), 0.0)
    assert (sample.running, sample.waiting, sample.kv_cache_usage) == (4.0, 1.0, 0.4)


def test_the_total_of_all_priorities_is_no_priority() -> None:
    sample = parse_sglang(load_page("sglang_priority_scheduling"), 0.0)
    assert (sample.running, sample.waiting, sample.kv_cache_usage) == (14.0, 2.0, 0.61)


def test_priorities_without_a_total_add_up() -> None:
    page = re.sub(rb'(?m)^.*priority="",.*\n', b"", load_page("sglang_priority_scheduling"))
    sample = parse_sglang(page, 0.0)
    assert (sample.running, sample.waiting) == (14.0, 2.0)


def rank_page(name: str, *ranks: tuple[str, float]) -> bytes:
    return b"".join(b"%s{%s} %f\n" % (name.encode(), labels.encode(), value) for labels, value in ranks)


def test_data_parallel_ranks_add_up_and_their_tensor_ranks_do_not() -> None:
    ranks = (
        ('dp_rank="0",tp_rank="0"', 3.0),
        ('dp_rank="0",tp_rank="1"', 3.0),
        ('dp_rank="1",tp_rank="2"', 1.0),
        ('dp_rank="1",tp_rank="3"', 2.0),
    )
    page = rank_page("sglang:num_running_reqs", *ranks) + rank_page(
        "sglang:token_usage", ('dp_rank="0",tp_rank="0"', 0.1), ('dp_rank="1",tp_rank="2"', 0.9)
    )
    sample = parse_sglang(page, 0.0)
    assert sample.running == 5.0
    assert sample.kv_cache_usage == 0.9


def test_retractions_are_allocation_failures_and_their_gauge_is_not() -> None:
    page = rank_page(
        "sglang:num_retracted_requests_total",
        ('dp_rank="0",tp_rank="0"', 5.0),
        ('dp_rank="0",tp_rank="1"', 5.0),
        ('dp_rank="1",tp_rank="2"', 2.0),
    )
    assert parse_sglang(page, 0.0).allocation_failures == 7.0
    assert parse_sglang(b"sglang:num_retracted_reqs 3.0\n", 0.0).allocation_failures is None


def test_a_locked_scheduler_shows_a_deep_queue_nothing_running_and_no_progress() -> None:
    page = load_page("sglang_locked_running0_queue_deep")
    first, second = parse_sglang(page, 0.0), parse_sglang(page, 60.0)
    assert (first.running, first.waiting) == (0.0, 57.0)
    assert first.progress is not None
    assert first.progress == second.progress


def test_the_live_counter_moves_while_the_totals_stand() -> None:
    before = load_page("sglang_realtime_tokens_t0")
    after = before.replace(b"} 156755.0", b"} 157555.0")
    assert after != before
    first, second = parse_sglang(before, 0.0), parse_sglang(after, 10.0)
    assert first.progress is not None
    assert second.progress == first.progress + 800
    assert first.requests_total == second.requests_total == 217.0


def test_without_the_live_counter_the_throughput_moves_it_a_little() -> None:
    before = load_page("sglang_single_0.5")
    slower, idle = before.replace(b"} 86.5", b"} 80.0"), before.replace(b"} 86.5", b"} 0.0")
    figures = [parse_sglang(page, 0.0).progress for page in (before, slower, idle)]
    assert len(set(figures)) == 3
    assert all(figure is not None and TOTALS <= figure < TOTALS + 1 for figure in figures)


def test_beside_the_live_counter_the_throughput_plays_no_part() -> None:
    before = load_page("sglang_realtime_tokens_t0")
    after = before.replace(b"} 80.0", b"} 81.0")
    assert after != before
    assert parse_sglang(before, 0.0).progress == parse_sglang(after, 0.0).progress


def test_a_gauge_alone_is_no_progress() -> None:
    """It falls and rises: beside nothing else, a fall would read as a restart."""
    assert parse_sglang(b"sglang:gen_throughput 80.0\n", 0.0).progress is None


def test_the_name_that_vllm_would_use_is_not_read() -> None:
    assert parse_sglang(b"sglang:num_requests_running 3.0\n", 0.0) == Sample(at=0.0)
