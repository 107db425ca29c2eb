"""The scanner of Prometheus text: which lines it takes, and which it leaves out."""

import math
import re
from collections import Counter

import pytest

from envoy_ext.adapters.engines import exposition
from envoy_ext.adapters.engines.exposition import (
    MAX_SERIES,
    NotMetrics,
    Series,
    drop_unfinished_line,
    scan,
)
from tests.adapters.engines.pages import list_pages, load_page

WANTED = frozenset({b"load", b"load_total", b"ns:load"})


def read(page: bytes) -> list[tuple[str, dict[str, str], float]]:
    return [(series.name.decode(), series.labels, series.value) for series in scan(page, WANTED)]


def values(page: bytes) -> list[float]:
    return [series.value for series in scan(page, WANTED)]


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        (b"load 1", {}, 1.0),
        (b"load\t1", {}, 1.0),
        (b"load   1  ", {}, 1.0),
        (b"load{} 1", {}, 1.0),
        (b"load{}1", {}, 1.0),
        (b'load{a="b"} 1', {"a": "b"}, 1.0),
        (b'load {a="b"} 1', {"a": "b"}, 1.0),
        (b'load{a="b",} 1', {"a": "b"}, 1.0),
        (b'load{gpu="0", UUID="x",pod=""} 1', {"gpu": "0", "UUID": "x", "pod": ""}, 1.0),
        (b'load{ a = "b" , c = "d" } 1', {"a": "b", "c": "d"}, 1.0),
        (rb'load{a="say \"hi\"\\\n}"} 1', {"a": 'say "hi"\\\n}'}, 1.0),
        (rb'load{a="\t"} 1', {"a": r"\t"}, 1.0),
        (rb'load{a="\\"} 1', {"a": "\\"}, 1.0),
        (rb'load{a="\\n"} 1', {"a": r"\n"}, 1.0),
        (b'load{a="} 2",b="{,=#"} 1', {"a": "} 2", "b": "{,=#"}, 1.0),
        ('load{a="größe"} 1'.encode(), {"a": "größe"}, 1.0),
        (b'load{a="\xff"} 1', {"a": "\ufffd"}, 1.0),
        (b"load 1.1701968896e+010", {}, 11701968896.0),
        (b"load +.5", {}, 0.5),
        (b"load 5.", {}, 5.0),
        (b"load -3E-2", {}, -0.03),
        (b"load 9223372036854775808.000000", {}, 2.0**63),
        (b"load " + b"%f" % 1e308, {}, 1e308),
        (b"load +Inf", {}, math.inf),
        (b"load -inf", {}, -math.inf),
        (b"load 1 1788184174081", {}, 1.0),
        (b"load 1 1788184174.081", {}, 1.0),
        (b'load 1 # {trace_id="4bf92f"} 0.067 1788184170.5', {}, 1.0),
        (b'load 1 1788184174.0 # {trace_id="4bf92f"} 0.067', {}, 1.0),
        (b"load 1\r", {}, 1.0),
    ],
)
@pytest.mark.parametrize("place", ["alone", "first", "last", "between"])
def test_a_line_of_the_grammar_is_read(line: bytes, labels: dict[str, str], value: float, place: str) -> None:
    other = b"# TYPE other gauge\nother 7\n"
    page = {
        "alone": line,
        "first": line + b"\n" + other,
        "last": other + line,
        "between": other + line + b"\n" + other,
    }[place]
    assert read(page) == [("load", labels, value)]


@pytest.mark.parametrize("nan", [b"NaN", b"nan", b"-nan", b"+NaN"])
def test_nan_is_given_as_the_page_says_it(nan: bytes) -> None:
    (value,) = values(b"load " + nan)
    assert math.isnan(value)


