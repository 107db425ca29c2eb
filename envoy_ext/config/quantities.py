"""Durations and sizes as people write them: "30s", "500ms", "16MiB"; kept as seconds and bytes.

A bare number is seconds or bytes. Durations may have decimals ("1.5s"), sizes may not, and sizes
know only the binary units: "MB" means two different things to two readers, so it is refused.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE: Final = re.compile(r"([0-9]+)(B|KiB|MiB|GiB)")
_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

LONGEST_S: Final = 24 * 3600.0
"""No wait of this product is meant to be longer than a day; a larger figure is a wrong unit."""


LONGEST_WAIT_S: Final = 1800.0
"""Half of what Envoy is told to have patience for at the most (`bootstrap.filters`)."""


def parse_duration(value: object) -> float:
    """Seconds of "60s", "500ms", "2m", "1h" or a bare number."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        seconds = float(value)
    else:
        raise PydanticCustomError(
            "duration", "not a duration: write 30s, 500ms, 2m or 1h (a bare number is seconds)"
        )
    if seconds < 0:
        raise PydanticCustomError("duration", "a duration cannot be negative")
    if seconds > LONGEST_S:
        raise PydanticCustomError(
            "duration", "longer than 24h: is the unit right? (a bare number is seconds)"
        )
    return seconds


def parse_size(value: object) -> int:
    """Bytes of "16MiB", "64KiB", "1GiB", "512B" or a bare whole number."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(match[1]) * _BYTES[match[2]]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise PydanticCustomError("size", "not a size: write 64KiB, 16MiB or 1GiB (a bare whole number is bytes)")


def _parse_wait(value: object) -> float:
    seconds = parse_duration(value)
    if seconds > LONGEST_WAIT_S:
        raise PydanticCustomError("duration", "longer than 30m: no client waits so long for a slot")
    return seconds


LONGEST_RETENTION_DAYS: Final = 3650
SHORTEST_RETENTION_S: Final = 60.0
_RETENTION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")


def parse_retention(value: object) -> float:
    """Seconds of "7d", "36h", "90m" or a bare number."""
    if isinstance(value, str) and (match := _RETENTION.fullmatch(value.strip())):
        seconds = float(match[1]) * ({"d": 86_400.0} | _SECONDS)[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        seconds = float(value)
    else:
        raise PydanticCustomError(
            "duration", "not a time to keep something: write 7d, 36h or 90m (a bare number is seconds)"
        )
    if not SHORTEST_RETENTION_S <= seconds <= LONGEST_RETENTION_DAYS * 86_400.0:
        raise PydanticCustomError(
            "duration", "must be between 1m and {longest}d", {"longest": LONGEST_RETENTION_DAYS}
        )
    return seconds


def _parse_positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        raise PydanticCustomError("duration", "must be longer than 0")
    return seconds


def duration_schema(bounds: dict[str, float]) -> WithJsonSchema:
    """The forms a duration has in the file; `bounds` are those of a bare number."""
    return WithJsonSchema(
        {
            "description": "30s, 500ms, 2m or 1h; a bare number is seconds",
            "anyOf": [
                {"type": "string", "pattern": r"^\s*\d+(\.\d+)?(ms|s|m|h)\s*$"},
                {"type": "number", "maximum": LONGEST_S, **bounds},
            ],
        }
    )


Duration = Annotated[
    float, BeforeValidator(_parse_positive_duration), duration_schema({"exclusiveMinimum": 0})
]
"""Seconds, more than 0."""

DurationOrZero = Annotated[float, BeforeValidator(parse_duration), duration_schema({"minimum": 0})]
"""Seconds; 0 means at once."""


WaitOrZero = Annotated[
    float, BeforeValidator(_parse_wait), duration_schema({"minimum": 0, "maximum": LONGEST_WAIT_S})
]
"""Seconds that a request may wait; 0 means not at all."""


Retention = Annotated[
    float,
    BeforeValidator(parse_retention),
    WithJsonSchema(
        {
            "description": "7d, 36h or 90m; a bare number is seconds",
            "anyOf": [
                {"type": "string", "pattern": r"^\s*\d+(\.\d+)?(s|m|h|d)\s*$"},
                {
                    "type": "number",
                    "minimum": SHORTEST_RETENTION_S,
                    "maximum": LONGEST_RETENTION_DAYS * 86_400.0,
                },
            ],
        }
    ),
]
"""Seconds for which something is kept."""


@dataclass(frozen=True, slots=True)
class SizeBetween:
    """Annotation for a number of bytes; both bounds are allowed."""

    smallest: str
    largest: str

    def parse(self, value: object) -> int:
        size = parse_size(value)
        if not parse_size(self.smallest) <= size <= parse_size(self.largest):
            raise PydanticCustomError(
                "size",
                "must be between {smallest} and {largest}",
                {"smallest": self.smallest, "largest": self.largest},
            )
        return size

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self.parse, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {
            "description": "64KiB, 16MiB or 1GiB; a bare whole number is bytes",
            "anyOf": [
                {"type": "string", "pattern": r"^\s*\d+(B|KiB|MiB|GiB)\s*$"},
                {
                    "type": "integer",
                    "minimum": parse_size(self.smallest),
                    "maximum": parse_size(self.largest),
                },
            ],
        }
