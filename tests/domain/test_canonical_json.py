"""Two texts of one JSON value have one canonical form, and two values never have the same."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.canonical_json import parse_json, write_as_read, write_canonical

SCALARS = st.none() | st.booleans() | st.integers() | st.decimals(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


def canonical(text: str | bytes) -> str:
    return write_canonical(parse_json(text if isinstance(text, bytes) else text.encode()))


def build_text(value: object, draw: st.DrawFn) -> str:
    """One of the many texts of a value: members in any order, blanks anywhere, numbers in any form."""
    blank = draw(st.sampled_from(["", " ", "\n\t"]))
    if isinstance(value, dict):
        names = draw(st.permutations(sorted(value)))
        members = [f"{json.dumps(one)}{blank}:{build_text(value[one], draw)}" for one in names]
        return f"{{{blank}{f'{blank},'.join(members)}}}"
    if isinstance(value, list):
        return f"[{blank}{f',{blank}'.join(build_text(one, draw) for one in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=draw(st.booleans()))
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    assert isinstance(value, int | Decimal)
    sign, digits, exponent = Decimal(value).as_tuple()
    zeros = draw(st.integers(0, 3))
    figures = "".join(map(str, digits)).lstrip("0") + "0" * zeros
    assert isinstance(exponent, int)
    return (
        f"{'-' if sign else ''}{figures}{draw(st.sampled_from('eE'))}{exponent - zeros}" if value else "0.0"
    )


@st.composite
def two_texts(draw: st.DrawFn) -> tuple[str, str]:
    value = draw(VALUES)
    return build_text(value, draw), build_text(value, draw)


def is_same(one: object, other: object) -> bool:
    """Equality as JSON has it: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and one == other


def read_plain(text: str) -> object:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@given(two_texts())
def test_order_blanks_and_the_form_of_numbers_make_no_difference(texts: tuple[str, str]) -> None:
    assert canonical(texts[0]) == canonical(texts[1])


@given(st.tuples(two_texts(), two_texts()))
def test_two_values_have_two_forms(pairs: tuple[tuple[str, str], tuple[str, str]]) -> None:
    one, other = pairs[0][0], pairs[1][0]
    assert (canonical(one) == canonical(other)) == is_same(read_plain(one), read_plain(other))


@given(two_texts())
def test_the_canonical_form_is_a_text_of_the_value_and_its_own_form(texts: tuple[str, str]) -> None:
    form = canonical(texts[0])
    assert is_same(read_plain(form), read_plain(texts[0]))
    assert canonical(form) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("10e-1", "1"),
        ("1.50", "15e-1"),
        ("-0.0", "0"),
        ("100", "100"),
        ("1e400", "1e400"),
        ("1e999999999999999999999999", "1e999999999999999999999999"),
        ("12345678901234567890.10", "123456789012345678901e-1"),
        ('"e\u0301"', '"e\\u0301"'),
        ('"\\ud800"', '"\\ud800"'),
        ('{"b":1,"a":{"d":2,"c":true}}', '{"a":{"c":true,"d":2},"b":1}'),
    ],
)
def test_forms(text: str, form: str) -> None:
    assert canonical(text) == form


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"{",
            b"{'a':1}",
            b"[1,]",
            b"NaN",
            b"[Infinity]",
            b'{"a":1,"a":1}',
            b"\xff",
            b"\xef\xbb\xbf{}",
        ),
        *(b"1 2", b'{"x":{"a":1,"b":2,"a":3}}', b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_what_is_not_strictly_json_is_not_read(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        parse_json(text)


def test_written_as_read_keeps_numbers_and_the_order_of_members() -> None:
    text = '{"b":1.10,"a":[1e2,12345678901234567890.123456789]}'
    assert write_as_read(parse_json(text.encode())) == text
