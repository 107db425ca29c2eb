"""Who may ask the operations port for what: pure decisions first, then the middlewares that apply them.

Reads are open to whoever reaches the port. Two doors are guarded: a web page that has its own name
resolve to 127.0.0.1 (DNS rebinding) must not read what listens there, and nothing may change state
without the bearer token, or, when none is configured, from anywhere but this machine.
"""

import hmac
import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from envoy_ext.adapters.ops_answers import build_error
from envoy_ext.domain.errors import ConfigError

_READS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of whoever sent a request that would change state."""

    peer: str | None
    """The connection's other end."""
    host: str | None
    origin: str | None
    """Browsers send it with every request that may change something."""
    authorization: str | None
    forwarded: bool
    """A proxy says that it passes on somebody else's request."""


def read_token_file(path: str) -> str:
    """The bearer token in a file, without the blanks around it.

    Raises:
        ConfigError: the file cannot be read, or holds no single line of printable ASCII.
    """
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError([f"operations.token_file: {path} cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or not token or " " in token:
        raise ConfigError([f"operations.token_file: {path} must hold one token of printable ASCII"])
    return token


def is_loopback(address: str | None) -> bool:
    """Whether an IP address in figures means this machine."""
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped.is_loopback
    return parsed.is_loopback


def is_local_host(host: str, own_address: str) -> bool:
    """Whether a Host header names this machine, in a way that no foreign name can resolve to."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match["v6"] or match["name"]).lower().removesuffix(".")
    return name in ("localhost", own_address.lower()) or is_loopback(name)


def decide_change(caller: Caller, token: str | None) -> Refusal | None:
    """May this caller change state? None when it may."""
    if token is not None:
        scheme, _, given = (caller.authorization or "").partition(" ")
        given_bytes = given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() == "bearer" and hmac.compare_digest(given_bytes, token.encode()):
            return None
        return Refusal(401, "unauthorized", "This needs the bearer token of operations.token_file.")
    if not is_loopback(caller.peer) or caller.forwarded:
        message = "Without operations.token_file, state is changed from this machine only."
        return Refusal(403, "forbidden", message)
    # A browser on this machine is loopback too, whatever page it shows. That page's own name in
    # Host is rebinding, its name in Origin is a cross-site request; curl sends no Origin.
    foreign_page = caller.origin is not None and caller.origin != f"http://{caller.host}"
    if foreign_page or (caller.host is not None and not is_local_host(caller.host, "localhost")):
        return Refusal(403, "forbidden", "Without operations.token_file, web pages may not change state.")
    return None


def build_host_check(bound_address: str) -> Middleware:
    """On a loopback address, serve only requests whose Host is this machine's. Elsewhere the port
    is reached by names we cannot know (a pod's, a service's), and is no secret of this machine.

    A request without Host (HTTP/1.0, as simple probes send it) comes from no browser.
    """

    @web.middleware
    async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall(hdrs.HOST, [])
        if is_loopback(bound_address) and not all(is_local_host(host, bound_address) for host in hosts):
            message = "The Host header must be localhost, a loopback address, or the configured address."
            return build_error(403, "forbidden", message)
        return await handler(request)

    return check_host


def build_change_guard(token: str | None) -> Middleware:
    """Apply `decide_change` to every request that is not a read."""

    @web.middleware
    async def guard_changes(request: web.Request, handler: Handler) -> web.StreamResponse:
        # An unknown path or a wrong method changes nothing, and is told what is wrong with it.
        if request.method in _READS or request.match_info.http_exception is not None:
            return await handler(request)
        headers = request.headers
        caller = Caller(
            peer=request.remote,
            host=headers.get(hdrs.HOST),
            origin=headers.get(hdrs.ORIGIN),
            authorization=headers.get(hdrs.AUTHORIZATION),
            forwarded=hdrs.FORWARDED in headers or hdrs.X_FORWARDED_FOR in headers,
        )
        refusal = decide_change(caller, token)
        if refusal is None:
            return await handler(request)
        answer = build_error(refusal.status, refusal.code, refusal.message)
        if refusal.status == 401:
            answer.headers[hdrs.WWW_AUTHENTICATE] = 'Bearer realm="envoy-ext operations"'
        return answer

    return guard_changes
