"""What each thing costs that a sidecar can hold many of, with a real Envoy in front of it.

    python bench/memory.py [KIND…] [--transport native] [--sizes 500,1500] [--body 1000] [--places]

For each kind a fresh engine, sidecar and Envoy. A few of the kind come and go to warm up; then there are as
many as the first size says, then as many as the second. The difference in memory that is the process' own,
by the difference in number, is what one costs: whatever is there once cancels out.

    idle       a stream that has had its first delta, and is silent: one HTTP/2 stream is open (delivery)
    prefill    a request whose answer has not begun: two are (delivery and attempt)
    queued     a request that waits for a slot: one is (delivery)
    job        a job that waits
    operation  a request that has been answered: what the journal keeps of it

`--places` traces which lines hold it, which costs itself; the figures of memory are from runs without.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.inside.report import Report, ask, read_rss
from bench.stream_cost import MODEL, run_envoy, run_process
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import parse_config
from envoy_ext.domain import names

WARM: Final = 50
WAIT_S: Final = 120.0
REFILLS: Final = 8
REFILL_S: Final = 5.0
AT_ONCE: Final = 20
"""Requests that are begun together, so that connections are not refused."""
LONG_MS: Final = 3_600_000


@dataclass(frozen=True)
class Kind:
    """One kind of thing, and how to make some."""

    headers: dict[str, str]
    phase: str = ""
    """The phase that its requests stay in; "" for those that are answered at once."""
    config: dict[str, Any] = field(default_factory=dict)
    pool: dict[str, Any] = field(default_factory=dict)
    blocked: bool = False
    """Whether a stream holds the only slot."""


SILENT: Final = {"x-bench-chunks": "1", "x-bench-gap-ms": str(LONG_MS)}
KINDS: Final = {
    "idle": Kind(SILENT, "decode"),
    "prefill": Kind({"x-bench-prefill-ms": str(LONG_MS)}, "prefill"),
    "queued": Kind(
        SILENT,
        "queued",
        {"admission": {"queue": 10_000, "max_wait": "30m"}},
        {"capacity": {"concurrency": 1}},
        blocked=True,
    ),
    "job": Kind(
        {"prefer": "respond-async"},
        config={"jobs": {"max_waiting": 10_000, "concurrency": 1}, "admission": {"max_wait": "30m"}},
        pool={"capacity": {"concurrency": 1}},
        blocked=True,
    ),
    "operation": Kind({"x-bench-chunks": "1"}),
}


@dataclass
class Setup:
    """What runs."""

    port: int
    operations_port: int
    sidecar_pid: int
    envoy_pid: int
    report: Path

    def count(self, phase: str) -> int:
        """Exchanges in a phase."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.operations_port}/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("envoy_ext_inflight{") and f'phase="{phase}"' in line:
                    return int(float(line.split()[-1]))
        raise RuntimeError("the sidecar does not count what is in flight")

    async def wait_count(self, phase: str, count: int, limit_s: float = WAIT_S) -> None:
        """Until so many are."""
        async with asyncio.timeout(limit_s):
            while self.count(phase) != count:  # noqa: ASYNC110
                # Another process can only be asked again.
                await asyncio.sleep(0.1)


@dataclass(frozen=True)
class Weighed:
    """The sidecar with so many."""

    count: int
    rss: int
    envoy_rss: int
    report: Report


async def start(
    opened: contextlib.AsyncExitStack, kind: Kind, transport: str, store: str, trace: bool
) -> Setup:
    """Engine, sidecar and Envoy."""
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="envoy-ext-memory-")))
    root = Path(__file__).parent.parent
    _, line = await opened.enter_async_context(
        run_process(sys.executable, str(root / "bench" / "engine.py"), "0", ready="ready")
    )
    pool = {
        "name": "bench",
        "models": [MODEL],
        "readiness": {"watch": False},
        "replicas": [{"url": f"http://127.0.0.1:{line.split()[1]}"}],
    }
    data: dict[str, Any] = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 1, "admin": {"port": 0}, "endpoints": "static"},
        "journal": {"store": store} | ({"path": str(directory / "journal.db")} if store == "sqlite" else {}),
        "limits": {"client_write_stall": "1h", "max_event_loop_lag": 0},
        "pools": [pool | kind.pool],
    }
    config = parse_config(data | kind.config, "bench").with_sockets_in(str(directory))
    sidecar = config.sidecar.model_copy(update={"transport": transport})
    config = config.model_copy(update={"sidecar": sidecar})
    written, report = directory / "config.yaml", directory / "inside.json"
    written.write_text(config.model_dump_json(by_alias=True, exclude_defaults=True))
    process, line = await opened.enter_async_context(
        run_process(
            *(sys.executable, "-m", "bench.inside", str(report)),
            *(("--trace",) if trace else ()),
            *("serve", "-c", str(written)),
            ready="serves",
        )
    )
    envoy = await opened.enter_async_context(run_envoy(render_bootstrap(config), directory / "envoy"))
    ingress = int((await envoy.find_listener(names.LISTENER_INGRESS)).rpartition(":")[2])
    return Setup(ingress, int(line.split()[-1]), process.pid, envoy.pid, report)


