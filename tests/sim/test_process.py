"""An engine as its own process: the line it prints, its clean end, and SIGKILL of itself."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from envoy_ext.sim.__main__ import read_options
from envoy_ext.sim.options import SimOptions
from tests.sim.wire import CHAT, Connection, ask, build_request, read_content

SPEED = ("--prefill-s", "0", "--token-s", "0", "--tokens", "3")


@asynccontextmanager
async def engine_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A running engine and its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "envoy_ext.sim",
        "--name",
        "k",
        *SPEED,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        match = re.fullmatch(r"sim-engine k listening on http://127\.0\.0\.1:(\d+)\n", line)
        assert match is not None, line
        yield process, int(match[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_it_says_where_it_listens_and_ends_cleanly_on_sigterm() -> None:
    async with engine_process("--model", "m1", "--model", "m2") as (process, port):
        models = await ask(port, "/v1/models", method="GET")
        assert [card["id"] for card in models.json["data"]] == ["m1", "m2"]
        connection = await Connection.open(port)
        connection.writer.write(build_request(CHAT, {"stream": True}, {"x-sim-fault": "hang_after=1"}))
        await connection.read_until(b"k.1.0")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
            assert not (await connection.read_to_end()).complete
        await connection.close()


async def test_a_kill_fault_ends_the_process_after_its_deltas() -> None:
    async with engine_process() as (process, port):
        reply = await ask(port, fault="die_after=2:kill")
        assert read_content(reply.body) == "k.1.0 k.1.1 "
        assert not reply.complete
        async with asyncio.timeout(30):
            assert await process.wait() == -signal.SIGKILL


async def test_what_was_written_before_a_kill_still_arrives() -> None:
    async with engine_process() as (_, port):
        reply = await ask(port, fault="big_event=3000000+die_after=1:kill")
        assert sum(len(event) + 2 for event in reply.body.split(b"\n\n")[1:2]) == 3_000_000
        assert read_content(reply.body).startswith("k.1.0 ~")


async def test_a_kill_before_headers_sends_nothing() -> None:
    async with engine_process() as (process, port):
        reply = await ask(port, fault="die_before_headers:kill")
        assert reply.raw == b""
        async with asyncio.timeout(30):
            assert await process.wait() == -signal.SIGKILL


def test_the_command_line_sets_every_option() -> None:
    line = (
        "--port 1 --host ::1 --name b --model m --prefill-s 2 --prefill-s-per-1k-tokens 3 --token-s 4 "
        "--token-s-a-neighbour 0.5 --tokens 5 --max-running 6 --kv-capacity-tokens 7 --first-generation 8 "
        "--notice-s 9 "
        "--root org/m --cache-dtype fp8 --adapter sql --adapter de --seed s --revision r --event-log f"
    )
    options = read_options(line.split())
    assert options == SimOptions(
        1,
        "::1",
        "b",
        ("m",),
        2.0,
        3.0,
        4.0,
        0.5,
        5,
        6,
        7,
        8,
        9.0,
        "org/m",
        "fp8",
        ("sql", "de"),
        "s",
        "r",
        "f",
    )
    assert read_options([]) == SimOptions()


@pytest.mark.parametrize("arguments", ["--name a:b", "--tokens 0", "--token-s -1", "--max-running 0"])
def test_a_wrong_command_line_is_bad_usage(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_options(arguments.split())
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err
