"""URLs of replicas, of their metrics and of tools, checked without ever repeating them in a message.

A message names what is wrong and not the URL itself, because people put credentials in URLs.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

# Names may hold an underscore: RFC 1123 forbids it, Docker's own names use it.
_URL: Final = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<rest>[/?#]\S*)?"
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Who a URL speaks to: a name or an address (IPv6 without brackets), and a port."""

    host: str
    port: int

    @property
    def is_ip(self) -> bool:
        return _is_ip(self.host)

    @property
    def host_port(self) -> str:
        """`10.0.0.11:8000`, `[::1]:8000`, `name:8000`: for an address, as Envoy writes `upstream.address`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_replica_url(url: str) -> Origin:
    """The origin of `http://host[:port][/]`, or an error that says what else the URL holds."""
    if url.startswith("https://"):
        raise _mistake(
            "https is not possible towards replicas: this build renders no TLS for them; write http://"
        )
    origin, rest = _split(url, "http://host:port")
    if rest not in ("", "/"):
        raise _mistake(
            "must not hold a path or a query, because the client's own path is sent on: write http://host:port"
        )
    return origin


@dataclass(frozen=True, slots=True)
class WebPlace:
    """Where a tool is."""

    tls: bool
    origin: Origin
    path: str
    """Without a slash at its end: "" for the root."""

    @property
    def host_header(self) -> str:
        """Without the port that its scheme has anyhow (RFC 9110, 4.2.3)."""
        usual = self.origin.port == _DEFAULT_PORTS["https" if self.tls else "http"]
        return self.origin.host_port.rpartition(":")[0] if usual else self.origin.host_port


def parse_tool_url(url: str) -> WebPlace:
    """Scheme, origin and path of `http[s]://host[:port][/path]`, or an error that says what else it holds."""
    origin, rest = _split(url, "http://host:port/path")
    if "?" in rest or "#" in rest:
        raise _mistake("must not hold a query or a fragment: the calls bring their own")
    if "//" in rest or any(part in (".", "..") for part in rest.split("/")):
        raise _mistake("the path must be plain: without //, /./ and /../")
    if not rest.isascii() or not rest.isprintable():
        raise _mistake("the path must be printable ASCII: write other characters as %XX")
    return WebPlace(url.startswith("https://"), origin, rest.rstrip("/"))


def _check_tool_url(url: str) -> str:
    parse_tool_url(url)
    return url


ToolUrl = Annotated[
    str,
    AfterValidator(_check_tool_url),
    WithJsonSchema({"type": "string", "pattern": "^https?://[^/?#@]+(/[^?#]*)?$"}),
]
"""Where a tool is called: http or https, with a path or without."""


def check_web_url(url: str) -> str:
    """Scheme http or https, a host, and whatever path and query."""
    _split(url, "http://host:port/path")
    return url


def _check_metrics_url(url: str) -> str:
    _split(url, "http://host:port/metrics")
    return url


MetricsUrl = Annotated[
    str,
    AfterValidator(_check_metrics_url),
    WithJsonSchema({"type": "string", "pattern": "^https?://[^/?#@]+([/?#].*)?$"}),
]
"""Where metrics are read from: http or https, any path."""


def _split(url: str, form: str) -> tuple[Origin, str]:
    """Origin and what follows it; `form` is how such a URL should look."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise _mistake(f"must not hold a user name or password: write {form}")
    match = _URL.fullmatch(url)
    if not match:
        raise _mistake(f"not a URL of the form {form}")
    port = int(match["port"] or _DEFAULT_PORTS[match["scheme"]])
    if not 1 <= port <= 65535:
        raise _mistake("the port must be between 1 and 65535")
    host = match["host"].strip("[]").lower()
    bracketed = match["host"].startswith("[")
    if _is_ip(host) and bracketed == (":" in host):
        host = str(ip_address(host))
    elif bracketed or host.rpartition(".")[2].isdigit():
        raise _mistake(
            "the host is not a complete IP address: write four numbers from 0 to 255, or IPv6 in brackets"
        )
    return Origin(host=host, port=port), match["rest"] or ""


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _mistake(message: str) -> PydanticCustomError:
    # As a parameter, so that pydantic does not read braces of the message as its own.
    return PydanticCustomError("url", "{message}", {"message": message})
