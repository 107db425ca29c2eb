"""However a stream is cut into chunks, its events, and where it may be cut, stay the same."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain.sse import SseParser

PIECES = [
    b"data", b"data:", b"data: ", b"event: e", b"id: 1", b"retry: 2", b":", b"x", b" ", b"{}",
    b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"\xef\xbb\xbf", b"\xef", b"\xe5\x8c\x97", b"\xff",
]  # fmt: skip

streams = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join),
    st.binary(max_size=200),
)
limits = st.one_of(st.just(1 << 20), st.integers(0, 40))


@st.composite
def cut_streams(draw):
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    return stream, [stream[a:b] for a, b in pairwise(edges)]


@given(cut_streams(), limits)
@settings(max_examples=400, deadline=None)
def test_chunks_do_not_matter(cut, limit):
    stream, chunks = cut
    whole, cut_up, bytewise = (SseParser(limit) for _ in range(3))
    expected = whole.feed(stream)
    assert [event for chunk in chunks for event in cut_up.feed(chunk)] == expected
    assert [event for byte in stream for event in bytewise.feed(bytes([byte]))] == expected
    for parser in (cut_up, bytewise):
        assert (parser.received, parser.boundary, parser.overflowed) == (
            whole.received,
            whole.boundary,
            whole.overflowed,
        )


@given(streams, limits)
@settings(max_examples=400, deadline=None)
def test_the_boundary_only_grows_and_holds_back_no_more_than_the_limit(stream, limit):
    parser = SseParser(limit)
    last = 0
    for received, byte in enumerate(stream, start=1):
        parser.feed(bytes([byte]))
        assert parser.received == received
        assert last <= parser.boundary <= received
        assert received - parser.boundary <= limit
        last = parser.boundary


@given(streams)
@settings(max_examples=400, deadline=None)
def test_the_bytes_before_the_boundary_hold_the_events_so_far_and_no_part_of_another(stream):
    parser = SseParser(1 << 20)
    events = []
    for byte in stream:
        events += parser.feed(bytes([byte]))
        again = SseParser(1 << 20)
        assert again.feed(stream[: parser.boundary]) == events
        assert again.boundary == parser.boundary
        # What a gateway appends there is an event of its own.
        assert [event.data for event in again.feed(b"data: appended\n\n")] == [b"appended"]
