"""A simulated engine in a process of its own, so that it can really be killed, and started again.

A restarted engine keeps its port and counts its generations on, so that no two answers of its
lives have the same text.
"""

import asyncio
import contextlib
import re
import signal
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from envoy_ext.sim.options import SimOptions

GENERATIONS_A_LIFE: Final = 1_000_000
_READY: Final = re.compile(r"listening on http://[^ ]+:(\d+)")


@dataclass(slots=True)
class SimProcess:
    """One engine process. `start` again after it died brings it back on the same port."""

    options: SimOptions
    within: tuple[str, ...] = ()
    """A command that runs it elsewhere and becomes it, such as `ip netns exec NAME`."""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _lives: int = field(default=0, init=False)

    @property
    def url(self) -> str:
        """Where it listens, once started."""
        return f"http://{self.options.host}:{self.options.port}"

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it listens; nothing to do when it runs.

        Raises:
            RuntimeError: it ended instead.
        """
        if self.alive:
            return
        options = replace(self.options, first_generation=1 + self._lives * GENERATIONS_A_LIFE)
        self._lives += 1
        process = await asyncio.create_subprocess_exec(
            *(*self.within, sys.executable),
            *("-m", "envoy_ext.sim"),
            *build_arguments(options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        self._process = process
        line = (await process.stdout.readline()).decode() if process.stdout is not None else ""
        ready = _READY.search(line)
        if ready is None:
            raise RuntimeError(f"the simulated engine {options.name} did not start")
        self.options = replace(self.options, port=int(ready[1]))

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        await self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: its kernel still answers, and it does not."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, how: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(how)

    async def wait_dead(self) -> None:
        """Until its process has ended, by whoever's hand."""
        if self._process is not None:
            await self._process.wait()

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        self._signal(how)
        await process.wait()


def build_arguments(options: SimOptions) -> list[str]:
    """The command line that gives these options."""
    arguments = []
    for name, value in asdict(options).items():
        if name in ("models", "adapters"):
            arguments += [word for one in value for word in (f"--{name.removesuffix('s')}", one)]
        else:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments
