"""How a process is asked what it holds, and what it answers."""

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PER_TYPE: Final = 400
"""So many types are told, the most frequent first."""
ASK_S: Final = 60.0


@dataclass
class Report:
    """One process from within."""

    blocks: int
    """Pieces of memory that Python's own allocator has given out: whatever is kept is in some of them."""
    objects: int
    """Those that the garbage collector knows of, without those of the start."""
    tasks: int
    types: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """Bytes by file and line; empty unless they are traced."""


async def ask(pid: int, path: Path) -> Report:
    """Have a process write its report.

    Raises:
        TimeoutError: it does not.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    os.kill(pid, signal.SIGUSR1)
    async with asyncio.timeout(ASK_S):
        while not path.exists():  # noqa: ASYNC110
            # Another process can only be looked at again.
            await asyncio.sleep(0.02)
    return Report(**json.loads(path.read_text()))


def read_rss(pid: int) -> int:
    """Bytes of memory of a process that are its own: without what files are mapped."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"the kernel does not tell the memory of {pid}")


def count_descriptors(pid: int) -> int:
    """Open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
