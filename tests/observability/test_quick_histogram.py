"""The quick histogram has the page of prometheus_client's own."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from envoy_ext.observability.quick_histogram import QuickHistogram

BUCKETS = (1e-05, 0.0005, 1.0)
values = st.one_of(st.floats(0, 3), st.sampled_from([0.0, *BUCKETS, 2.0]))


@pytest.mark.parametrize("encode", [generate_latest, openmetrics.generate_latest])
@given(observed=st.lists(values, max_size=20))
def test_the_same_page(encode, observed):
    pages = []
    for kind in (Histogram, QuickHistogram):
        registry = CollectorRegistry()
        histogram = kind("x_seconds", "What it is.", registry=registry, buckets=BUCKETS)
        for value in observed:
            histogram.observe(value)
        pages.append(re.sub(rb"(_created) \S+", rb"\1", encode(registry)))
    assert pages[0] == pages[1]
    assert b"x_seconds_count %s.0" % str(len(observed)).encode() in pages[1]


def test_a_name_is_taken_once():
    registry = CollectorRegistry()
    QuickHistogram("x_seconds", "What it is.", registry=registry, buckets=BUCKETS)
    with pytest.raises(ValueError, match="x_seconds"):
        QuickHistogram("x_seconds", "What it is.", registry=registry, buckets=BUCKETS)
