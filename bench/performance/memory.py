"""What an idle stream takes in the sidecar: one that has had its first chunk and is silent.

Of a sidecar of its own, warmed up by a short load: the anonymous memory of its process (`RssAnon`: the heap,
and nothing of files that are mapped) with few streams open and with many; the difference, divided by how many
more they are. So what a process takes once, and what the first streams make it take, is not counted, and what
an allocator loses between objects is.
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.performance.figures import Spoiled
from bench.performance.gateways import Gateway
from bench.performance.programs import LoadGenerator

FEW: Final = 200
MANY: Final = 2_000
_STEADY: Final = 4
"""So many looks in a row that find the same."""
_LOOKS: Final = 100
_LOOK_S: Final = 0.25
_SAME_KIB: Final = 64


@dataclass(frozen=True, slots=True)
class Held:
    """One sidecar; sizes in KiB."""

    few: int
    many: int
    sidecar_few_kib: int
    sidecar_many_kib: int
    envoy_few_kib: int
    envoy_many_kib: int

    @property
    def kib_a_stream(self) -> float:
        """In the sidecar."""
        return (self.sidecar_many_kib - self.sidecar_few_kib) / (self.many - self.few)

    @property
    def envoy_kib_a_stream(self) -> float:
        """In Envoy, both hops."""
        return (self.envoy_many_kib - self.envoy_few_kib) / (self.many - self.few)


def read_values(held: list[Held]) -> list[float]:
    """One figure for each sidecar."""
    for one in held:
        if one.many - one.few < FEW:
            raise Spoiled(f"only {one.many - one.few} streams are between the two sizes")
        if one.sidecar_many_kib <= one.sidecar_few_kib:
            raise Spoiled("more streams took no more memory: what they took was there from before")
    return [one.kib_a_stream for one in held]


async def measure_held(generator: LoadGenerator, gateway: Gateway, many: int = MANY) -> Held:
    """Hold streams in a gateway that has done nothing yet."""
    assert gateway.sidecar_pid is not None
    await generator.run(port=gateway.port, mode="lock", streams=64, seconds=1, on_start=_pass, on_stop=_pass)
    sizes: list[tuple[int, int]] = []
    for streams in (FEW, many):
        await generator.hold(gateway.port, streams)
        sizes.append((await _read_steady_kib(gateway.sidecar_pid), await _read_steady_kib(gateway.envoy_pid)))
        await generator.release()
    (few_kib, envoy_few_kib), (many_kib, envoy_many_kib) = sizes
    return Held(FEW, many, few_kib, many_kib, envoy_few_kib, envoy_many_kib)


def _pass() -> None:
    pass


async def _read_steady_kib(pid: int) -> int:
    """When it no longer changes: what was begun with a stream goes on for a moment behind its first chunk."""
    before, same = -1, 0
    for _ in range(_LOOKS):
        size = read_anonymous_kib(pid)
        same = same + 1 if abs(size - before) <= _SAME_KIB else 0
        before = size
        if same >= _STEADY:
            return size
        await asyncio.sleep(_LOOK_S)
    raise RuntimeError(f"the memory of {pid} does not come to rest")


def read_anonymous_kib(pid: int) -> int:
    """Memory of a process that is of no file."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1])