@pytest.mark.parametrize(
    "line",
    [
        b"load ",
        b"load{",
        b'load{a="b"',
        b'load{a="b} 1',
        b'load{a="b" c="d"} 1',
        b"load{a=b} 1",
        b'load{a="b"}',
        b'load{,a="b"} 1',
        b'load{0a="b"} 1',
        b'load{a="b\\',
        b"load one",
        b"load 1_000",
        b"load 0x1p-2",
        b"load 1e",
        b"load 1 soon",
        b'load 1 soon # {a="b"} 1',
        b"load 1 2 3",
        b"load " + b"1" * 401,
        "load ١".encode(),  # a digit for Python's float, not for Prometheus
        b'load{a="' + b"x" * 20_000 + b'"} 1',
    ],
)
def test_a_line_outside_the_grammar_is_a_sample_whose_value_is_not_known(line: bytes) -> None:
    first, broken, last = values(b"# x\nload 1\n" + line + b"\nload 2\n")
    assert (first, last) == (1.0, 2.0)
    assert math.isnan(broken)
    assert [math.isnan(value) for value in values(b"# x\n" + line)] == [True]


def test_labels_that_can_be_read_stay_with_a_value_that_cannot() -> None:
    [(name, labels, value)] = read(b'load{a="b"} many\n')
    assert (name, labels, math.isnan(value)) == ("load", {"a": "b"}, True)


@pytest.mark.parametrize(
    "line",
    [
        b"load",
        b"load=1",
        b"load:1",
        b"loads 1",
        b"load1 5",
        b"load2",
        b"load_bucket 1",
        b"load_total_created 1",
        b"xload 1",
        b"# load 1",
        b"# TYPE load gauge",
        b"# HELP load Load.",
        b"other 1 load 1",
        b'other{a="load 1"} 1',
    ],
)
def test_a_line_of_another_name_is_left_out(line: bytes) -> None:
    assert values(b"# x\nload 1\n" + line + b"\nload 2\n") == [1.0, 2.0]
    assert values(b"# x\n" + line) == []


def test_names_are_exact_and_each_stands_for_itself() -> None:
    page = b"load 1\nload_total 2\nns:load 3\nload_total_count 4\nload_created 5\n"
    assert sorted(read(page)) == [("load", {}, 1.0), ("load_total", {}, 2.0), ("ns:load", {}, 3.0)]


def test_a_family_with_help_and_type_and_no_samples_gives_nothing() -> None:
    assert values(b"# HELP load Load.\n# TYPE load gauge\n") == []


def test_repeated_lines_are_given_as_often_as_they_stand_there() -> None:
    assert values(b"load 1\nload 1\nload 2") == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n", b"\n# EOF\n", b"\n# EOF"])
def test_a_page_may_end_in_any_way(end: bytes) -> None:
    assert values(b"load 1" + end) == [1.0]


def test_a_page_with_crlf_and_a_byte_order_mark_reads_the_same() -> None:
    assert read(b'\xef\xbb\xbfload{a="b"} 1\r\nother 2\r\nload 3\r\n') == [
        ("load", {"a": "b"}, 1.0),
        ("load", {}, 3.0),
    ]


@pytest.mark.parametrize("page", [b"", b"\n", b"  \r\n\t", b"# EOF\n", b"\xef\xbb\xbf"])
def test_an_empty_page_is_a_page_without_samples(page: bytes) -> None:
    assert values(page) == []


@pytest.mark.parametrize(
    "page",
    [
        b"<!DOCTYPE html><html><body>load 1\nload 1\n</body></html>",
        b"\n\n  <html>\nload 1\n",
        b"[]",
        b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
        b'"# HELP load Load.\\nload 1\\n"',
        b"Not Found",
        b"Internal Server Error\nload 1\n",
        b"\x1f\x8b\x08\x00 gzip\nload 1\n",
        b"\x00\x00\nload 1\n",
        b"data: load 1\n",
    ],
)
def test_what_does_not_begin_like_a_page_is_none(page: bytes) -> None:
    with pytest.raises(NotMetrics):
        scan(page, WANTED)


def test_what_is_wrong_is_said_without_quoting_the_page() -> None:
    with pytest.raises(NotMetrics) as refused:
        scan(b"<html>secret", WANTED)
    assert "secret" not in str(refused.value)


