"""Child processes. Whoever starts one here ends it, by its id."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

SETTLE_S = 30.0
"""For what is waited for and takes milliseconds, or a few seconds at most."""
STOP_S = 30.0

T = TypeVar("T")


class Unexpected(Exception):
    """A process or an answer was not what the example needs to go on."""


def wait_for(find: Callable[[], T | None], what: str, limit_s: float = SETTLE_S) -> T:
    """Ask until there is an answer. The processes asked are not ours to be told by."""
    end = time.monotonic() + limit_s
    while True:
        found = find()
        if found:
            return found
        if time.monotonic() > end:
            raise Unexpected(f"waited {limit_s:.0f} s for {what}")
        time.sleep(0.01)


GIVEN_PORTS: set[int] = set()


def find_free_port() -> int:
    """Outside the range that outgoing connections take theirs from, as an engine comes back on its port."""
    while True:
        port = random.randrange(20_000, 30_000)
        if port in GIVEN_PORTS:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        GIVEN_PORTS.add(port)
        return port


class Process:
    """One child process and what it starts itself, with what they write in a file."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.command = command
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._child: subprocess.Popen[bytes] | None = None

    def launch(self, *more: str) -> None:
        """Start it, with more options than usual if there are any."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*self.command, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the one that started it, who ends it in order
            )

    def read_log_end(self) -> str:
        """The last lines of what it wrote."""
        written = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(written.splitlines()[-40:])

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it started: an engine may be several processes."""
        if self.alive:
            os.killpg(self.pid, number)  # it leads a group of its own

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        assert self._child is not None
        return self._child.wait(STOP_S)

    def stop(self) -> int:
        """SIGTERM, or SIGKILL for one that does not go; the exit status."""
        if self._child is None:
            return 0
        self.send(signal.SIGCONT)
        self._child.terminate()  # the first of them ends the others
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()
