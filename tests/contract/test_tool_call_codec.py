"""Tool calls and answers' headers as stores write them: what is written is read, and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.adapters.journal_codec import UnreadableRecord
from envoy_ext.adapters.tool_call_codec import (
    decode_call,
    decode_headers,
    encode_call,
    encode_headers,
    refuse_unwritable,
)
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.tool_calls import CallId, CallState, ToolCall

# Lone surrogates come from bytes that are not UTF-8: `surrogateescape` makes low ones of them.
_texts = st.text(
    st.characters() | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF), max_size=8
).filter(lambda text: not any("\ud800" <= one < "\udc00" for one in text))
_times = st.floats(allow_nan=False, allow_infinity=False)
_calls = st.builds(
    ToolCall,
    call_id=_texts.map(CallId),
    tool=_texts,
    fingerprint=_texts,
    arguments_sha256=_texts,
    ordinal=st.integers(1, 2**70),
    idempotent=st.booleans(),
    attempts=st.lists(_texts.map(AttemptId), min_size=1, max_size=3).map(tuple),
    operation_id=_texts.map(OperationId),
    state=st.sampled_from(CallState),
    begun_at=_times,
    ended_at=st.none() | _times,
    status=st.none() | st.integers(100, 599),
    grants=st.integers(1, 2**70),
)
CALL = ToolCall(
    call_id=CallId("call_0123"),
    tool="mail",
    fingerprint="fp",
    arguments_sha256="ab",
    ordinal=1,
    idempotent=False,
    attempts=(AttemptId("att_1"),),
    operation_id=OperationId("op_1"),
    state=CallState.RECORDED,
    begun_at=7.5,
    ended_at=8.5,
    status=200,
)
LINE = (
    '{"v":1,"call_id":"call_0123","tool":"mail","fingerprint":"fp","arguments_sha256":"ab","ordinal":1,'
    '"idempotent":false,"attempts":["att_1"],"operation_id":"op_1","state":"recorded","begun_at":7.5,'
    '"ended_at":8.5,"status":200,"grants":1}'
)


def changed(**fields: object) -> str:
    return json.dumps(json.loads(LINE) | fields)


@given(_calls)
def test_every_call_is_read_as_it_was_written(call: ToolCall) -> None:
    line = encode_call(call)
    assert line.isascii()
    assert "\n" not in line
    assert decode_call(line) == decode_call(line.encode()) == call


@given(st.lists(st.tuples(_texts, _texts), max_size=4).map(tuple))
def test_headers_are_read_as_they_were_written(headers: tuple[tuple[str, str], ...]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


def test_version_1_stays_as_it_is() -> None:
    assert encode_call(CALL) == LINE
    assert decode_call(LINE) == CALL


def test_a_field_of_a_later_release_is_ignored() -> None:
    assert decode_call(changed(added={"a": [1]})) == CALL


@pytest.mark.parametrize("name", json.loads(LINE))
def test_every_field_is_needed_and_has_one_type(name: str) -> None:
    fields = json.loads(LINE)
    del fields[name]
    with pytest.raises(UnreadableRecord):
        decode_call(json.dumps(fields))
    for odd in ({"SECRET": 1}, [["SECRET"]], True if name != "idempotent" else "true"):
        with pytest.raises(UnreadableRecord) as caught:
            decode_call(changed(**{name: odd}))
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "SECRET"),
        ("ordinal", "1"),
        ("ordinal", 1.0),
        ("grants", None),
        ("status", "200"),
        ("begun_at", "7.5"),
        ("begun_at", None),
        ("begun_at", 10**400),
        ("attempts", []),
        ("attempts", "att_1"),
        ("attempts", ["att_1", None]),
        ("v", 2),
        ("v", 0),
        ("v", "SECRET"),
    ],
)
def test_a_value_that_guessing_would_take_is_refused_and_not_shown(name: str, value: object) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        decode_call(changed(**{name: value}))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_time_that_is_no_number_is_neither_read_nor_written(number: str) -> None:
    with pytest.raises(UnreadableRecord, match="no usable begun_at"):
        decode_call(LINE.replace("7.5", number))
    with pytest.raises(ValueError, match=r"(?i)float"):
        refuse_unwritable(float(number))


def test_every_cut_makes_a_call_and_headers_unreadable() -> None:
    headers = encode_headers((("content-type", "application/json"),))
    for decode, line in ((decode_call, LINE), (decode_headers, headers)):
        for end in range(len(line)):
            with pytest.raises(UnreadableRecord):
                decode(line[:end])  # type: ignore[operator]


@pytest.mark.parametrize(
    "text", ["[]", "null", "7", '"v"', "[" * 100_000, b"\xff\xfe{}", b'{"v":1,"tool":"\xff"}']
)
def test_what_is_no_call_at_all_is_refused(text: str | bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_call(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"ab":1}',
        '"abcd"',
        '["ab","cd"]',
        '[["a"]]',
        '[["a","b","c"]]',
        '[["a",1]]',
        "null",
        "[" * 100_000,
        b"\xff",
    ],
)
def test_what_are_no_headers_are_refused(text: str | bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_headers(text)


def test_a_line_that_was_read_before_costs_nothing() -> None:
    """A claim reads its whole ledger; with hundreds of calls at once a store would do little else."""
    assert decode_call(LINE) is decode_call("".join([LINE[:5], LINE[5:]]))