class Clients:
    """Those who have asked, and hold on."""

    def __init__(self, setup: Setup, body_bytes: int) -> None:
        self._setup = setup
        messages = [{"role": "user", "content": "x" * body_bytes}]
        self._body = json.dumps({"model": MODEL, "stream": True, "messages": messages}).encode()
        self._held: list[asyncio.StreamWriter] = []

    async def ask(self, headers: dict[str, str], *, hold: bool, answered: bool = True) -> None:
        """One request, with its own connection. Not held: its answer is read to the end; not answered: its
        begin is not waited for either."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._setup.port)
        fields = {"host": "bench", "content-type": "application/json", **headers}
        fields["content-length"] = str(len(self._body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode() + self._body
        )
        if hold:
            self._held.append(writer)
            if not answered:
                return
        status = await reader.readline()
        if status.split()[1][:1] != b"2":
            raise RuntimeError(f"the gateway answered {status!r}")
        if not hold:
            await reader.read()
            writer.close()

    async def ask_all(self, count: int, kind: Kind) -> None:
        """So many more."""
        for low in range(0, count, AT_ONCE):
            some = range(low, min(count, low + AT_ONCE))
            hold, answered = bool(kind.phase), kind.phase in ("", "decode")
            await asyncio.gather(*(self.ask(kind.headers, hold=hold, answered=answered) for _ in some))

    async def leave(self) -> None:
        """All of them."""
        for writer in self._held:
            writer.transport.abort()
        self._held.clear()


async def weigh(setup: Setup, count: int) -> Weighed:
    """The sidecar at this moment, without garbage."""
    report = await ask(setup.sidecar_pid, setup.report)
    return Weighed(count, read_rss(setup.sidecar_pid), read_rss(setup.envoy_pid), report)


async def measure(
    kind: Kind, transport: str, store: str, sizes: list[int], body: int, trace: bool
) -> list[Weighed]:
    """The sidecar with nothing, and with each number of them."""
    async with contextlib.AsyncExitStack() as opened:
        setup = await start(opened, kind, transport, store, trace)
        clients = Clients(setup, body)
        opened.push_async_callback(clients.leave)
        blocker = Clients(setup, body)
        opened.push_async_callback(blocker.leave)
        if kind.blocked:
            await blocker.ask(SILENT, hold=True)
            await setup.wait_count("decode", 1)
        await clients.ask_all(WARM, kind)
        if kind.phase:
            await setup.wait_count(kind.phase, WARM)
            await clients.leave()
            await setup.wait_count(kind.phase, 0)
        found, there = [await weigh(setup, 0)], 0
        for size in sizes:
            await clients.ask_all(size - there, kind)
            for _ in range(REFILLS if kind.phase else 0):
                with contextlib.suppress(TimeoutError):
                    await setup.wait_count(kind.phase, size, REFILL_S)
                    break
                # On a machine with other work some are refused, which they do not wait to hear.
                await clients.ask_all(size - setup.count(kind.phase), kind)
            if kind.phase:
                await setup.wait_count(kind.phase, size, REFILL_S)
            there = size
            found.append(await weigh(setup, size))
        return found


def tell(name: str, found: list[Weighed], places: bool) -> dict[str, float]:
    """Print what one costs."""
    *_, before, after = found
    count = after.count - before.count
    rss, envoy = (after.rss - before.rss) / count, (after.envoy_rss - before.envoy_rss) / count
    blocks = (after.report.blocks - before.report.blocks) / count
    objects = (after.report.objects - before.report.objects) / count
    print(
        f"{name:28}{rss / 1024:8.1f} KiB in the sidecar{envoy / 1024:8.1f} KiB in Envoy"
        f"{blocks:8.1f} blocks{objects:7.1f} objects"
    )
    if places:
        traced = {
            place: (size - before.report.places.get(place, 0)) / count
            for place, size in after.report.places.items()
        }
        print(f"    traced: {sum(traced.values()):,.0f} bytes each")
        files: dict[str, float] = {}
        for place, size in traced.items():
            files[place.rpartition(":")[0]] = files.get(place.rpartition(":")[0], 0) + size
        for one, most in ((files, 30), (traced, 70)):
            for place, size in sorted(one.items(), key=lambda pair: -pair[1])[:most]:
                if size >= 8:
                    print(f"    {size:8.0f}  {'/'.join(Path(place).parts[-3:])}")
        types = {
            one: (number - before.report.types.get(one, 0)) / count
            for one, number in after.report.types.items()
        }
        for one, number in sorted(types.items(), key=lambda pair: -pair[1])[:60]:
            if number >= 0.5:
                print(f"    {number:8.1f}  {one}")
    return {"sidecar_bytes": rss, "envoy_bytes": envoy, "blocks": blocks, "objects": objects}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--transport", default="native", choices=("native", "grpc_aio"))
    parser.add_argument("--store", default="memory", choices=("memory", "sqlite"))
    parser.add_argument("--sizes", default="500,1500", help="two or more numbers, rising")
    parser.add_argument("--body", type=int, default=1_000, help="bytes of a prompt")
    parser.add_argument("--places", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    rows: dict[str, dict[str, float]] = {}
    for name in given.kinds or KINDS:
        found = asyncio.run(
            measure(KINDS[name], given.transport, given.store, sizes, given.body, given.places)
        )
        rows[name] = tell(f"{name}, {given.transport}, {given.store}", found, given.places)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
