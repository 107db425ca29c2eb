"""JSON read strictly, and written in one form: two texts of one value give the same bytes.

Members are sorted, and a number is its value: 1, 1.0 and 1e0 are one number, as JSON Schema has it
(https://json-schema.org/draft/2020-12/json-schema-core#section-4.2.2), because an engine that generates
arguments again may write either. Text stays as it is: no Unicode normalisation. Numbers are never turned
into floats on the way, so none loses a digit.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

_LONGEST_INTEGER: Final = 40
"""Digits up to which a number is written out; 1e999999999 is one too, and has no room."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    text: str


def parse_json(data: bytes) -> object:
    """The value, with numbers as `Number`.

    Raises:
        ValueError: it is not JSON, or holds a member twice, or is nested too deeply to be read.
    """
    try:
        return json.loads(
            data.decode(),  # UnicodeDecodeError is a ValueError
            object_pairs_hook=_build_object,
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_canonical(value: object) -> str:
    """The one form of a value that `parse_json` gave.

    Raises:
        ValueError: it is nested too deeply to be written.
    """
    return _write_whole(value, _normalise, sorted)


def write_as_read(value: object) -> str:
    """A value that `parse_json` gave, with its numbers and the order of its members as they were.

    Raises:
        ValueError: it is nested too deeply to be written.
    """
    return _write_whole(value, str, list)


def _write_whole(value: object, number: Callable[[str], str], order: Callable[[Any], Iterable[str]]) -> str:
    try:
        return _write(value, number, order)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _write(value: object, number: Callable[[str], str], order: Callable[[Any], Iterable[str]]) -> str:
    if isinstance(value, Number):
        return number(value.text)
    if isinstance(value, Mapping):
        members = (f"{json.dumps(name)}:{_write(value[name], number, order)}" for name in order(value))
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(_write(one, number, order) for one in value)}]"
    return json.dumps(value)


def _normalise(text: str) -> str:
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:  # an exponent of more than 18 digits: nobody computes with it
        return text
    assert isinstance(exponent, int)  # JSON has no word for NaN or infinity
    figures = "".join(map(str, digits))
    significant = figures.rstrip("0")
    if not significant:
        return "0"
    exponent += len(figures) - len(significant)
    minus = "-" if sign else ""
    if 0 <= exponent <= _LONGEST_INTEGER - len(significant):
        return f"{minus}{significant}{'0' * exponent}"
    return f"{minus}{significant}e{exponent}"


def _build_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands twice")
    return members


def _refuse_constant(_text: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")
