"""A real redis-server as a process of a test's own: a free port, a private directory, ended by its pid."""

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis
from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError

STARTED_WITHIN_S = 30.0
MISSING = (
    "redis-server is not installed, and these tests need a real one: "
    "apt-get install -y --no-install-recommends redis-server"
)


def find_redis(name: str = "redis-server") -> str:
    """The binary's path; a test that needs it fails with the mend where there is none."""
    found = shutil.which(name)
    assert found is not None, MISSING
    return found


def pick_port() -> int:
    """A port that is free now; Redis cannot be told to pick one and say which.

    Below those that the system gives to connections: one of them could take it while a server is restarted.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class RedisServer:
    """One server in one directory; `start` after `kill` finds what the directory holds."""

    directory: Path
    options: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=pick_port)
    binary: str = "redis-server"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        file = self.directory / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self, *, wait: bool = True) -> "RedisServer":
        """Start it and, unless told otherwise, wait until it takes commands."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "save": '""',
            "daemonize": "no",
            "logfile": str(self.directory / "log"),
            **self.options,
        }
        file = self.directory / "redis.conf"
        if not file.exists():  # Sentinel keeps what it learns in its own
            file.write_text("".join(f"{name} {value}\n" for name, value in config.items()))
        extra = ["--sentinel"] if self.binary == "redis-sentinel" else []
        self.process = subprocess.Popen([find_redis("redis-server"), str(file), *extra])
        if wait:
            self._wait_serving()
        return self

    def _wait_serving(self) -> None:
        if "tls-port" in self.options:
            self._wait_listening()
            return
        give_up_at = time.monotonic() + STARTED_WITHIN_S
        with self.ask() as client:
            while True:
                assert self.process is not None
                assert self.process.poll() is None, f"redis-server has ended: {self.log}"
                try:
                    client.ping()
                except (ConnectionError, TimeoutError, BusyLoadingError):
                    assert time.monotonic() < give_up_at, f"redis-server does not serve: {self.log}"
                    time.sleep(0.01)
                else:
                    return

    def _wait_listening(self) -> None:
        give_up_at = time.monotonic() + STARTED_WITHIN_S
        while "Ready to accept connections" not in self.log:
            assert self.process is not None
            assert self.process.poll() is None, f"redis-server has ended: {self.log}"
            assert time.monotonic() < give_up_at, f"redis-server does not serve: {self.log}"
            time.sleep(0.01)

    def ask(self) -> Redis:
        """A client of the test's own, past all our code."""
        return Redis(port=self.port, socket_timeout=5, protocol=2)

    def signal(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def redis_server(directory: Path, *, tls: bool = False, **options: str) -> Iterator[RedisServer]:
    """A server for as long as the block runs.

    An option's `_` stands for `-`. `tls`: its port speaks that alone.
    """
    server = _start(directory, {name.replace("_", "-"): value for name, value in options.items()}, tls)
    try:
        yield server
    finally:
        server.kill()


def _start(directory: Path, options: dict[str, str], tls: bool) -> RedisServer:
    """At a port that nobody takes between its choice and the start."""
    for _ in range(5):
        server = RedisServer(directory, dict(options))
        if tls:
            server.options["tls-port"] = str(server.port)
        try:
            return server.start()
        except AssertionError:
            server.kill()
            if "Address already in use" not in server.log:
                raise
            shutil.rmtree(directory)
    raise AssertionError("every port that was free was taken before redis-server listened there")
