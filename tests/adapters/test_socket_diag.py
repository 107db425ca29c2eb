"""What the kernel says of a connection is what its peer has confirmed; of any other it says nothing."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from envoy_ext.adapters import socket_diag
from envoy_ext.adapters.socket_diag import SocketDiag
from envoy_ext.domain.silent_loss import Confirmation, is_unconfirmed
from envoy_ext.ports import Connection


@pytest.fixture
def diag() -> Iterator[SocketDiag]:
    with closing(SocketDiag()) as opened:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours, theirs = connect(server)
            with ours, theirs:
                if opened.read_acked(name(ours)) is None:
                    pytest.skip("this kernel does not tell of connections (sock_diag)")
        yield opened


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The server's end of a new connection, and the client's."""
    client = socket.socket(server.family)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.connect(server.getsockname()[:2])
    return server.accept()[0], client


def name(ours: socket.socket) -> Connection:
    """As Envoy names it: addresses of IPv4 on a socket for both are IPv4 addresses."""
    local, peer = ours.getsockname(), ours.getpeername()
    return Connection(local[0].removeprefix("::ffff:"), local[1], peer[0].removeprefix("::ffff:"), peer[1])


def wait_acked(diag: SocketDiag, connection: Connection, at_least: int) -> int:
    until = time.monotonic() + 10
    while (acked := diag.read_acked(connection)) is None or acked < at_least:
        assert time.monotonic() < until, f"{acked} of {at_least}"
        time.sleep(0.005)
    return acked


@pytest.mark.parametrize(("address", "both"), [("127.0.0.1", False), ("::1", False), ("::", True)])
def test_what_the_peers_machine_has_confirmed_is_known(diag: SocketDiag, address: str, both: bool) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=both) as server:
        if both:
            client = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
            ours = server.accept()[0]
        else:
            ours, client = connect(server)
        with ours, client:
            before = diag.read_acked(name(ours))
            assert before is not None
            ours.sendall(b"x" * 100)
            assert wait_acked(diag, name(ours), before + 100) == before + 100


def test_a_peer_that_reads_confirms_more(diag: SocketDiag) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours, client = connect(server)
        with ours, client:
            ours.setblocking(False)
            sent = ours.send(b"x" * 200_000)
            unread = wait_acked(diag, name(ours), 1)
            assert unread < sent
            read = 0
            while read < sent:
                read += len(client.recv(65_536))
            assert wait_acked(diag, name(ours), sent) > unread


def test_an_answer_that_nobody_took_is_not_taken_for_the_next_one(
    diag: SocketDiag, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (quiet, one), (ours, other) = connect(server), connect(server)
        with quiet, one, ours, other:
            ours.sendall(b"x" * 100)
            expected = wait_acked(diag, name(ours), 100)
            with monkeypatch.context() as patched:
                patched.setattr(socket_diag, "_READ_BYTES", -1)  # the read fails, and its answer stays
                assert diag.read_acked(name(quiet)) is None
            assert diag.read_acked(name(ours)) == expected


def test_of_a_connection_that_is_elsewhere_nothing_is_known(diag: SocketDiag) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours, client = connect(server)
        with ours, client:
            here = name(ours)
            assert diag.read_acked(Connection("10.255.0.1", 1, "10.255.0.2", 2)) is None
            assert diag.read_acked(Connection("", 0, "", 0)) is None, "a Unix socket has no address"
            assert diag.read_acked(Connection(here.local_ip, 70_000, here.peer_ip, 1)) is None
            assert diag.read_acked(here) is not None, "and it still answers"


def test_without_the_kernels_help_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(socket, "socket", refuse)
    with closing(SocketDiag()) as diag:
        assert diag.read_acked(Connection("127.0.0.1", 1, "127.0.0.1", 2)) is None
        assert diag.read_confirmation(Connection("127.0.0.1", 1, "127.0.0.1", 2)) is None


def test_the_machine_of_a_program_that_reads_nothing_confirms_on(diag: SocketDiag) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours, client = connect(server)
        with ours, client:
            ours.setblocking(False)
            ours.send(b"x" * 1_000_000)
            until = time.monotonic() + 10
            while (told := diag.read_confirmation(name(ours))) is None or told.unconfirmed > 0:
                assert time.monotonic() < until, told
                time.sleep(0.005)
            assert told.resends == 0
            assert 0 <= told.silent_s < 10
            assert not is_unconfirmed(told, 60.0)


def test_what_a_kernel_says_of_its_tries_is_read_from_their_places() -> None:
    """`struct tcp_info` of linux/tcp.h; those of a cut network are seen with a real one."""
    info = bytearray(200)
    info[2], info[3] = 7, 2
    struct.pack_into("=I", info, 24, 12)
    struct.pack_into("=I", info, 56, 6_500)

    class Told(SocketDiag):
        def _read_info(self, connection: Connection) -> bytes | None:
            return bytes(info)

    with closing(Told()) as diag:
        told = diag.read_confirmation(Connection("10.0.0.1", 1, "10.0.0.2", 2))
    assert told == Confirmation(silent_s=6.5, unconfirmed=12, resends=7, probes=2)
