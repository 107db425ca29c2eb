"""A small JSON Schema validator: as much of draft 2020-12 as pydantic writes for the configuration.

A keyword it does not know is an error, so that the schema cannot outgrow it unnoticed.
"""

import re
from typing import Any

_ANNOTATIONS = {"title", "description", "default", "$schema", "$defs", "$id"}


def accepts(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    return all(
        _check(keyword, argument, value, schema, root)
        for keyword, argument in schema.items()
        if keyword not in _ANNOTATIONS
    )


def _check(keyword: str, argument: Any, value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match keyword:
        case "$ref":
            return accepts(value, root["$defs"][argument.removeprefix("#/$defs/")], root)
        case "anyOf":
            return any(accepts(value, one, root) for one in argument)
        case "allOf":
            return all(accepts(value, one, root) for one in argument)
        case "type":
            return _is_type(argument, value)
        case "const":
            return _same(value, argument)
        case "enum":
            return any(_same(value, one) for one in argument)
        case "minimum":
            return not number or value >= argument
        case "maximum":
            return not number or value <= argument
        case "exclusiveMinimum":
            return not number or value > argument
        case "pattern":
            return not isinstance(value, str) or re.search(argument, value) is not None
        case "minLength":
            return not isinstance(value, str) or len(value) >= argument
        case "minItems":
            return not isinstance(value, list) or len(value) >= argument
        case "items":
            return not isinstance(value, list) or all(accepts(one, argument, root) for one in value)
        case "contains":
            return not isinstance(value, list) or any(accepts(one, argument, root) for one in value)
        case "required":
            return not isinstance(value, dict) or all(name in value for name in argument)
        case "properties" | "patternProperties" | "additionalProperties":
            return not isinstance(value, dict) or _check_members(keyword, argument, value, schema, root)
    raise AssertionError(f"the schema uses {keyword}, which this validator does not know")


def _check_members(
    keyword: str, argument: Any, value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any]
) -> bool:
    if keyword == "properties":
        return all(accepts(value[name], one, root) for name, one in argument.items() if name in value)
    if keyword == "patternProperties":
        return all(
            accepts(one, argument[pattern], root)
            for name, one in value.items()
            for pattern in argument
            if re.search(pattern, name)
        )
    rest = [
        one
        for name, one in value.items()
        if name not in schema.get("properties", {})
        and not any(re.search(pattern, name) for pattern in schema.get("patternProperties", {}))
    ]
    return (
        not rest
        if argument is False
        else all(argument is True or accepts(one, argument, root) for one in rest)
    )


def _is_type(name: str, value: Any) -> bool:
    match name:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "null":
            return value is None
    raise AssertionError(f"unknown type {name}")


def _same(left: Any, right: Any) -> bool:
    """JSON's true is not its 1."""
    return type(left) is type(right) and bool(left == right)
