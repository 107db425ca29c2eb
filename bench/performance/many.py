"""How long a chunk is in the sidecar when very many streams run: 1,000 at 50 chunks/s, or what is carried.

*Carried* is a load of which clients read 99 % of the chunks that were due, half of them within the time to
their next one: nothing piles up. The search goes up in hundreds, and from the last one in steps of 25.

A chunk's time in the sidecar has two parts, and no clock sees both: it waits in the socket until the event
loop comes to it, and then it is handled. The wait is measured from outside, with HTTP/2 PINGs on a connection
of their own to the sidecar's socket, which wait for the same loop; the asker's own wait for a core is in it.
The handling is the sidecar's own histogram (`envoy_ext_chunk_seconds`), by the upper bound of a bucket. Of
either the time that 0.5 % exceed is taken: at most 1 % of all chunks then exceed the sum.
"""

import select
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench.performance.figures import Spoiled
from bench.performance.gateways import Gateway
from bench.performance.loads import Machine, Sample
from envoy_ext.http2 import frames
from envoy_ext.http2.frames import FrameType, Setting

RATE: Final = 50
STEP: Final = 100
FINE: Final = 25
MOST: Final = 1_000
CARRIED_SHARES: Final = (0.99, 1.02)
"""More than all that were due: what had piled up before came as well."""
SHARE: Final = 0.995
FEWEST_PINGS: Final = 200
_CHUNK: Final = "envoy_ext_chunk_seconds"
_LAG: Final = "envoy_ext_event_loop_lag_seconds"
_PING_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Seen:
    """One load."""

    streams: int
    rate: float
    sample: Sample
    handled_ms: float | None = None
    """What 0.5 % exceed, by the sidecar's own histogram."""
    waited_ms: float | None = None
    """The same, by its answers to PINGs."""
    pings: int = 0
    lag_ms: float | None = None
    """What 1 % of its timers' delays exceed, by the sidecar's own histogram."""

    @property
    def share(self) -> float:
        """Of the chunks that were due."""
        return self.sample.chunks / (self.streams * self.rate * self.sample.seconds)

    @property
    def carried(self) -> bool:
        """Whether nothing piled up."""
        if self.sample.spoiled:
            return False
        least, most = CARRIED_SHARES
        return least <= self.share <= most and self.sample.chunk_us.get("p50", 1e9) < 1e6 / self.rate

    @property
    def p99_ms(self) -> float:
        """In the sidecar, at most."""
        if self.handled_ms is None or self.waited_ms is None or self.pings < FEWEST_PINGS:
            raise Spoiled(f"{self.streams} streams: the sidecar was asked only {self.pings} times")
        return self.handled_ms + self.waited_ms


def read_values(seen: list[Seen]) -> list[float]:
    """The p99 of each load."""
    for one in seen:
        if one.sample.spoiled:
            raise Spoiled(f"{one.streams} streams: {one.sample.spoiled}")
        if not one.carried:
            raise Spoiled(f"{one.streams} streams: {one.share:.1%} of the chunks that were due came")
    return [one.p99_ms for one in seen]


async def find_most(
    machine: Machine, gateway: Gateway, say: Callable[[str], None], seconds: float
) -> tuple[int, list[Seen]]:
    """The most streams that are carried, and all that was tried."""
    tried: list[Seen] = []

    async def carries(streams: int) -> bool:
        # Once more before it counts as too much: another process may have had the core.
        for _ in range(2):
            seen = await measure_many(machine, gateway, streams, RATE, seconds)
            tried.append(seen)
            say(f"{gateway.name}: {streams} streams: {seen.share:.1%} of the chunks, carried: {seen.carried}")
            if seen.carried:
                return True
        return False

    most = 0
    for streams in range(STEP, MOST + 1, STEP):
        if not await carries(streams):
            break
        most = streams
    if most < MOST:
        for streams in range(most + FINE, most + STEP, FINE):
            if not await carries(streams):
                break
            most = streams
    return most, tried


