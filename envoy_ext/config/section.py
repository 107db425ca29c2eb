"""What every section of the configuration file has in common, and the small types they share."""

import json
import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Final, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function, no_info_before_validator_function


class Section(BaseModel):
    """One mapping of the file: frozen, without unknown keys or silent conversions ("8080" is not 8080)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


T = TypeVar("T")

ListOf = Annotated[tuple[T, ...], Field(strict=False)]
"""A YAML list, kept as a tuple."""


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Annotation for a list that needs an entry.

    Not pydantic's `min_length`: that counts good entries only, so a bad entry would give two lines.
    """

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: tuple[object, ...]) -> tuple[object, ...]:
            if not value:
                raise PydanticCustomError("empty", "must hold at least one entry")
            return value

        return no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {**handler(schema), "minItems": 1}


@dataclass(frozen=True, slots=True)
class RefusedBecause:
    """Annotation for a Literal or None: any other value is a mistake whose line gives this reason."""

    reason: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        allowed = get_args(source)

        def refuse(value: object) -> object:
            if value is None and not allowed:
                return value
            # `1 == True` in Python, so the type is compared too.
            if any(value == one and type(value) is type(one) for one in allowed):
                return value
            if not allowed:
                raise PydanticCustomError("refused", "not possible: {reason}", {"reason": self.reason})
            names = " or ".join(json.dumps(one).strip('"') for one in allowed)
            raise PydanticCustomError(
                "refused", "must be {names}: {reason}", {"names": names, "reason": self.reason}
            )

        return no_info_before_validator_function(refuse, handler(source))


@dataclass(frozen=True, slots=True)
class Matching:
    """Annotation for text of a given form; `form` says it in words, for a pattern speaks to few people."""

    pattern: str
    form: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        expression = re.compile(self.pattern)

        def check(value: str) -> str:
            if not expression.fullmatch(value):
                raise PydanticCustomError("form", "must be {form}", {"form": self.form})
            return value

        return no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}


Word = Annotated[
    str, Matching(r"\S(.{0,198}\S)?", "text on one line of at most 200 characters, without blanks around it")
]
SHORT_NAME: Final = Matching(r"[a-z0-9-]{1,40}", "1 to 40 of a-z, 0-9 and -")


def _check_ip(value: str) -> str:
    try:
        ip_address(value)
    except ValueError:
        raise PydanticCustomError(
            "ip", "not an IP address: write 127.0.0.1, 0.0.0.0, ::1 or another address in figures"
        ) from None
    return value


IpAddress = Annotated[str, AfterValidator(_check_ip)]
"""An address to listen on or to reach the sidecar at, in figures: Envoy resolves no names there."""

Port = Annotated[int, Field(ge=1, le=65535)]
ListenPort = Annotated[int, Field(ge=0, le=65535)]
"""0 lets the system choose, as tests do."""

LONGEST_SOCKET_PATH: Final = 107
"""`sun_path` of a Unix socket holds 108 bytes with the closing zero on Linux (man 7 unix)."""


def check_socket_path(value: str) -> str:
    """A path that both Envoy and the sidecar can bind or reach, or an error that says why not."""
    if not value.startswith("/"):
        raise PydanticCustomError(
            "socket_path", "must start with /: Envoy and the sidecar may be started in different directories"
        )
    if value.endswith("/"):
        raise PydanticCustomError("socket_path", "names a directory: write the path of the socket file")
    if len(value.encode()) > LONGEST_SOCKET_PATH:
        raise PydanticCustomError(
            "socket_path",
            "longer than {longest} bytes, which is the most a Unix socket's path may have",
            {"longest": LONGEST_SOCKET_PATH},
        )
    return value


SocketPath = Annotated[
    str, AfterValidator(check_socket_path), WithJsonSchema({"type": "string", "pattern": "^/(.*[^/])?$"})
]
