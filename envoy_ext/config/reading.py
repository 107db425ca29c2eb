"""Reading the configuration file: all of its mistakes at once, one line each."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.nodes import MappingNode
from yaml.reader import ReaderError

from envoy_ext.config.conflicts import find_conflicts
from envoy_ext.config.mistakes import describe_errors, format_location
from envoy_ext.config.model import Config
from envoy_ext.domain.errors import ConfigError


def load_config(path: str | Path) -> Config:
    """The configuration in a YAML file, or a `ConfigError` with a line for each mistake."""
    source = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{source}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{source}: not UTF-8 at byte {error.start}"]) from error
    data, repeated = read_yaml(text, source)
    try:
        config = parse_config(data, source)
    except ConfigError as error:
        raise ConfigError([*repeated, *error.mistakes]) from None
    if repeated:
        raise ConfigError(repeated)
    return config


def parse_config(data: object, source: str) -> Config:
    """The configuration in plain data; `source` is how the lines of a `ConfigError` begin."""
    mistakes = []
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        mistakes = describe_errors(error, Config)
    if isinstance(data, dict):
        mistakes += find_conflicts(data)
    if mistakes:
        raise ConfigError([_format_line(source, format_location(at), message) for at, message in mistakes])
    return config


def config_schema() -> dict[str, Any]:
    """The JSON Schema of the file, for editors and for `envoy-ext schema`."""
    schema = Config.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "envoy-ext configuration",
    }


def _format_line(source: str, location: str, message: str) -> str:
    return f"{source}: {location}: {message}" if location else f"{source}: {message}"


def read_yaml(text: str, source: str) -> tuple[object, list[str]]:
    """The file's data, and a line for each key that stands twice in one mapping."""
    try:
        loader = _Loader(text)
        data: object = loader.get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: {_describe_yaml_error(error)}"]) from error
    except ValueError as error:
        # PyYAML lets what Python has against a date such as 2024-13-45 pass as it is.
        raise ConfigError([f"{source}: a value cannot be read: {error}: put it in quotes"]) from error
    except (AttributeError, KeyError) as error:
        # Likewise of a value that its tag does not fit, such as !!bool maybe or !!timestamp never.
        raise ConfigError([f"{source}: a value does not fit the tag (!!…) before it: remove that"]) from error
    except RecursionError as error:
        raise ConfigError([f"{source}: is nested too deeply"]) from error
    return data, [f"{source}: {line}" for line in loader.repeated]


class _Loader(yaml.SafeLoader):
    """SafeLoader that notices repeated keys; YAML forbids them, PyYAML lets the last one win.

    https://yaml.org/spec/1.2.2/#mapping: "each of the keys is unique".
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        # `flatten_mapping` puts the entries of a merge key into the node; those may be overridden.
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                if key.value in first:
                    self.repeated.append(
                        f"line {line}, column {key.start_mark.column + 1}: the key {key.value} "
                        f"stands here and in line {first[key.value]}: keep one of the two"
                    )
                first.setdefault(key.value, line)
        return super().construct_mapping(node, deep)


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    if isinstance(error, ReaderError):
        return f"character {error.position}: {error.reason}"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or "not valid YAML"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else str(problem)
