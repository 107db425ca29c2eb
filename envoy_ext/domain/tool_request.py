"""What a tool call is, from its HTTP request: the call that a later attempt may make again, or none.

The fingerprint holds what a repetition has in common with the call it repeats: tool, method, path with
query, and the arguments. Headers are not among them (they carry sessions, traces and dates), nor is what
engines number their calls with.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

from envoy_ext.domain import json_rpc
from envoy_ext.domain.canonical_json import parse_json, write_canonical

_SAFE_METHODS: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """One tool of `tools.routes`, reduced to what decides about its calls."""

    name: str
    idempotent: bool = False
    get_is_safe: bool = True
    ignored: frozenset[str] = frozenset({"tool_call_id", "call_id"})
    """Top-level members of JSON arguments that make no difference."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to a tool, as far as it says what is called."""

    method: str
    path: str
    """With its query, as the engine sent it."""
    body: bytes = b""
    content_type: str = ""
    content_encoding: str = ""
    accept: str = ""
    key: str | None = None
    """The caller's own idempotency key."""
    mcp_session: bool = False
    """Whether it belongs to a session of the Model Context Protocol."""


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """A call as the ledger knows it."""

    fingerprint: str
    arguments_sha256: str
    keyed: bool
    idempotent: bool
    rpc_id: str | None = None
    """The id of a JSON-RPC request, as JSON: its answer must carry it."""


@dataclass(frozen=True, slots=True)
class NoCall:
    """Nothing that acts: it passes without a look at the ledger."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """It cannot be told what would act; `why` is for its caller."""

    why: str


def identify_call(tool: ToolPolicy, request: HttpRequest) -> CallIdentity | NoCall | Unreadable:
    """Which call a request makes."""
    if _climbs(request.path):
        return Unreadable('has a path whose escaped characters make a "..": write the path that is meant')
    if _only_listens(tool, request):
        return NoCall()
    arguments = _read_arguments(request)
    if json_rpc.is_passive(arguments):
        return NoCall()
    if json_rpc.is_batch(arguments):
        return Unreadable("is a JSON-RPC batch: send its calls one by one")
    rpc = json_rpc.read_call(arguments)
    canonical = _write(tool, request, arguments, rpc)
    arguments_sha256 = _hash(request.method, request.path, *canonical)
    if request.key is None:
        fingerprint = _hash(tool.name, request.method, request.path, *canonical)
    else:
        fingerprint = _hash(tool.name, "key", request.key)
    return CallIdentity(
        fingerprint=fingerprint,
        arguments_sha256=arguments_sha256,
        keyed=request.key is not None,
        idempotent=tool.idempotent or (tool.get_is_safe and request.method in _SAFE_METHODS),
        rpc_id=None if rpc is None else rpc.id_text,
    )


def _climbs(path: str) -> bool:
    """Whether a server that decodes the path may take it for another tool's, which has other rules.

    Envoy has resolved what it could read. `..;x` is `..` to some servers.
    """
    segments = unquote(path.partition("?")[0]).replace("\\", "/").split("/")
    return any(segment.partition(";")[0] == ".." for segment in segments)


def _only_listens(tool: ToolPolicy, request: HttpRequest) -> bool:
    """A stream that is listened to has no end to wait for; a session's end acts on nothing else.

    Where a GET acts, whatever it accepts, only one of a session listens.
    """
    if request.method == "OPTIONS":
        return True
    if request.method == "GET":
        listens = "text/event-stream" in request.accept.lower()
        return listens and (tool.get_is_safe or request.mcp_session)
    return request.method == "DELETE" and request.mcp_session


def _read_arguments(request: HttpRequest) -> object:
    """The value of a JSON body; None where there is none that can be read strictly."""
    media = request.content_type.partition(";")[0].strip().lower()
    is_json = media == "application/json" or (media.startswith("application/") and media.endswith("+json"))
    if not is_json or request.content_encoding.lower() not in ("", "identity"):
        return None
    try:
        return parse_json(request.body)
    except ValueError:
        return None


def _write(
    tool: ToolPolicy, request: HttpRequest, arguments: object, rpc: json_rpc.RpcCall | None
) -> tuple[str, str]:
    """How the arguments are compared, and what is compared."""
    try:
        if rpc is not None:
            return "rpc", write_canonical([rpc.method, _strip_rpc(tool, rpc)])
        if arguments is not None:
            return "json", write_canonical(_strip(tool, arguments))
    except ValueError:
        pass  # read, and too deep to be written: compared by its bytes
    return f"bytes {request.content_type}", sha256(request.body).hexdigest()


def _strip(tool: ToolPolicy, arguments: object) -> object:
    if not isinstance(arguments, dict):
        return arguments
    return {name: value for name, value in arguments.items() if name not in tool.ignored}


def _strip_rpc(tool: ToolPolicy, rpc: json_rpc.RpcCall) -> object:
    """Without what belongs to this one request: `_meta` holds progress tokens."""
    if not isinstance(rpc.params, dict):
        return rpc.params
    params = {name: value for name, value in rpc.params.items() if name != "_meta"}
    if rpc.method == json_rpc.CALL_METHOD and "arguments" in params:
        params["arguments"] = _strip(tool, params["arguments"])
    return params


def _hash(*parts: str) -> str:
    """Of texts that may hold anything, each told from the next."""
    return sha256(json.dumps(parts).encode()).hexdigest()
