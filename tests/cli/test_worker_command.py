"""`envoy-ext worker` as a process of its own."""

import asyncio
import re

import aiohttp
import pytest

from tests.support.commands import Command, command, run_command
from tests.support.raw_http import RawExchange, RawServer, build_response

LEASES = ("--gateways", "http://127.0.0.1:1")


async def play(exchange: RawExchange) -> None:
    if exchange.line.startswith("GET /health "):
        await exchange.send(build_response(b"well"))
    else:
        await exchange.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await exchange.wait_closed_by_peer()


async def read_port(running: Command) -> int:
    found = re.search(
        r"http://127\.0\.0\.1:(\d+), as long as", await running.read_line("envoy-ext worker at")
    )
    assert found is not None
    return int(found[1])


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def wait_accepts(port: int, wanted: bool) -> None:
    async with asyncio.timeout(30):
        while await accepts(port) is not wanted:
            await asyncio.sleep(0.02)


async def test_its_port_lives_and_dies_with_the_engine_s_and_it_ends_cleanly() -> None:
    async with (
        RawServer(play) as engine,
        command("worker", "--engine", engine.url, "--listen", "127.0.0.1:0", *LEASES) as running,
        aiohttp.ClientSession() as http,
    ):
        engine_port, port = engine.port, await read_port(running)
        await wait_accepts(port, True)
        async with http.post(f"http://127.0.0.1:{port}/stream") as answer:
            assert await answer.content.readany() == b"x"
            await engine.__aexit__()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.content.read()
            assert not await accepts(port), "whoever sees the cut can see the death"
        async with RawServer(play, engine_port):
            await wait_accepts(port, True)
            async with http.get(f"http://127.0.0.1:{port}/health") as answer:
                assert await answer.read() == b"well"
            assert await running.end() == 0


@pytest.mark.parametrize(
    ("arguments", "mistakes"),
    [
        (
            ("--engine", "10.0.0.1:8080", "--listen", "8000", "--gateways", "ftp://x"),
            [
                "--engine: 10.0.0.1:8080 is not http://host:port",
                "--listen: 8000 is not host:port",
                "--gateways (ENVOY_EXT_GATEWAYS): ftp://x is neither http://host:port nor grpc://host:port",
            ],
        ),
        (("--engine", "https://e:1", *LEASES), ["--engine: https://e:1 is not http://host:port"]),
        (("--engine", "http://e:1/v1", *LEASES), ["--engine: http://e:1/v1 is not http://host:port"]),
        (("--engine", "http://e:1", "--listen", "h:99999", *LEASES), ["--listen: h:99999 is not host:port"]),
    ],
)
async def test_what_cannot_be_used_is_named_line_by_line(
    arguments: tuple[str, ...], mistakes: list[str]
) -> None:
    status, output, errors = await run_command("worker", *arguments)
    assert (status, output, errors.splitlines()) == (2, "", mistakes)


async def test_without_gateways_it_says_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVOY_EXT_GATEWAYS", raising=False)
    status, _, errors = await run_command("worker", "--engine", "http://127.0.0.1:1")
    assert status == 2
    assert errors.startswith("--gateways (ENVOY_EXT_GATEWAYS): name the gateways' lease service")


async def test_an_address_that_is_taken_ends_it() -> None:
    async with RawServer(b"") as taken:
        place = f"127.0.0.1:{taken.port}"
        status, _, errors = await run_command("worker", "--engine", taken.url, "--listen", place, *LEASES)
    assert (status, errors.strip()) == (1, f"--listen: cannot listen at {place}: Address already in use")
