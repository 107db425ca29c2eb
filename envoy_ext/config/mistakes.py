"""What is wrong with a configuration, in lines that name the key and the mend.

No line repeats a value of the file: a secret may stand in any wrong place. Names that have
already been checked against their form (pools, replicas) are the exception.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Final, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from envoy_ext.config.section import Section

Location = tuple[int | str, ...]

_MANY: Final[dict[object, str]] = {tuple: "[]", dict: ".<name>"}
"""How a place is written that the file may hold more than once."""


def format_location(location: Sequence[int | str]) -> str:
    """`pools[0].replicas[1].url`."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step != "[key]":  # pydantic's mark for the key of a mapping instead of its value
            text += f".{step}" if text else step
    return text


def describe_errors(error: ValidationError, root: type[Section]) -> list[tuple[Location, str]]:
    """One location and message for each mistake pydantic found."""
    return [(one["loc"], _describe(one, root)) for one in error.errors(include_url=False)]


def _describe(error: ErrorDetails, root: type[Section]) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return _describe_unknown_key(error["loc"], root)
        case "missing":
            return "missing: it has no default"
        case "invalid_key" | "string_type" if error["type"] == "invalid_key" or "[key]" in error["loc"]:
            return "keys must be text"
        case _ if error["input"] is None and not error["loc"]:
            return "the file is empty: it needs pools with at least one replica"
        case _ if error["input"] is None:
            return "has no value: give it one, or remove the key for its default"
        case "model_type" | "dict_type":
            return "must be a mapping of keys and values"
        case "tuple_type":
            return "must be a list"
        case "string_type":
            return "must be text: put it in quotes"
        case "int_type" | "int_from_float":
            return "must be a whole number, without quotes"
        case "float_type" | "finite_number":
            return "must be a number, without quotes"
        case "bool_type":
            return "must be true or false"
        case "literal_error":
            return _describe_choice(context["expected"], error["input"])
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "greater_than":
            return f"must be more than {context['gt']:g}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}"
        case "string_too_short":
            return "must not be empty"
        case _:
            return error["msg"]


def _describe_choice(expected: str, value: object) -> str:
    """`expected` is pydantic's "'a', 'b' or 'c'"."""
    names = expected.replace("'", "")
    return f"must be {names}" + _suggest(value, names.replace(" or ", ", ").split(", "))


def _describe_unknown_key(location: Location, root: type[Section]) -> str:
    section = _section_at(location[:-1], root)
    known = [field.alias or name for name, field in section.model_fields.items()] if section else []
    key = location[-1]
    misspelt = isinstance(key, str) and get_close_matches(key, known, n=1, cutoff=0.85)
    homes = _list_homes(key, root)
    if len(homes) == 1 and not misspelt:
        return f"unknown key here; it belongs to {homes[0]}"
    return "unknown key" + (_suggest(key, known) or f"; known here: {', '.join(known)}")


def _suggest(value: object, known: list[str]) -> str:
    near = get_close_matches(value.lower(), known, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]}?" if near else ""


def _section_at(location: Location, root: type[Section]) -> type[Section] | None:
    """The section whose keys stand at a location."""
    section: type[Section] | None = root
    names = iter([step for step in location if isinstance(step, str)])
    for name in names:
        if section is None:
            return None
        field = next((f for n, f in section.model_fields.items() if name in (n, f.alias)), None)
        if field is None:
            return None
        if get_origin(field.annotation) is dict:
            next(names, None)  # the entry's own key
        section = _section_within(field.annotation)
    return section


def _list_homes(key: object, section: type[Section], place: str = "") -> list[str]:
    """Everywhere below a section where this key is known: `pools[].readiness`."""
    homes: list[str] = []
    for name, field in section.model_fields.items():
        step = f"{place}.{field.alias or name}" if place else field.alias or name
        if key == (field.alias or name):
            homes.append(step)
        inner = _section_within(field.annotation)
        if inner is not None:
            homes += _list_homes(key, inner, step + _MANY.get(get_origin(field.annotation), ""))
    return homes


def _section_within(annotation: object) -> type[Section] | None:
    """The section inside `Section | None`, `tuple[Section, ...]`, `dict[str, Section]` and their like."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return next((found for one in inner if (found := _section_within(one))), None)