async def measure_many(machine: Machine, gateway: Gateway, streams: int, rate: float, seconds: float) -> Seen:
    """One load, and meanwhile PINGs to the sidecar where there is one."""
    load: dict[str, Any] = {
        "mode": "paced",
        "streams": streams,
        "rate": rate,
        "seconds": seconds,
        "warm": 1,
    }
    if gateway.sidecar_socket is None or gateway.operations_port is None:
        return Seen(streams, rate, await machine.measure(gateway, **load))
    pages: list[str] = []
    with Asker(gateway.sidecar_socket) as asker:

        def start() -> None:
            pages.append(read_page(gateway))
            asker.count()

        def stop() -> None:
            asker.stop()
            pages.append(read_page(gateway))

        sample = await machine.measure(gateway, start, stop, **load)
    before, after = pages
    handled = find_quantile(count_between(before, after, _CHUNK), SHARE)
    lag = find_quantile(count_between(before, after, _LAG), 0.99)
    waited = sorted(asker.waited_ms)
    return Seen(
        streams,
        rate,
        sample,
        None if handled is None else handled * 1e3,
        waited[int(SHARE * len(waited))] if waited else None,
        len(waited),
        None if lag is None else lag * 1e3,
    )


def read_page(gateway: Gateway) -> str:
    """The sidecar's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.operations_port}/metrics") as answer:
        page: str = answer.read().decode()
    return page


def count_between(before: str, after: str, name: str) -> dict[float, float]:
    """How many a histogram has counted between two pages, up to each of its bounds."""
    earlier = read_buckets(before, name)
    return {bound: count - earlier.get(bound, 0.0) for bound, count in read_buckets(after, name).items()}


def read_buckets(page: str, name: str) -> dict[float, float]:
    """How many a histogram has counted, up to each of its bounds."""
    return {
        float(line.split('le="')[1].split('"')[0]): float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith(f"{name}_bucket")
    }


def find_quantile(buckets: dict[float, float], share: float) -> float | None:
    """The upper bound of the bucket in which it lies: it is not more than that. None: nothing was counted."""
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    return next(bound for bound, count in sorted(buckets.items()) if count >= share * total)


class Asker:
    """Asks the sidecar's event loop whether it is there, in a thread of its own: every few milliseconds,
    answered or not, so that a long wait is met by as many questions as by chunks."""

    def __init__(self, path: str) -> None:
        self.waited_ms: list[float] = []
        self._counting = self._over = False
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        # A table of size 0: no header is ever sent, so none is remembered.
        self._socket.sendall(frames.PREFACE + frames.build_settings({Setting.HEADER_TABLE_SIZE: 0}))
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._rest = b""

    def __enter__(self) -> "Asker":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over = True
        self._thread.join()
        self._socket.close()

    def count(self) -> None:
        """From here on."""
        self._counting = True

    def stop(self) -> None:
        """Up to here."""
        self._counting = False

    def _ask(self) -> None:
        due = time.monotonic()
        while not self._over:
            wait = due - time.monotonic()
            if wait > 0:
                if select.select([self._socket], [], [], wait)[0]:
                    self._read()
                continue
            self._socket.sendall(frames.build_ping(time.monotonic_ns().to_bytes(8, "big"), ack=False))
            due += _PING_S

    def _read(self) -> None:
        got = self._socket.recv(65_536)
        now = time.monotonic_ns()
        if not got:
            raise RuntimeError("the sidecar has closed the connection of its asker")
        data, at = self._rest + got, 0
        while len(data) - at >= 9:
            high, low, kind, flags, _ = frames.unpack_header(data, at)
            end = at + 9 + (high << 16 | low)
            if end > len(data):
                break
            payload, acknowledges = data[at + 9 : end], bool(flags & frames.ACK)
            if kind == FrameType.PING and acknowledges and self._counting:
                self.waited_ms.append((now - int.from_bytes(payload, "big")) / 1e6)
            elif kind == FrameType.PING and not acknowledges:
                self._socket.sendall(frames.build_ping(payload, ack=True))
            elif kind == FrameType.SETTINGS and not acknowledges:
                self._socket.sendall(frames.SETTINGS_ACK)
            at = end
        self._rest = data[at:]
