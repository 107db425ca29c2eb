"""The `envoy-ext` command as a process of its own: started, read line by line, signalled, waited for."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

STARTED_WITHIN_S = 30.0
ENDED_WITHIN_S = 30.0


@dataclass(slots=True)
class Command:
    """One running command."""

    process: asyncio.subprocess.Process

    async def read_line(self, part: str) -> str:
        """The next line of its output that holds this part."""
        assert self.process.stdout is not None
        async with asyncio.timeout(STARTED_WITHIN_S):
            while line := (await self.process.stdout.readline()).decode():
                if part in line:
                    return line.strip()
        raise AssertionError(f"the command ended before it said {part!r}")

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait until it has ended; its exit status."""
        self.process.send_signal(how)
        return await self.wait()

    async def wait(self) -> int:
        """Wait until it has ended; its exit status."""
        async with asyncio.timeout(ENDED_WITHIN_S):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def command(*arguments: str, stderr: int | None = None) -> AsyncIterator[Command]:
    """Run `envoy-ext` with these arguments; what still runs at the end of the block is killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "envoy_ext", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        # A group of its own: what it starts can be found, and ended if it does not do so itself.
        start_new_session=True,
    )
    try:
        yield Command(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def run_command(*arguments: str) -> tuple[int, str, str]:
    """Run `envoy-ext` to its end: exit status, output, errors."""
    async with command(*arguments, stderr=asyncio.subprocess.PIPE) as running:
        async with asyncio.timeout(60):
            output, errors = await running.process.communicate()
        assert running.process.returncode is not None
        return running.process.returncode, output.decode(), errors.decode()


def list_group(pgid: int) -> list[int]:
    """The processes that still run in a process group."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # pid (comm) state ppid pgrp: the command's name may hold spaces and brackets.
                with open(f"/proc/{entry}/stat") as stat:
                    fields = stat.read().rpartition(")")[2].split()
                if int(fields[2]) == pgid and fields[0] != "Z":
                    found.append(int(entry))
    return found
