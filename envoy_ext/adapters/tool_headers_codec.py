"""Headers of tool calls: whom a call is made for, what no tool may see, and what of an answer is kept."""

from collections.abc import Mapping
from typing import Any, Final

from envoy_ext.adapters import headers as h
from envoy_ext.domain import names
from envoy_ext.domain.ids import AttemptId, OperationId

MCP_SESSION: Final = "mcp-session-id"
NAMING: Final = (names.OPERATION, names.ATTEMPT, h.OPERATION_ID, h.ATTEMPT_ID)
"""Who is named by any of these is watched, or told what is missing."""

_NOT_KEPT: Final = frozenset(
    {
        # Of one connection: RFC 9110, 7.6.1. A length is that of one message, and Envoy counts it anew.
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "content-length"),
        # Of one session of its caller's.
        *("set-cookie", "set-cookie2", MCP_SESSION),
    }
)


def read_operation(headers: Mapping[str, str]) -> OperationId | None:
    """The operation that a call is made for, None when it names none.

    Raises:
        ValueError: what it names can be no id.
    """
    found = _read_id(headers, names.OPERATION, h.OPERATION_ID)
    return None if found is None else OperationId(found)


def read_attempt(headers: Mapping[str, str]) -> AttemptId | None:
    """The attempt that makes a call, None when it names none.

    Raises:
        ValueError: what it names can be no id.
    """
    found = _read_id(headers, names.ATTEMPT, h.ATTEMPT_ID)
    return None if found is None else AttemptId(found)


def list_private(headers: Mapping[str, str]) -> list[str]:
    """Names of the headers that no tool may see, and that must not steer Envoy.

    Whoever knows an operation and its attempt can call in their name.
    """
    return [*h.list_hostile(headers), *(name for name in (h.ATTEMPT_ID,) if name in headers)]


def read_kept_headers(header_map: Any) -> tuple[tuple[str, str], ...]:
    """An answer's headers as they are kept; values of one name are joined (RFC 9110, 5.3)."""
    kept: dict[str, list[str]] = {}
    of_the_connection: set[str] = set()
    for header in header_map.headers:
        name = header.key.lower()
        value = header.raw_value.decode("utf-8", "surrogateescape") if header.raw_value else header.value
        if name == "connection":
            of_the_connection |= {one.strip().lower() for one in value.split(",")}
        if not name.startswith((":", names.ENVOY_PREFIX)) and name not in _NOT_KEPT:
            kept.setdefault(name, []).append(value)
    return tuple((name, ", ".join(values)) for name, values in kept.items() if name not in of_the_connection)


def _read_id(headers: Mapping[str, str], ours: str, common: str) -> str | None:
    """Ours counts where both are there: it is what the gate gave the engine."""
    name = ours if ours in headers else common
    given = headers.get(name)
    if given is None:
        return None
    if not 0 < len(given) <= h.MAX_ID_CHARS or not h.is_printable_ascii(given):
        raise ValueError(f"{name}: must be 1 to {h.MAX_ID_CHARS} printable ASCII characters")
    return given
