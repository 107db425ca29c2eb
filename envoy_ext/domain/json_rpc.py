"""What of the Model Context Protocol a tool call is known by: JSON-RPC over HTTP.

https://modelcontextprotocol.io/specification/2025-06-18/basic/transports. Only `tools/call` acts; the id of
a request is the client's own count, and an answer that is given again must carry that of the new request.
"""

from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.canonical_json import Number, parse_json, write_as_read

CALL_METHOD: Final = "tools/call"

_PASSIVE: Final = frozenset(
    {
        *("initialize", "ping", "tools/list", "tasks/get", "tasks/list", "tasks/result"),
        *("prompts/list", "prompts/get", "completion/complete", "logging/setLevel"),
        *("resources/list", "resources/templates/list", "resources/read"),
        *("resources/subscribe", "resources/unsubscribe"),
        *("notifications/initialized", "notifications/cancelled", "notifications/progress"),
        *("notifications/roots/list_changed", "notifications/tasks/status"),
    }
)
"""Methods of the protocol that call no tool, each by its whole name. One that is none of the protocol's own,
such as another interface's `resources/delete`, may do anything."""


@dataclass(frozen=True, slots=True)
class RpcCall:
    """One JSON-RPC request."""

    method: str
    id_text: str | None
    """As JSON; None for a request without one."""
    params: object


def read_call(value: object) -> RpcCall | None:
    """A JSON-RPC request, None for everything else."""
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return None
    method, given = value.get("method"), value.get("id")
    if not isinstance(method, str):
        return None
    id_text = write_as_read(given) if isinstance(given, str | Number) else None
    return RpcCall(method, id_text, value.get("params"))


def is_passive(value: object) -> bool:
    """Whether a message of the protocol calls no tool: another method of its own, or a client's answer."""
    call = read_call(value)
    if call is not None:
        return call.method in _PASSIVE
    return _is_answer(value)


def is_batch(value: object) -> bool:
    """Whether it holds several messages: the protocol has given these up, and and one may act alone."""
    return isinstance(value, list) and any(read_call(one) is not None for one in value)


def address_answer(content_type: str, body: bytes, id_text: str) -> bytes:
    """A recorded answer, as that to the request with this id; whatever else the body holds stays as it is."""
    media = content_type.partition(";")[0].strip().lower()
    if media == "application/json":
        return _address(body, id_text) or body
    if media == "text/event-stream":
        return b"".join(_address_line(line, id_text) for line in body.splitlines(keepends=True))
    return body


def _address_line(line: bytes, id_text: str) -> bytes:
    """One `data:` line; servers of the protocol write a message on one line."""
    content = line.rstrip(b"\r\n")
    if not content.startswith(b"data:"):
        return line
    addressed = _address(content.removeprefix(b"data:"), id_text)
    return line if addressed is None else b"data: " + addressed + line[len(content) :]


def _address(message: bytes, id_text: str) -> bytes | None:
    try:
        value = parse_json(message)
        if not isinstance(value, dict) or not _is_answer(value):
            return None
        return write_as_read({**value, "id": parse_json(id_text.encode())}).encode()
    except ValueError:
        return None


def _is_answer(value: object) -> bool:
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return False
    return "result" in value or "error" in value
