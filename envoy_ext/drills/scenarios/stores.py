"""The stores that scenarios are played on, each empty and nobody else's."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from envoy_ext.domain.errors import EnvoyExtError

STORES: Final = ("memory", "sqlite", "redis")
_STARTED_WITHIN_S: Final = 30.0


class StoreMissing(EnvoyExtError):
    """What a store needs is not on this machine."""


@asynccontextmanager
async def open_store(store: str, directory: Path) -> AsyncIterator[dict[str, Any]]:
    """The configuration's `journal` for one of `STORES`, which is there as long as the block runs.

    Raises:
        StoreMissing: there is no redis-server, or it does not start.
    """
    if store == "redis":
        async with _run_redis(directory / "redis") as url:
            yield {"store": "redis", "url": url}
    elif store == "sqlite":
        yield {"store": "sqlite", "path": str(directory / "journal.db")}
    else:
        yield {"store": "memory"}


@asynccontextmanager
async def _run_redis(directory: Path) -> AsyncIterator[str]:
    binary = shutil.which("redis-server")
    if binary is None:
        raise StoreMissing("store redis: no redis-server on PATH: install it, or leave this store out")
    directory.mkdir()
    with socket.socket() as probe:  # Redis cannot be told to pick a port and say which
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    options = {"bind": "127.0.0.1", "port": port, "dir": directory, "save": "", "appendonly": "yes"}
    process = await asyncio.create_subprocess_exec(
        binary,
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await _wait_answering(process, port)
        yield f"redis://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _wait_answering(process: asyncio.subprocess.Process, port: int) -> None:
    try:
        async with asyncio.timeout(_STARTED_WITHIN_S):
            while not await _answers(port):
                if process.returncode is not None:
                    raise StoreMissing("store redis: redis-server has ended instead of serving")
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise StoreMissing("store redis: redis-server does not serve") from None


async def _answers(port: int) -> bool:
    """Whether it takes commands: while it loads, it says so."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
    except OSError:
        return False
    return answer == b"+PONG\r\n"
