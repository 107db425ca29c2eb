"""The tools that engines call through Envoy, so that a replay does not call them twice."""

from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.quantities import LONGEST_WAIT_S, Duration, SizeBetween
from envoy_ext.config.section import (
    SHORT_NAME,
    IpAddress,
    ListenPort,
    ListOf,
    Matching,
    NotEmpty,
    Section,
    SocketPath,
)
from envoy_ext.config.urls import ToolUrl, WebPlace, parse_tool_url

SYSTEM_CA_FILE: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian, Ubuntu, Alpine and Envoy's own images keep the authorities that they trust."""

IGNORED_ARGUMENTS: Final = ("tool_call_id", "call_id")
"""What engines number their calls with, anew at each generation. Not `id`: that may be what is deleted."""

HOST: Final = Matching(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?", "a name, or a name and a port"
)
MEMBER: Final = Matching(
    r"[^\x00-\x1f]{1,100}", "the name of a member of the arguments, 100 characters at most"
)


def _check_timeout(seconds: float) -> float:
    if seconds > LONGEST_WAIT_S:
        raise PydanticCustomError("duration", "longer than 30m: no answer waits so long for a tool")
    return seconds


def _check_prefix(prefix: str) -> str:
    if not prefix.startswith("/") or any(c in prefix for c in "?#%\\") or not _is_plain(prefix):
        raise PydanticCustomError("prefix", "not a path prefix: write /mail or /tools/mail")
    if "//" in prefix or any(part in (".", "..") for part in prefix.split("/")):
        raise PydanticCustomError("prefix", "must be a plain path: without //, /./ and /../")
    return prefix


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


ToolPrefix = Annotated[
    str, AfterValidator(_check_prefix), WithJsonSchema({"type": "string", "pattern": r"^/[^?#%\\ ]*$"})
]


class ToolListener(Section):
    """Where engines reach the tools: an address and a port of Envoy's, or a Unix socket."""

    address: IpAddress = "127.0.0.1"
    port: ListenPort | None = None
    socket: SocketPath | None = None

    @model_validator(mode="after")
    def _check_one_way(self) -> Self:
        if self.socket is not None and (self.port is not None or "address" in self.model_fields_set):
            raise PydanticCustomError("listener", "has socket and address/port: keep one of the two")
        if self.socket is None and self.port is None:
            raise PydanticCustomError("listener", "needs a port, such as 8081, or a socket")
        return self


class ToolRoute(Section):
    """One tool: where it is, and what may be done twice."""

    name: Annotated[str, SHORT_NAME]
    """In metrics, logs and the ledger; a tool of another name is another tool."""
    prefix: ToolPrefix
    """Paths of the listener that lead to it, at whole segments: /mail takes /mail and /mail/send."""
    url: ToolUrl
    """Its path takes the place of the prefix; what follows that is passed on as it is."""
    idempotent: bool = False
    """Whether all of its calls may be made twice."""
    get_is_safe: bool = True
    """Whether a GET or a HEAD may be made twice, as HTTP has it."""
    timeout: Annotated[Duration, AfterValidator(_check_timeout)] = 60.0
    """From the whole request to the whole answer."""
    host: Annotated[str, HOST] | None = None
    """What it is called in the Host header and, over https, in its certificate; None: as in the url."""
    ca_file: Annotated[str, Field(min_length=1)] = SYSTEM_CA_FILE
    """Whom to believe about its certificate, over https."""
    ignore_arguments: ListOf[Annotated[str, MEMBER]] = IGNORED_ARGUMENTS
    """Top-level members of JSON arguments that make no difference between two calls."""

    @property
    def path_prefix(self) -> str:
        """Without a slash at its end; "" takes every path."""
        return self.prefix.rstrip("/")

    @property
    def place(self) -> WebPlace:
        return parse_tool_url(self.url)


class Tools(Section):
    """The tool listener; without this section there is none."""

    listener: ToolListener
    routes: Annotated[ListOf[ToolRoute], NotEmpty()]
    require_operation: bool = False
    """Whether calls that name no operation are refused; else they pass unwatched."""
    max_request_bytes: Annotated[int, SizeBetween("1KiB", "64MiB")] = 1 << 20
    max_result_bytes: Annotated[int, SizeBetween("1KiB", "16MiB")] = 256 << 10
    """A larger result passes and is not kept: the operation is then not run again."""