def test_more_series_than_any_engine_has_are_refused() -> None:
    line = b'load{request="%d"} 1\n'
    page = b"".join(line % number for number in range(MAX_SERIES))
    assert len(scan(page, WANTED)) == MAX_SERIES
    with pytest.raises(NotMetrics):
        scan(page + line % MAX_SERIES, WANTED)


def test_lines_that_are_not_wanted_have_no_bound() -> None:
    assert values(b'load_bucket{le="1"} 1\n' * (MAX_SERIES + 1) + b"load 2\n") == [2.0]


@pytest.mark.parametrize("name", list_pages())
@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_a_page_is_searched_in_slices_and_loses_nothing_between_them(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = load_page(name)
    names = {re.split(rb"[{ ]", line, maxsplit=1)[0] for line in page.splitlines()}
    wanted = frozenset(names - {b"#"})
    whole = [repr(series) for series in scan(page, wanted)]
    monkeypatch.setattr(exposition, "_SLICE_BYTES", size)
    assert [repr(series) for series in scan(page, wanted)] == whole


def test_labels_that_are_remembered_are_those_of_their_own_line() -> None:
    lines = [
        (b'load{a="1"} 1', {"a": "1"}),
        (b'load{a="1"}  1', {"a": "1"}),
        (b'load{a="1",b="2"} 1', {"a": "1", "b": "2"}),
        (b"load 1", {}),
        (b'load{a="%b"} 1' % (b"x" * 1000), {"a": "x" * 1000}),
    ]
    for _ in range(2):
        for line, labels in lines:
            (series,) = scan(line, WANTED)
            assert series.labels == labels
    (series,) = scan(lines[0][0], WANTED)
    with pytest.raises(TypeError):
        series.labels["a"] = "another"  # type: ignore[index]


def test_nothing_is_wanted_and_nothing_is_found() -> None:
    assert scan(b"load 1\n", frozenset()) == []


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        (b"load 12", b""),
        (b"load 1\nload 12", b"load 1\n"),
        (b"load 1\n", b"load 1\n"),
        (b"load 1\r\nlo", b"load 1\r\n"),
        (b"", b""),
    ],
)
def test_an_unfinished_last_line_can_be_dropped(page: bytes, kept: bytes) -> None:
    assert drop_unfinished_line(page) == kept


@pytest.mark.parametrize(
    "name",
    ["sglang_priority_scheduling", "openmetrics_exemplar_nan_eof", "dcgm_old_exporter_blank_sentinels"],
)
def test_every_beginning_of_a_page_gives_a_beginning_of_its_samples(name: str) -> None:
    """Byte by byte: what was cut is missing, and nothing that is given is wrong."""
    page = load_page(name)
    names = {re.split(rb"[{ ]", line, maxsplit=1)[0] for line in page.splitlines()}
    wanted = frozenset(names - {b"#"})
    whole = [repr(series) for series in scan(page, wanted)]  # as text, because NaN is not NaN
    assert len(whole) >= 3
    for end in range(len(page)):
        some = [repr(series) for series in scan(drop_unfinished_line(page[:end]), wanted)]
        assert not Counter(some) - Counter(whole)
    assert [repr(series) for series in scan(drop_unfinished_line(page), wanted)] == whole


@pytest.mark.parametrize("name", list_pages())
@pytest.mark.parametrize("tail", [b"load 1", b"\x00\xff", b"{", b"# ", b"<html>"])
def test_data_behind_a_page_changes_nothing_before_it(name: str, tail: bytes) -> None:
    page = load_page(name)
    wanted = frozenset({b"process_start_time_seconds", b"vllm:num_requests_running", b"tgi_queue_size"})
    assert scan(page.rstrip(b"\n") + b"\n" + tail, wanted) == scan(page, wanted)


def test_a_series_can_be_printed() -> None:
    assert repr(Series(b"load", {"a": "b"}, 1.0)) == "Series(name=b'load', labels={'a': 'b'}, value=1.0)"
