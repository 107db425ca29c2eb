"""Newline-delimited JSON: whole, byte by byte, with trailing data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain.ndjson import NdjsonParser

CASES = {
    "lines": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}'], b""),
    "a CR before the LF stays, as white space": (b'{"a":1}\r\n', [b'{"a":1}\r'], b""),
    "a CR alone ends nothing": (b"1\r2\n", [b"1\r2"], b""),
    "blank lines are nothing": (b"\n \n\r\n\n1\n", [b"1"], b""),
    "a line without its end waits": (b"1\n2", [b"1"], b"2"),
    "nothing": (b"", [], b""),
}


@pytest.mark.parametrize(("body", "lines", "rest"), CASES.values(), ids=CASES.keys())
def test_lines(body, lines, rest):
    whole, bytewise, trailing = (NdjsonParser(1 << 20) for _ in range(3))
    assert [event.data for event in whole.feed(body)] == lines
    assert [event.data for byte in body for event in bytewise.feed(bytes([byte]))] == lines
    assert whole.rest == bytewise.rest == rest
    assert whole.boundary == bytewise.boundary == len(body) - len(rest)
    assert whole.received == bytewise.received == len(body)
    more = [event.data for event in trailing.feed(body + b"9\n0")]
    assert more == [*lines, rest + b"9"]
    assert trailing.rest == b"0"


def test_a_line_above_the_limit_ends_the_watching():
    parser = NdjsonParser(4)
    assert [event.data for event in parser.feed(b"1234\n12345\n1\n")] == [b"1234"]
    assert parser.overflowed
    assert parser.feed(b"1\n") == []
    assert parser.boundary == parser.received == 15


@given(
    st.lists(st.sampled_from([b"1", b"\n", b"\r", b" ", b"\n\n"])).map(b"".join), st.integers(0, 6), st.data()
)
@settings(deadline=None)
def test_chunks_do_not_matter(body, limit, data):
    cut = data.draw(st.integers(0, len(body)))
    whole, halves, bytewise = (NdjsonParser(limit) for _ in range(3))
    expected = whole.feed(body)
    assert halves.feed(body[:cut]) + halves.feed(body[cut:]) == expected
    assert [event for byte in body for event in bytewise.feed(bytes([byte]))] == expected
    for parser in (halves, bytewise):
        assert (parser.boundary, parser.overflowed, parser.rest) == (
            whole.boundary,
            whole.overflowed,
            whole.rest,
        )
