"""One load on one gateway: what clients saw, and the CPU time of everybody, from the same moments."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.performance.gateways import Gateway, read_cpu_us
from bench.performance.programs import LoadGenerator

LOCK_STEP: Final = "lock step"
PACED: Final = "paced"
FIRST: Final = "first token"
FIRST_BUSY: Final = "first token, no pause"
SHORT: Final = "short answers"

SHAPES: Final[dict[str, dict[str, Any]]] = {
    LOCK_STEP: {"mode": "lock", "streams": 64},
    PACED: {"mode": "paced", "streams": 40, "rate": 50},
    # A second chunk, so that the first is not the last; the pause is for what is done behind an end.
    FIRST: {"mode": "lock", "streams": 1, "chunks": 3, "pause": 0.01},
    FIRST_BUSY: {"mode": "lock", "streams": 1, "chunks": 3},
    SHORT: {"mode": "short", "streams": 32},
}

_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one load gave. Times in microseconds, as quantiles by name (`p50`, `p90`, `p99`, `max`, `n`)."""

    seconds: float
    chunks: int
    requests: int
    merged: int
    """How often a client read more than one chunk at once: something on the way had put them together."""
    generator_cores: float
    """CPU that replica and clients took, in cores: near 1 they are what is measured."""
    other_cores: float
    """What processes took that are no part of this benchmark."""
    stolen_cores: float
    """What this machine's own host took away."""
    waiting_cores: float
    """Cores that had nothing to do but wait for a disk."""
    envoy_us: float
    sidecar_us: float
    chunk_us: dict[str, float] = field(default_factory=dict)
    first_us: dict[str, float] = field(default_factory=dict)
    request_us: dict[str, float] = field(default_factory=dict)
    spoiled: str = ""
    """What a client read that it should not have."""


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    busy_s: float
    stolen_s: float
    waiting_s: float
    ours_s: float
    envoy_us: float
    sidecar_us: float


class Machine:
    """Whose CPU time is whose."""

    def __init__(self, generator: LoadGenerator, gateways: list[Gateway]) -> None:
        self._generator = generator
        self._gateways = gateways
        """All that run: also those that have nothing to do now are no others."""

    def look(self, gateway: Gateway) -> _Moment:
        """At one moment."""
        fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _, waiting, irq, softirq, steal = fields
        pids = {self._generator.pid}
        for one in self._gateways:
            pids.add(one.envoy_pid)
            if one.sidecar_pid is not None:
                pids.add(one.sidecar_pid)
        ours_us = sum(read_cpu_us(pid) for pid in pids)
        envoy_us, sidecar_us = gateway.read_cpu_us()
        return _Moment(
            at=time.monotonic(),
            busy_s=(user + nice + system + irq + softirq) / _TICKS_A_S,
            stolen_s=steal / _TICKS_A_S,
            waiting_s=waiting / _TICKS_A_S,
            ours_s=ours_us / 1e6 + time.process_time(),
            envoy_us=envoy_us,
            sidecar_us=sidecar_us,
        )

    async def measure(
        self,
        gateway: Gateway,
        also_start: Callable[[], object] = lambda: None,
        also_stop: Callable[[], object] = lambda: None,
        **load: Any,
    ) -> Sample:
        """Put a load on it; the callbacks are called at both ends of what is counted. Where an event
        is missing, changed or out of order the sample says so."""
        moments: list[_Moment] = []

        def start() -> None:
            also_start()
            moments.append(self.look(gateway))

        def stop() -> None:
            moments.append(self.look(gateway))
            also_stop()

        counted = await self._generator.run(port=gateway.port, on_start=start, on_stop=stop, **load)
        return read_sample(counted, *moments)


def read_sample(counted: dict[str, Any], start: _Moment, stop: _Moment) -> Sample:
    """What was counted between two moments."""
    took = stop.at - start.at
    busy = stop.busy_s - start.busy_s - (stop.ours_s - start.ours_s)
    return Sample(
        seconds=counted["seconds"],
        chunks=counted["chunks"],
        requests=counted["requests"],
        merged=counted["merged"],
        generator_cores=counted["own_cpu"],
        other_cores=max(0.0, busy / took),
        stolen_cores=(stop.stolen_s - start.stolen_s) / took,
        waiting_cores=(stop.waiting_s - start.waiting_s) / took,
        envoy_us=stop.envoy_us - start.envoy_us,
        sidecar_us=stop.sidecar_us - start.sidecar_us,
        **{name: counted.get(name, {}) for name in ("chunk_us", "first_us", "request_us")},
        spoiled=counted["spoiled"],
    )
