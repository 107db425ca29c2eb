"""What the scenarios must know of an engine, and one replica of it."""

import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real_engines import client
from real_engines.processes import Process, Unexpected, wait_for


@dataclass(frozen=True)
class Engine:
    """One kind of engine, as an example runs it."""

    model: str
    """The model's name towards clients; the example's config.yaml has the same."""
    slots: int
    """How many requests it computes at once; the next one waits in its queue."""
    running: str
    waiting: str
    """Its own gauges of these two."""
    work: str
    """A counter of its own that moves whenever it computes."""
    tokens: str
    """A counter of its own of the tokens it wrote."""
    tells_kv_cache: bool
    """Whether its page has the share of its KV cache that is in use."""
    loading_word: str
    """The reason while it loads: `loading` where it says so, `refused` where it does not listen yet."""
    long_answer_tokens: int
    """An answer of many seconds: a kill falls into it."""
    some_tokens: int
    """An answer of a few seconds."""
    too_many_words: int
    too_long_error: str
    """How many words are refused, and the type of that error."""
    start_s: float
    """The longest that a start may take."""
    environment: dict[str, str] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    """What a request needs besides, for the same answer every time."""


class Replica(Process):
    """One engine's server; `start` after a kill brings it back on its port."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        command: list[str],
        port: int,
        directory: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.engine = engine
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(
            [*command, "--port", str(port)],
            directory / f"engine-{name}.log",
            # One that is killed leaves its sockets behind: here they go with the rest.
            {**engine.environment, **environment, "TMPDIR": str(directory)},
        )

    def start(self, *more: str) -> None:
        """Start it, and wait until its model is loaded."""
        if self.alive:
            return
        self.launch(*more)
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_for(self.is_ready, f"engine {self.name}", self.engine.start_s)

    def is_ready(self) -> bool:
        """Whether it says that its model is loaded."""
        if not self.alive:
            raise Unexpected(f"engine {self.name} ended by itself")
        try:
            return client.get(self.url, "/health")[0] == 200
        except OSError:
            return False

    def read_metric(self, name: str) -> float:
        """One number of the engine's own metrics, whatever its labels."""
        page = client.get(self.url, "/metrics")[2].decode()
        found = re.search(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
        if found is None:
            raise Unexpected(f"engine {self.name} has no metric {name}")
        return float(found[1])

    def find_part(self, title: str) -> int:
        """The process id of one of the processes that it started, by its title."""
        for number, found in self.list_parts().items():
            if title in found:
                return number
        raise Unexpected(f"engine {self.name} has no process {title}")

    def read_cpu_s(self) -> float:
        """The processor time that its first process has had, without those that it started."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def list_parts(self) -> dict[int, str]:
        """The processes that it consists of at this moment, by their ids, with their titles."""
        parts = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                number = int(folder.name)
                title = (folder / "cmdline").read_text().replace("\0", " ").strip()
                if (
                    os.getsid(number) == self.pid and title
                ):  # one that is dead and not yet taken away has none
                    parts[number] = title
            except OSError:  # it ended meanwhile
                continue
        return parts

    @contextmanager
    def slowed(self) -> Iterator[None]:
        """It gets a fifth of the time meanwhile, as if its disk or its machine were slow."""
        over = threading.Event()

        def slow_down() -> None:
            while not over.wait(0.02):
                self.send(signal.SIGSTOP)
                over.wait(0.08)
                self.send(signal.SIGCONT)

        thread = threading.Thread(target=slow_down)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
