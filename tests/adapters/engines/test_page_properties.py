"""A page that is damaged or told twice gives what it gave before, or nothing: never a third number.

Real pages, changed as writers, proxies and bugs change them. What cannot be told is left out: a digit that
is another digit.
"""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.adapters.engines import ENGINES, NotMetrics, get_engine, parse_dcgm
from envoy_ext.domain.sample import GpuSample, Sample
from tests.adapters.engines.pages import load_page

PAGES = {
    "vllm_v0_0.6": "vllm",
    "vllm_v1_transition_0.9-0.11": "vllm",
    "vllm_v1_kv_only_0.12plus": "vllm",
    "vllm_v1_0.24plus_single": "vllm",
    "vllm_metrics_busy": "vllm",
    "sglang_single_0.4": "sglang",
    "sglang_single_0.5": "sglang",
    "sglang_realtime_tokens_t0": "sglang",
    "sglang_cp_duplicated_ranks": "sglang",
    "sglang_priority_scheduling": "sglang",
    "llamacpp_b7xxx_no_kv": "llamacpp",
    "llamacpp_b4687_before_first_request_nan": "llamacpp",
    "xllamacpp_metrics": "llamacpp",
    "tgi_3.x": "tgi",
    "triton_trtllm_backend": "triton",
}
LOAD = ("running", "waiting", "kv_cache_usage", "max_running", "sleeping", "allocation_failures")

pages = st.sampled_from(sorted(PAGES))
unreadable = st.sampled_from(
    [b"NaN", b"-nan", b"+Inf", b"-1", b"", b"many", b"1_0", b"0x1", b"1e999", b"1 2 3", b"9" * 500, b"\xff"]
)


def parse(name: str, page: bytes) -> Sample:
    return get_engine(PAGES[name]).parse(page, 1.0)


def list_lines(name: str) -> list[bytes]:
    return load_page(name).splitlines()


def join(lines: list[bytes]) -> bytes:
    return b"# page\n" + b"\n".join(lines) + b"\n"


def assert_known_or_nothing(found: Sample, whole: Sample) -> None:
    for figure in LOAD:
        assert getattr(found, figure) in (getattr(whole, figure), None), figure


@given(pages, st.data())
def test_lines_in_another_order_and_lines_that_are_repeated_change_nothing(
    name: str, data: st.DataObject
) -> None:
    lines = list_lines(name)
    repeated = data.draw(st.lists(st.sampled_from(lines), max_size=20))
    shuffled = data.draw(st.permutations(lines + repeated))
    assert parse(name, join(shuffled)) == parse(name, join(lines))


@given(pages, st.data(), unreadable)
def test_a_value_that_cannot_be_read_makes_its_figure_unknown_and_no_other(
    name: str, data: st.DataObject, value: bytes
) -> None:
    lines = list_lines(name)
    numbers = [number for number, line in enumerate(lines) if line and not line.startswith(b"#")]
    broken = data.draw(st.sets(st.sampled_from(numbers), min_size=1, max_size=6))
    for number in broken:
        lines[number] = lines[number].rpartition(b" ")[0] + b" " + value
    assert_known_or_nothing(parse(name, join(lines)), parse(name, load_page(name)))


@given(pages, st.data())
def test_a_family_that_is_not_there_makes_its_figure_unknown_and_never_idle(
    name: str, data: st.DataObject
) -> None:
    lines = list_lines(name)
    families = sorted({read_family(line) for line in lines if line and not line.startswith(b"#")})
    gone = data.draw(st.sets(st.sampled_from(families), min_size=1))
    # A Triton without any word of the TensorRT-LLM backend is one without that backend.
    gone.discard(b"nv_trt_llm_general_metrics")
    found = parse(name, join([line for line in lines if read_family(line) not in gone]))
    assert_known_or_nothing(found, parse(name, load_page(name)))


def read_family(line: bytes) -> bytes:
    return re.split(rb"[{ ]", line, maxsplit=1)[0]


