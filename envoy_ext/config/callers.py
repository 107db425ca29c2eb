"""The `callers` section: whose requests are taken, and by what credential."""

from ipaddress import ip_network
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.section import ListOf, Matching, Section
from envoy_ext.domain import names

_TAKEN: Final = frozenset(
    {
        *("authorization", "x-api-key", "api-key", "host", "connection", "content-length", "content-type"),
        *("content-encoding", "transfer-encoding", "te", "upgrade", "prefer", "idempotency-key", "cookie"),
        *("x-request-id", "x-request-class", "x-request-deadline", "x-data-class", "x-operation-id"),
        *("x-attempt-id", "accept", "accept-encoding", names.MESH_ATTEMPT),
    }
)


def _check_header(name: str) -> str:
    if name in _TAKEN or name.startswith(names.ENVOY_PREFIX):
        raise PydanticCustomError("header", "has another meaning here: choose a name such as x-caller")
    return name


def _check_network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        raise PydanticCustomError(
            "network", "not a network: write 10.0.0.0/8, 127.0.0.1, ::1/128 or another in figures"
        ) from None
    return text


class Callers(Section):
    """Whose requests are taken. Without this section everybody's are, and no credential is checked."""

    keys_file: Annotated[str, Field(min_length=1)] | None = None
    """Callers, the hashes of their keys, and what each may do."""
    trusted_header: (
        Annotated[
            str,
            Matching(r"[a-z0-9-]{1,64}", "a header's name in small letters, such as x-caller"),
            AfterValidator(_check_header),
        ]
        | None
    ) = None
    """Names a request's caller, when it comes from `trusted_from`."""
    trusted_from: ListOf[
        Annotated[str, AfterValidator(_check_network), WithJsonSchema({"type": "string"})]
    ] = ()
    """Addresses of the proxies whose word that header is."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if self.keys_file is None and self.trusted_header is None:
            raise PydanticCustomError("callers", "needs keys_file, or trusted_header with trusted_from")
        if self.trusted_header is not None and not self.trusted_from:
            raise PydanticCustomError(
                "callers", "trusted_header needs trusted_from: whoever reaches the port could set it else"
            )
        if self.trusted_from and self.trusted_header is None:
            raise PydanticCustomError("callers", "trusted_from has no effect without trusted_header")
        return self
