"""The two C++ programs of this benchmark: built when they are older than their source, and driven.

Where the compiler is missing nothing can be measured; without gRPC's library all but its own line can.
"""

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

SOURCES: Final = Path(__file__).parent / "native"
BUILT: Final = Path(__file__).parent.parent.parent / "build" / "bench"
ANSWER_S: Final = 120.0
INSTALL: Final = "apt-get install g++ pkg-config libgrpc++-dev"
"""Debian's names. No generated code is needed: the C++ server speaks bytes."""


class NotHere(RuntimeError):
    """What the benchmark needs of this machine is missing."""


def build(name: str, package: str = "") -> Path:
    """The program of `native/NAME.cc`, compiled if need be; `package` is pkg-config's name of its library."""
    source, program = SOURCES / f"{name}.cc", BUILT / name
    newest = max(one.stat().st_mtime for one in SOURCES.iterdir())
    if program.exists() and program.stat().st_mtime > newest:
        return program
    if shutil.which("g++") is None:
        raise NotHere(f"g++ is missing: {INSTALL}")
    flags: list[str] = []
    if package:
        if shutil.which("pkg-config") is None:
            raise NotHere(f"pkg-config is missing: {INSTALL}")
        asked = subprocess.run(["pkg-config", "--cflags", "--libs", package], capture_output=True, text=True)
        if asked.returncode:
            raise NotHere(f"{package} is missing: {INSTALL}")
        flags = asked.stdout.split()
    BUILT.mkdir(parents=True, exist_ok=True)
    subprocess.run(["g++", "-O2", "-std=c++17", "-o", str(program), str(source), *flags], check=True)
    return program


class LoadGenerator:
    """Replica and clients in one process (`native/loadgen.cc`, which says what its commands mean)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.port = 0
        """The replica's."""

    @property
    def pid(self) -> int:
        """The process's."""
        return self._process.pid

    async def run(
        self, *, on_start: Callable[[], None], on_stop: Callable[[], None], **options: object
    ) -> dict[str, Any]:
        """One load; the callbacks are at both ends of what is counted. Returns what was counted."""
        self._say("run", options)
        await self._expect("start")
        on_start()
        await self._expect("stop")
        on_stop()
        counted: dict[str, Any] = json.loads(await self._read())
        return counted

    async def hold(self, port: int, streams: int) -> None:
        """Open streams that are silent behind their first chunk."""
        self._say("hold", {"port": port, "streams": streams})
        await self._expect("held")

    async def release(self) -> None:
        """End those that are held."""
        self._say("release", {})
        await self._expect("released")

    async def open(self) -> None:
        """Until it listens."""
        self.port = int((await self._expect("ready")).split()[1])

    def _say(self, verb: str, options: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        words = (f"{name}={value}" for name, value in options.items())
        self._process.stdin.write(" ".join([verb, *words, "\n"]).encode())

    async def _expect(self, word: str) -> str:
        line = await self._read()
        if not line.startswith(word):
            raise RuntimeError(f"the load generator says {line!r} where {word!r} was expected")
        return line

    async def _read(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(ANSWER_S):
            line = (await self._process.stdout.readline()).decode().strip()
        if not line or line.startswith("failed"):
            raise RuntimeError(f"the load generator has failed: {line}")
        return line


@contextlib.asynccontextmanager
async def load_generator() -> AsyncIterator[LoadGenerator]:
    """It runs meanwhile."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(str(build("loadgen")), stdin=pipe, stdout=pipe)
    try:
        made = LoadGenerator(process)
        await made.open()
        yield made
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
