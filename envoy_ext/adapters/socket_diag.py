"""What the kernel knows of Envoy's connections, by sock_diag (man 7 sock_diag).

Envoy tells how much it has put into a connection's buffer and nothing of what became of it. The kernel
does, to anybody on the same network stack, without rights: where Envoy runs elsewhere, in another
container's network or on another machine, there is no such connection here and no answer.
"""

import socket
import struct
from ipaddress import ip_address
from typing import Final

from envoy_ext.domain.silent_loss import Confirmation
from envoy_ext.ports import Connection

# linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h: fixed, because programs are compiled with them.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_INET_DIAG_INFO: Final = 2
_ALL_STATES: Final = 0xFFFFFFFF
_ANY_COOKIE: Final = (0xFFFFFFFF, 0xFFFFFFFF)
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH")
_SCOPE: Final = struct.Struct("=III")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ANSWER_BYTES: Final = 72
"""Of `struct inet_diag_msg`, in front of the attributes."""
_ACKED: Final = struct.Struct("=Q")
_ACKED_AT: Final = 120
"""Of `tcpi_bytes_acked` in `struct tcp_info`, since Linux 4.1."""
_TRIES: Final = struct.Struct("=xxBB")
"""`tcpi_retransmits` and `tcpi_probes`: of tries that were not answered."""
_UNACKED: Final = struct.Struct("=I")
_UNACKED_AT: Final = 24
_LAST_ACK: Final = struct.Struct("=I")
_LAST_ACK_AT: Final = 56
"""Of `tcpi_last_ack_recv`, in ms."""
_READ_BYTES: Final = 8192


class SocketDiag:
    """One netlink socket for all questions. The kernel answers within the call, in about 30 us."""

    def __init__(self) -> None:
        self._asked = 0
        self._netlink: socket.socket | None = None
        try:
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
            self._netlink.setblocking(False)
        except (OSError, AttributeError):
            pass  # not Linux, or forbidden here: nothing is ever known

    def close(self) -> None:
        """Ask no more."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def read_acked(self, connection: Connection) -> int | None:
        """How many bytes the peer's kernel has confirmed since the connection began; None is not known."""
        info = self._read_info(connection)
        if info is None or len(info) < _ACKED_AT + _ACKED.size:
            return None
        return int(_ACKED.unpack_from(info, _ACKED_AT)[0])

    def read_confirmation(self, connection: Connection) -> Confirmation | None:
        """Whether the peer's kernel confirms what it is sent; None is not known."""
        info = self._read_info(connection)
        if info is None or len(info) < _LAST_ACK_AT + _LAST_ACK.size:
            return None
        resends, probes = _TRIES.unpack_from(info)
        return Confirmation(
            silent_s=_LAST_ACK.unpack_from(info, _LAST_ACK_AT)[0] / 1000,
            unconfirmed=_UNACKED.unpack_from(info, _UNACKED_AT)[0],
            resends=resends,
            probes=probes,
        )

    def _read_info(self, connection: Connection) -> bytes | None:
        """The connection's `struct tcp_info`, as far as this kernel has it."""
        if self._netlink is None:
            return None
        self._asked += 1
        try:
            self._netlink.send(_build_question(connection, self._asked))
            while True:
                answer = self._netlink.recv(_READ_BYTES)
                if _HEADER.unpack_from(answer)[3] == self._asked:  # not one left from a call that failed
                    return _read_info(answer)
        except (OSError, ValueError, struct.error):
            return None


def _build_question(connection: Connection, number: int) -> bytes:
    local, peer = ip_address(connection.local_ip), ip_address(connection.peer_ip)
    family = socket.AF_INET6 if local.version == 6 else socket.AF_INET
    question = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _ALL_STATES)
        + _PORTS.pack(connection.local_port, connection.peer_port)
        + local.packed.ljust(16, b"\0")
        + peer.packed.ljust(16, b"\0")
        + _SCOPE.pack(0, *_ANY_COOKIE)
    )
    size = _HEADER.size + len(question)
    return _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, number, 0) + question


def _read_info(answer: bytes) -> bytes | None:
    size, kind, *_ = _HEADER.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        return None  # an error: mostly, that there is no such connection
    at = _HEADER.size + _ANSWER_BYTES
    while at + _ATTRIBUTE.size <= size:
        length, attribute = _ATTRIBUTE.unpack_from(answer, at)
        if length < _ATTRIBUTE.size:
            return None
        if attribute == _INET_DIAG_INFO:
            return answer[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return None
