"""Host names to addresses, through the system's resolver."""

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

_NO_DATA: Final = getattr(socket, "EAI_NODATA", None)
"""Not every C library tells an empty answer from a name that does not exist."""


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """The resolver gave no answer. `reason` is low-cardinality."""

    reason: str
    """no_such_name: it says that there is none. resolver: it cannot say, as after SERVFAIL or a timeout."""
    detail: str


def format_address(ip: str, port: int) -> str:
    """`ip:port` as Envoy writes `upstream.address`: IPv6 in brackets."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def is_ip(host: str) -> bool:
    """Whether this is an address already."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def look_up(host: str, port: int) -> tuple[str, ...] | LookupFailed:
    """The `ip:port` forms of a host, in the resolver's order; an answer may hold none.

    It takes as long as the resolver does (resolv.conf(5) has its limits), and a thread meanwhile.
    """
    if is_ip(host):
        return (format_address(host, port),)
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return _read_failure(error)
    except OSError as error:
        return LookupFailed("resolver", error.strerror or type(error).__name__)
    except UnicodeError:
        return LookupFailed("no_such_name", "no domain name can have such a label")
    # A link's address (`fe80::1%eth0`) means something on this host only, and nothing to Envoy.
    ips = dict.fromkeys(str(info[4][0]) for info in infos if "%" not in str(info[4][0]))
    return tuple(format_address(ip, port) for ip in ips)


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """The `ip:port` forms Envoy may know one replica by; empty when the name does not resolve.

    Of a name that has both, IPv4 only, as Envoy's own `V4_PREFERRED`: networks have names with both
    families and no way to one of them, and engines listen on 0.0.0.0.
    """
    found = await look_up(host, port)
    if isinstance(found, LookupFailed):
        return ()
    return tuple(address for address in found if not address.startswith("[")) or found


def _read_failure(error: socket.gaierror) -> tuple[str, ...] | LookupFailed:
    if error.errno == _NO_DATA:
        return ()
    reason = "no_such_name" if error.errno == socket.EAI_NONAME else "resolver"
    return LookupFailed(reason, error.strerror or f"error {error.errno}")
