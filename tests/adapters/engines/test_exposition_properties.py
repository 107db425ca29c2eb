"""Any bytes give an answer or NotMetrics; valid pages give what prometheus_client reads in them.

Left out of the comparison, because there prometheus_client does something else on purpose or by
mistake: counters without `_total` (it adds the suffix to sample names), and names in OpenMetrics only.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from envoy_ext.adapters.engines import ENGINES
from envoy_ext.adapters.engines.dcgm import parse_dcgm
from envoy_ext.adapters.engines.exposition import NotMetrics, scan
from tests.adapters.engines.pages import list_pages, load_page

WANTED = frozenset({b"load", b"load_total", b"ns:load", b"depth"})
NAMES = ["load", "load_total", "ns:load", "depth", "loads", "load_bucket", "xload", "depth_by_reason"]

Sample = tuple[str, frozenset[tuple[str, str]], str]

label_names = st.sampled_from(["a", "engine", "model_name", "le", "UUID", "_x"])
# Without surrogates, which no page can hold, and without the bare carriage return: it ends a line for
# prometheus_client's reader of files and not for its reader of strings.
label_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
numbers = st.one_of(
    st.floats(),
    st.integers(-(10**15), 10**15).map(float),
    st.sampled_from([0.0, 1.0, 11701968896.0, math.nan]),
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["sample", "sample", "sample", "help", "comment", "empty"]))
    name = draw(st.sampled_from(NAMES))
    text = draw(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10))
    match kind:
        case "help":
            return f"# HELP {name} {text}"
        case "comment":
            return f"# {text}"
        case "empty":
            return ""
    labels = draw(st.dictionaries(label_names, label_values, max_size=3))
    pairs = ",".join(f'{label}="{escape(value)}"' for label, value in labels.items())
    braces = f"{{{pairs}}}" if labels or draw(st.booleans()) else ""
    value = draw(numbers)
    shown = draw(st.sampled_from([repr(value), f"{value:.6e}", f"{value:+.3f}"]))
    timestamp = draw(st.sampled_from(["", " 1788184174081", " 0"]))
    blank = draw(st.sampled_from([" ", "  ", "\t"]))
    return f"{name}{braces}{blank}{shown}{timestamp}"


def escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@st.composite
def pages(draw: st.DrawFn) -> str:
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    body = newline.join(draw(st.lists(lines(), max_size=12)))
    return "# page" + newline + body + draw(st.sampled_from(["", newline]))


def as_samples(found: Iterable[tuple[str, dict[str, str], float]]) -> Counter[Sample]:
    return Counter((name, frozenset(labels.items()), repr(value)) for name, labels, value in found)


@given(pages())
def test_it_agrees_with_prometheus_client_on_valid_pages(page: str) -> None:
    expected = as_samples(
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.encode() in WANTED
    )
    found = as_samples(
        (series.name.decode(), series.labels, series.value) for series in scan(page.encode(), WANTED)
    )
    assert found == expected


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_not_metrics(page: bytes) -> None:
    for engine in ENGINES.values():
        with contextlib.suppress(NotMetrics):
            engine.parse(page, 1.0)
    with contextlib.suppress(NotMetrics):
        parse_dcgm(page)


fragments = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(b"load", b"load_total", b"depth", b"{", b"}", b'a="', b'"', b"\\", b",", b"=", b" ", b"\t"),
                *(
                    b"\n",
                    b"\r\n",
                    b"1",
                    b"-nan",
                    b"+Inf",
                    b"1e999",
                    b"# ",
                    b"# EOF",
                    b"# {",
                    b"1788184174081",
                ),
            ]
        ),
        st.binary(max_size=3),
    ),
    max_size=30,
)


@given(fragments)
def test_no_arrangement_of_the_grammars_pieces_raises_anything_but_not_metrics(pieces: list[bytes]) -> None:
    with contextlib.suppress(NotMetrics):
        for series in scan(b"".join(pieces), WANTED):
            assert series.name in WANTED
            assert isinstance(series.value, float)


@given(st.sampled_from(list_pages()), st.data())
def test_a_damaged_page_of_a_real_engine_gives_figures_that_can_be_meant(
    name: str, data: st.DataObject
) -> None:
    page = load_page(name)
    start = data.draw(st.integers(0, len(page)))
    end = data.draw(st.integers(start, min(len(page), start + 200)))
    damaged = page[:start] + data.draw(st.binary(max_size=20)) + page[end:]
    for engine in ENGINES.values():
        with contextlib.suppress(NotMetrics):
            sample = engine.parse(damaged, 1.0)
            figures = (
                sample.running,
                sample.waiting,
                sample.kv_cache_usage,
                sample.progress,
                sample.max_running,
            )
            assert all(figure is None or (math.isfinite(figure) and figure >= 0) for figure in figures)
            assert sample.kv_cache_usage is None or sample.kv_cache_usage <= 1