@given(st.sampled_from([name for name, engine in PAGES.items() if engine == "sglang"]), st.integers(1, 7))
def test_ranks_that_run_the_same_batch_add_nothing(name: str, ranks: int) -> None:
    lines = []
    for line in list_lines(name):
        lines.append(line)
        if b'tp_rank="0"' in line:
            lines += (line.replace(b'tp_rank="0"', b'tp_rank="%d"' % (100 + rank)) for rank in range(ranks))
    assert parse(name, join(lines)) == parse(name, load_page(name))


@given(st.sampled_from([name for name, engine in PAGES.items() if engine == "vllm"]), st.integers(2, 8))
def test_the_gauges_of_one_engine_that_several_processes_tell_add_nothing(name: str, processes: int) -> None:
    gauges = (b"vllm:num_requests_", b"vllm:kv_cache_usage", b"vllm:gpu_cache_usage", b"vllm:engine_sleep")
    lines = []
    for line in list_lines(name):
        lines.append(line)
        if line.startswith(gauges):
            lines += (line.replace(b"{", b'{pid="%d",' % pid) for pid in range(processes))
    assert parse(name, join(lines)) == parse(name, load_page(name))


@pytest.mark.parametrize("broken", [b"", b"many", b"4.0 5.0 6.0", b"NaN"])
@pytest.mark.parametrize(
    ("engine", "family", "label"),
    [("vllm", b"vllm:num_requests_running", b"engine"), ("sglang", b"sglang:num_running_reqs", b"dp_rank")],
)
def test_of_two_parts_of_which_one_cannot_be_read_there_is_no_sum(
    engine: str, family: bytes, label: bytes, broken: bytes
) -> None:
    page = b'%b{%b="0"} 3.0\n%b{%b="1"} ' % (family, label, family, label)
    assert get_engine(engine).parse(page + b"4.0\n", 1.0).running == 7.0
    assert get_engine(engine).parse(page + broken + b"\n", 1.0).running is None
    assert get_engine(engine).parse(page[:-5], 1.0).running is None, "nor where its labels are cut"


def test_figures_too_large_to_add_up_are_unknown() -> None:
    page = b'vllm:num_requests_running{engine="0"} 1.7e308\nvllm:num_requests_running{engine="1"} 1.7e308\n'
    assert get_engine("vllm").parse(page, 1.0) == Sample(1.0)


# --- damage of any kind -----------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.sampled_from([*sorted(PAGES), "dcgm_healthy_h100x2", "vllm_python_only_7188"]), st.data())
def test_however_a_page_is_damaged_no_engine_raises_or_tells_what_cannot_be(
    name: str, data: st.DataObject
) -> None:
    page = load_page(name)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(page)))
        end = data.draw(st.integers(start, min(len(page), start + 2000)))
        match data.draw(st.sampled_from(["cut", "copy", "fill", "split"])):
            case "cut":
                page = page[:start] + page[end:]
            case "copy":
                page = page[:end] + page[start:]
            case "fill":
                page = page[:start] + data.draw(st.binary(max_size=40)) + page[end:]
            case "split":
                page = (
                    page[:start]
                    + data.draw(st.sampled_from([b"\n", b"\r", b"{", b'"', b"\\"]))
                    + page[start:]
                )
    for engine in ENGINES.values():
        try:
            sample = engine.parse(page, 1.0)
        except NotMetrics:
            continue
        for figure in (*LOAD, "progress", "requests_total", "process_started_at"):
            value = getattr(sample, figure)
            assert value is None or isinstance(value, bool) or (math.isfinite(value) and value >= 0)
        assert sample.kv_cache_usage is None or sample.kv_cache_usage <= 1
    try:
        gpus = parse_dcgm(page)
    except NotMetrics:
        return
    assert len({gpu.gpu for gpu in gpus}) == len(gpus)
    assert all(temperature_can_be(gpu) for gpu in gpus)


def temperature_can_be(gpu: GpuSample) -> bool:
    return gpu.temperature_c is None or 0 <= gpu.temperature_c < 2_147_483_632
