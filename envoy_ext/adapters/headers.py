"""Reading of request and response headers as Envoy sends them, and what a client may not set."""

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

from envoy_ext.domain import names

REQUEST_ID: Final = "x-request-id"
IDEMPOTENCY_KEY: Final = "idempotency-key"
DEADLINE: Final = "x-request-deadline"
REQUEST_CLASS: Final = "x-request-class"
DATA_CLASS: Final = "x-data-class"
OPERATION_ID: Final = "x-operation-id"
ATTEMPT_ID: Final = "x-attempt-id"
ATTEMPT_COUNT: Final = "x-attempt-count"
PREFER: Final = "prefer"
PREFERENCE_APPLIED: Final = "preference-applied"
RESPOND_ASYNC: Final = "respond-async"
"""A preference, and what of it was applied."""
REPLAYED: Final = "idempotent-replayed"
"""Says that an answer was given before. Stripe's name."""
ENVOY_ATTEMPT_COUNT: Final = "x-envoy-attempt-count"

MAX_HEADERS: Final = 100
MAX_HEADERS_BYTES: Final = 60 << 10
"""Envoy's defaults for what a client may send. Envoy itself is given room above them (`bootstrap.listeners`):
its own refusal has no body, and it breaks a request off whose headers ours do not fit beside."""

KEY_HEADERS: Final = ("x-api-key", "api-key")
"""Anthropic's and Azure's place for a key."""
CREDENTIALS: Final = ("authorization", *KEY_HEADERS)

_NOT_KEPT: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "content-length"),
        *("set-cookie", "set-cookie2", "date", "server", "age"),
        *(REQUEST_ID, OPERATION_ID, ATTEMPT_COUNT, REPLAYED, PREFERENCE_APPLIED),
    }
)

_PREFIX_CHARS: Final = len(names.ENVOY_PREFIX)
_FORGEABLE: Final = frozenset({names.MESH_ATTEMPT, OPERATION_ID, ATTEMPT_ID})

MAX_ID_CHARS: Final = 128
MAX_KEY_CHARS: Final = 255
"""Stripe's limit for idempotency keys, which most clients follow."""
MAX_DEADLINE_S: Final = 86_400.0


def read_headers(header_map: Any) -> dict[str, str]:
    """Header names to values; the first value of a name that stands twice, all of a preference or credential.

    Envoy fills `raw_value`; `value` is read for other proxies. Bytes that are no UTF-8 are kept as
    surrogates, so that they never equal a known value and never fail.
    """
    found: dict[str, str] = {}
    for header in header_map.headers:
        raw = header.raw_value
        value = raw.decode("utf-8", "surrogateescape") if raw else header.value
        name = header.key.lower()
        if name not in found:
            found[name] = value
        elif name == PREFER or name in CREDENTIALS:
            # Each one may hold another preference (RFC 7240, section 2); and nobody knows which one of two
            # credentials an engine goes by.
            found[name] += f",{value}"
    return found


def read_all(header_map: Any, name: str) -> str | None:
    """All values of one header, joined by commas; None where it does not stand."""
    given = [header for header in header_map.headers if header.key.lower() == name]
    return ",".join(_read_value(header) for header in given) if given else None


def list_kept(header_map: Any) -> tuple[tuple[str, str], ...]:
    """The response headers that belong to an answer, and are given again with it.

    Not those that speak of one connection or one exchange, nor those that are for one client. A name
    that stands twice becomes one (RFC 9110, section 5.3).
    """
    kept: dict[str, str] = {}
    for header in header_map.headers:
        name = header.key.lower()
        if name.startswith((":", names.ENVOY_PREFIX)) or name in _NOT_KEPT:
            continue
        value = _read_value(header)
        kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return tuple(kept.items())


def are_too_many(header_map: Any) -> bool:
    """Whether a client's headers are more, or longer, than are taken from a client."""
    if len(header_map.headers) <= MAX_HEADERS and header_map.ByteSize() <= MAX_HEADERS_BYTES:
        return False  # with lengths and tags it is larger than what counts
    count = sum(not header.key.startswith(":") for header in header_map.headers)
    size = sum(len(header.key) + len(header.raw_value or header.value) for header in header_map.headers)
    return count > MAX_HEADERS or size > MAX_HEADERS_BYTES


def list_hostile(headers: Iterable[str]) -> list[str]:
    """Names of headers from a client that would steer Envoy or pass for our own: all `x-envoy-*`.

    Envoy obeys x-envoy-retry-on, x-envoy-upstream-rq-timeout-ms and others from whoever it takes
    for internal, and behind another proxy that may be anyone.
    """
    return [
        name for name in headers if name[:_PREFIX_CHARS] == names.ENVOY_PREFIX or name == names.MESH_ATTEMPT
    ]


