"""The event-stream grammar, case by case, each fed whole, byte by byte and with trailing data."""

import pytest

from envoy_ext.domain.sse import SseEvent, SseParser

LIMIT = 1 << 20

CASES = {
    "one line of data": (b"data: x\n\n", [(b"x", "")]),
    "no space after the colon": (b"data:x\n\n", [(b"x", "")]),
    "only one leading space is dropped": (b"data:  x \n\n", [(b" x ", "")]),
    "a tab is not a space": (b"data:\tx\n\n", [(b"\tx", "")]),
    "lines of data are joined with LF": (b"data: a\ndata: b\n\n", [(b"a\nb", "")]),
    "data without a colon is an empty line of data": (b"data\n\n", [(b"", "")]),
    "two of them are one LF": (b"data\ndata\n\n", [(b"\n", "")]),
    "data with nothing after the colon": (b"data:\n\n", [(b"", "")]),
    "CRLF ends lines": (b"data: x\r\n\r\n", [(b"x", "")]),
    "CR ends lines": (b"data: x\r\rdata: y\r\r", [(b"x", ""), (b"y", "")]),
    "line ends may be mixed": (b"data: a\rdata: b\r\ndata: c\n\r\n", [(b"a\nb\nc", "")]),
    "LF CR is two line ends": (b"data: a\n\rdata: b\n\n", [(b"a", ""), (b"b", "")]),
    "an event has a name": (b"event: ping\ndata: x\n\n", [(b"x", "ping")]),
    "the last name counts": (b"event: a\nevent: b\ndata: x\n\n", [(b"x", "b")]),
    "a name may follow the data": (b"data: x\nevent: late\n\n", [(b"x", "late")]),
    "a name lasts for one event": (b"event: a\ndata: x\n\ndata: y\n\n", [(b"x", "a"), (b"y", "")]),
    "a name alone dispatches nothing and is forgotten": (b"event: a\n\ndata: x\n\n", [(b"x", "")]),
    "a comment is nothing": (b": hello\n\n", []),
    "an empty comment is nothing": (b":\n\n:\n\n", []),
    "a comment inside an event": (b"data: a\n: ping\ndata: b\n\n", [(b"a\nb", "")]),
    "id and retry alone dispatch nothing": (b"id: 7\nretry: 10\n\n", []),
    "id beside data is ignored": (b"id: 7\ndata: x\n\n", [(b"x", "")]),
    "an id seen earlier does not make blank lines events": (
        b"id: 7\ndata: x\n\n: ping\n\n\n\n",
        [(b"x", "")],
    ),
    "unknown fields are ignored": (b"error: {}\nfoo\ndata: x\n\n", [(b"x", "")]),
    "field names are whole and case-sensitive": (b"Data: a\ndataset: b\n data: c\ndata : d\n\n", []),
    "colons in the value stay": (b"data: a: b\n\n", [(b"a: b", "")]),
    "blank lines alone are nothing": (b"\n\r\n\r\n\n", []),
    "a byte order mark at the start is dropped": (b"\xef\xbb\xbfdata: x\n\n", [(b"x", "")]),
    "a byte order mark before a blank line": (b"\xef\xbb\xbf\ndata: x\n\n", [(b"x", "")]),
    "only one byte order mark is dropped": (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", []),
    "a later byte order mark is part of a field name": (b"\n\xef\xbb\xbfdata: x\n\n", []),
    "half a byte order mark is none": (b"\xef\xbbdata: x\n\n", []),
    "no line end but the three": (
        b"data: a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f\n\n",
        [(b"a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f", "")],
    ),
    "bytes that are no UTF-8 pass": (b"data: \xff\xfe\x00\n\n", [(b"\xff\xfe\x00", "")]),
    "an unfinished event is not dispatched": (b"data: x\n", []),
    "an unfinished line is not read": (b"data: x", []),
}


def as_events(pairs):
    return [SseEvent(data, event) for data, event in pairs]


def feed_bytes(parser, data):
    return [event for byte in data for event in parser.feed(bytes([byte]))]


@pytest.mark.parametrize(("stream", "events"), CASES.values(), ids=CASES.keys())
class TestGrammar:
    def test_whole(self, stream, events):
        assert SseParser(LIMIT).feed(stream) == as_events(events)

    def test_byte_by_byte(self, stream, events):
        assert feed_bytes(SseParser(LIMIT), stream) == as_events(events)

    def test_with_trailing_data(self, stream, events):
        parser = SseParser(LIMIT)
        if not stream.endswith((b"\n\n", b"\r\r", b"\n\r\n")):
            stream += b"\n\n"  # the case is about an unfinished event: finish it
            events = SseParser(LIMIT).feed(stream)
        else:
            events = as_events(events)
        assert parser.feed(stream + b"data: trailing\n\ndata: half") == [*events, SseEvent(b"trailing", "")]
        assert parser.received - parser.boundary == len(b"data: half")


BOUNDARIES = {
    "nothing": (b"", 0),
    "a partial line waits": (b"dat", 0),
    "a line of data waits for its blank line": (b"data: x\n", 0),
    "a name waits for its blank line": (b"event: x\n", 0),
    "a finished event": (b"data: x\n\n", 9),
    "a comment needs no blank line": (b": ping\n", 7),
    "a partial comment waits": (b": ping\n: pi", 7),
    "a comment inside an event waits with it": (b"data: x\n: ping\n", 0),
    "a comment after an event": (b"data: x\n\n: ping\n", 16),
    "fields that open no event": (b"id: 1\nretry: 5\nfoo: bar\n", 24),
    "a half event after a whole one": (b"data: x\n\ndata: y", 9),
    "a CR at the end counts": (b"data: x\r\n\r", 10),
    "and so does its LF": (b"data: x\r\n\r\n", 11),
    "a byte order mark is part of the first line": (b"\xef\xbb\xbf", 0),
    "JSON without a field name is a field of no known name": (b'{"error":"x"}\n', 14),
    "and waits for its line end": (b'{"error":"x"}', 0),
}


@pytest.mark.parametrize(("stream", "boundary"), BOUNDARIES.values(), ids=BOUNDARIES.keys())
def test_the_boundary_never_cuts_an_event(stream, boundary):
    whole, bytewise = SseParser(LIMIT), SseParser(LIMIT)
    whole.feed(stream)
    feed_bytes(bytewise, stream)
    assert (whole.boundary, whole.received) == (boundary, len(stream))
    assert (bytewise.boundary, bytewise.received) == (boundary, len(stream))


def test_a_crlf_cut_between_chunks_is_one_line_end():
    parser = SseParser(LIMIT)
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\r\n\r") == [SseEvent(b"a\nb", "")]
    assert parser.feed(b"\n") == []
    assert parser.boundary == parser.received == 20


def test_an_empty_chunk_changes_nothing():
    parser = SseParser(LIMIT)
    parser.feed(b"data: x")
    assert parser.feed(b"") == []
    assert (parser.received, parser.boundary) == (7, 0)
    assert parser.feed(b"\n\n") == [SseEvent(b"x", "")]


class TestOverflow:
    def test_an_event_of_exactly_the_limit_passes(self):
        parser = SseParser(9)
        assert parser.feed(b"data: ab\n\n") == [SseEvent(b"ab", "")]
        assert not parser.overflowed

    def test_an_event_above_the_limit_ends_the_watching(self):
        parser = SseParser(9)
        assert parser.feed(b"data: abc\n\n") == []
        assert parser.overflowed
        assert parser.boundary == parser.received == 11

    def test_it_is_for_ever(self):
        parser = SseParser(9)
        parser.feed(b"data: abcdef")
        assert parser.feed(b"\n\ndata: x\n\n") == []
        assert parser.overflowed
        assert parser.boundary == parser.received == 23

    def test_events_before_it_are_dispatched(self):
        parser = SseParser(9)
        assert parser.feed(b"data: ok\n\ndata: too long\n\ndata: x\n\n") == [SseEvent(b"ok", "")]
        assert parser.overflowed

    def test_many_small_events_in_one_chunk_are_no_long_event(self):
        parser = SseParser(16)
        assert len(parser.feed(b"data: x\n\n" * 1000)) == 1000
        assert not parser.overflowed

    @pytest.mark.parametrize(
        "endless",
        [b"x" * 64, b": " + b"c" * 64, b"data: 1\n" * 16, b"event: a\n" * 16, b"data: a\n" + b": c\n" * 16],
        ids=["line", "comment", "data lines", "names", "comments inside an event"],
    )
    def test_nothing_grows_without_a_bound(self, endless):
        whole, bytewise = SseParser(32), SseParser(32)
        assert whole.feed(endless) == feed_bytes(bytewise, endless) == []
        assert whole.overflowed
        assert bytewise.overflowed

    def test_comments_between_events_may_go_on_for_ever(self):
        parser = SseParser(32)
        parser.feed(b": ping\n" * 1000)
        assert not parser.overflowed
        assert parser.boundary == parser.received
