"""The gateway under load, as people start it: `envoy-ext run`, with Envoy as its child."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

START_S: Final = 120.0
STOP_S: Final = 20.0
IDLE_S: Final = 15.0
"""How long the evidence of the last exchange's end may take after its client has its last byte: the
sidecar waits 3 s for a log entry that does not come."""
_PAGE: Final = 200
_READY: Final = re.compile(r"clients: (\S+)  operations: (\S+)")
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_EXPECTED: Final = re.compile('"level":"info"|"event":"attempt_failed"')
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class GatewayProcess:
    """A running gateway. `directory` keeps its configuration, its journal and its log."""

    def __init__(
        self, config: dict[str, Any], directory: Path, envoy: str, program: Sequence[str] = ("envoy_ext",)
    ) -> None:
        """`program`: the module that is run, and what it is told before the command."""
        self._config = config
        self._program = program
        self._envoy = envoy
        self.directory = directory
        self.url = ""
        self.operations_url = ""
        self.envoy_pid = 0
        self._process: asyncio.subprocess.Process | None = None
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Start it and wait until it says where it listens."""
        config = self.directory / "config.yaml"
        config.write_text(json.dumps(self._config))
        with (self.directory / "sidecar.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", *self._program, "run", "-c", str(config), "--envoy", self._envoy),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._http = aiohttp.ClientSession()
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await self._process.stdout.readline()).decode()
        ready = _READY.search(line)
        if ready is None:
            raise RuntimeError(f"the gateway did not start: {line!r}\n{self.read_log()}")
        self.url, self.operations_url = ready[1], ready[2]
        self.envoy_pid = self.find_envoy()

    @property
    def pid(self) -> int:
        """Of the sidecar, once started."""
        assert self._process is not None
        return self._process.pid

    def find_envoy(self) -> int:
        """The process id of the Envoy that runs under it; `RuntimeError` when there is not exactly one."""
        assert self._process is not None
        pid = self._process.pid
        children = [
            int(one)
            for tasks in Path(f"/proc/{pid}/task").glob("*/children")
            for one in tasks.read_text().split()
        ]
        found = [child for child in children if _read_name(child) == "envoy"]
        if len(found) != 1:
            raise RuntimeError(f"there are {len(found)} Envoys under the gateway\n{self.read_log()}")
        return found[0]

    @property
    def ended(self) -> bool:
        """Whether it has ended, which it does when its Envoy ends."""
        return self._process is None or self._process.returncode is not None

    async def wait_idle(self) -> None:
        """Until nothing is in flight and no end evidence is waited for; `TimeoutError` when that stays so."""
        async with asyncio.timeout(IDLE_S):
            while (await self._fetch("/healthz/live"))["inflight"]:  # noqa: ASYNC110
                # Another process can only be asked again.
                await asyncio.sleep(0.1)

    async def fetch_operations(self) -> list[dict[str, Any]]:
        """The whole journal, newest first, as `GET /v1/operations` tells it."""
        found: list[dict[str, Any]] = []
        query = f"limit={_PAGE}"
        while True:
            page = await self._fetch(f"/v1/operations?{query}")
            found += page["operations"]
            if page["next"] is None:
                return found
            query = f"limit={_PAGE}&before={page['next']}"

    async def fetch_metrics(self, name: str) -> dict[str, float]:
        """The samples of one metric, by the values of their labels, in the order of the labels' names."""
        assert self._http is not None
        async with self._http.get(f"{self.operations_url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        samples = (sample for line in lines if (sample := _SAMPLE.match(line)) and sample[1] == name)
        return {" ".join(value for _, value in _LABEL.findall(s[2] or "")): float(s[3]) for s in samples}

    async def fetch_envoy_stats(self, pattern: str) -> dict[str, int]:
        """Envoy's counters and gauges whose names match."""
        assert self._http is not None
        arguments = Path(f"/proc/{self.envoy_pid}/cmdline").read_text().split("\0")
        admin = Path(arguments[arguments.index("--admin-address-path") + 1]).read_text().strip()
        async with self._http.get(f"http://{admin}/stats", params={"filter": pattern}) as answer:
            lines = (await answer.text()).splitlines()
        pairs = (line.partition(": ") for line in lines)
        return {name: int(value) for name, _, value in pairs if value.isdigit()}

    async def _fetch(self, path: str) -> dict[str, Any]:
        assert self._http is not None
        async with self._http.get(f"{self.operations_url}{path}") as answer:
            found: dict[str, Any] = await answer.json()
        return found

    def read_log(self) -> str:
        """The end of what Envoy logged, and the sidecar beside its lines for each exchange and attempt."""
        lines = (self.directory / "sidecar.log").read_text(errors="replace").splitlines()
        texts = ["\n".join(line for line in lines if not _EXPECTED.search(line))]
        if self.envoy_pid and Path(f"/proc/{self.envoy_pid}").exists():
            arguments = Path(f"/proc/{self.envoy_pid}/cmdline").read_text().split("\0")
            log = Path(arguments[arguments.index("-c") + 1]).with_name("envoy.log")
            texts.append(log.read_text(errors="replace") if log.exists() else "")
        return "\n".join(line for text in texts for line in text.splitlines()[-40:])

    async def stop(self) -> int:
        """SIGTERM; its exit status."""
        if self._http is not None:
            await self._http.close()
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                return await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            # Its child would outlive it.
            if _read_name(self.envoy_pid) == "envoy":
                os.kill(self.envoy_pid, signal.SIGKILL)
            raise

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _read_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