def list_forged(headers: Iterable[str]) -> list[str]:
    """Names of a client's headers that no replica may see: what is hostile, and what names an operation.

    Whoever calls a tool while it serves the request may pass those names on, for its own.
    """
    return [name for name in headers if name[:_PREFIX_CHARS] == names.ENVOY_PREFIX or name in _FORGEABLE]


def read_request_id(headers: dict[str, str]) -> str | None:
    """The request id, None when it is missing or nothing that may stand in logs and headers."""
    given = headers.get(REQUEST_ID, "")
    return given if 0 < len(given) <= MAX_ID_CHARS and is_printable_ascii(given) else None


def read_caller(headers: dict[str, str]) -> str:
    """A hash of the credentials, to keep one caller's keys and operations from another's; "" without one.

    Of all that there are: callers may share one of them, such as that of a proxy between, and have another
    each.
    """
    given = [value for name in CREDENTIALS if (value := headers.get(name))]
    if not given:
        return ""
    credential = given[0] if len(given) == 1 else json.dumps(given)
    return sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def read_deadline_s(headers: dict[str, str]) -> float | None:
    """Seconds from `x-request-deadline`; None when it is missing.

    Raises:
        ValueError: it is not a decimal number above 0.
    """
    given = headers.get(DEADLINE)
    if given is None:
        return None
    if not _is_decimal(given) or float(given) <= 0:
        raise ValueError(f"{DEADLINE}: must be seconds from now, a decimal number above 0, such as 30 or 2.5")
    return min(float(given), MAX_DEADLINE_S)


def read_idempotency_key(headers: dict[str, str]) -> str | None:
    """The idempotency key; None when it is missing, or the method changes nothing and needs none.

    Raises:
        ValueError: it is empty, too long or not printable.
    """
    given = headers.get(IDEMPOTENCY_KEY)
    if given is None or headers.get(":method") in ("GET", "HEAD", "OPTIONS"):
        return None
    if not 0 < len(given) <= MAX_KEY_CHARS or not is_printable_ascii(given):
        raise ValueError(f"Idempotency-Key: must be 1 to {MAX_KEY_CHARS} printable ASCII characters")
    return given


def read_data_class(header_map: Any) -> str | None:
    """The class that a request says its data is of; None when it says nothing.

    Raises:
        ValueError: it names two, which leaves open which one is meant.
    """
    given = read_all(header_map, DATA_CLASS)
    if given is not None and "," in given:  # no class has one in its name, and proxies join lines by it
        raise ValueError(f"{DATA_CLASS}: stands more than once; send it once")
    return given


def read_prefer_wait_s(headers: dict[str, str]) -> float | None:
    """The seconds of `Prefer: wait=…` (RFC 7240, section 4.3), None without one.

    The first one counts. What cannot be read is no preference, and no mistake: nobody has to heed it.
    """
    for name, seconds in _list_preferences(headers):
        if name == "wait":
            return float(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 9 else None
    return None


def prefers_async(headers: dict[str, str]) -> bool:
    """Whether a client would rather not wait for the answer: `Prefer: respond-async` (RFC 7240, section 4.1).

    A value, which that preference has none of, does not make it another one, but for a plain no.
    """
    return any(name == RESPOND_ASYNC and value != "false" for name, value in _list_preferences(headers))


_LIST_ITEM: Final = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+')
"""What stands between the commas of a list; those in quotes part nothing (RFC 9110, section 5.6.4)."""


def _list_preferences(headers: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Names in lower case, and their values without quotes; parameters are left out, since none of ours has
    any."""
    for preference in _LIST_ITEM.findall(headers.get(PREFER, "")):
        name, _, value = preference.partition(";")[0].partition("=")
        yield name.strip().lower(), value.strip().strip('"')


def is_upstream_retry(headers: dict[str, str]) -> bool:
    """Whether an Envoy or mesh before us says that this is its second try or later."""
    given = headers.get(names.MESH_ATTEMPT) or headers.get(ENVOY_ATTEMPT_COUNT, "")
    return given.isascii() and given.isdigit() and len(given) < 9 and int(given) > 1


def is_printable_ascii(text: str) -> bool:
    """Whether every character is printable ASCII."""
    return text.isascii() and text.isprintable()


def _read_value(header: Any) -> str:
    raw: bytes = header.raw_value
    return raw.decode("utf-8", "surrogateescape") if raw else str(header.value)


def _is_decimal(text: str) -> bool:
    if not text.isascii() or len(text) > 20:
        return False
    whole, _, fraction = text.partition(".")
    return whole.isdigit() and (fraction.isdigit() or "." not in text)
