"""What a connection attempt proves: a refusal that nobody is there, and anything else nothing."""

import asyncio
import socket

import pytest

from envoy_ext.adapters import connect_probe
from envoy_ext.adapters.connect_probe import ConnectProbe
from envoy_ext.ports import Reach


async def test_a_port_that_nobody_listens_at_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert await ConnectProbe().look(f"127.0.0.1:{port}") is Reach.ACCEPTED
    assert await ConnectProbe().look(f"127.0.0.1:{port}") is Reach.REFUSED


async def test_an_address_in_brackets_is_ipv6() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        assert await ConnectProbe().look(f"[::1]:{port}") is Reach.ACCEPTED
    assert await ConnectProbe().look(f"[::1]:{port}") is Reach.REFUSED


async def test_silence_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full backlog drops what comes, as a cut network does."""
    monkeypatch.setattr(connect_probe, "CONNECT_S", 0.05)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            assert await ConnectProbe().look(f"127.0.0.1:{address[1]}") is Reach.SILENT
        finally:
            for filler in fillers:
                filler.close()


async def test_an_unreachable_network_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: object) -> None:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(asyncio, "open_connection", unreachable)
    assert await ConnectProbe().look("10.255.255.1:8000") is Reach.SILENT


@pytest.mark.parametrize(
    ("behind", "told"), [(ConnectionRefusedError, Reach.REFUSED), (ConnectionResetError, Reach.ACCEPTED)]
)
async def test_a_port_that_closes_under_the_look_is_looked_at_again(
    behind: type[OSError], told: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed resets who has connected meanwhile: its host was heard, and is not cut off."""
    answers = [ConnectionResetError, ConnectionResetError]
    monkeypatch.setattr(connect_probe, "CONNECT_S", 0.1)

    async def answer(*_: object) -> None:
        raise answers.pop() if answers else behind

    monkeypatch.setattr(asyncio, "open_connection", answer)
    assert await ConnectProbe().look("10.0.0.1:8000") is told
    assert answers == []


async def test_looks_at_one_address_that_come_together_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    async def refuse(host: str, port: int) -> None:
        tried.append((host, port))
        await asyncio.sleep(0)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    probe = ConnectProbe()
    crowd = await asyncio.gather(*(probe.look("10.0.0.1:8000") for _ in range(50)))
    assert (set(crowd), tried) == ({Reach.REFUSED}, [("10.0.0.1", 8000)])
    await probe.look("10.0.0.1:8000")
    assert len(tried) == 2
