"""The gateways under measurement, all in front of one replica: what is in an Envoy's way differs.

two hops     client -> Envoy -> Unix socket -> Envoy -> replica, no sidecar
native       the product, on its own transport
grpc.aio     the product, the same servicers on gRPC's server
C++ echo     the product's bootstrap, with a C++ gRPC server in the sidecar's place that decides nothing

The first two are there a second time, `again`: what differs between two that are the same is noise. The
product keeps its journal in a SQLite file, as it does by default; `in memory` are those that do not.
"""

import time
from dataclasses import dataclass
from typing import Final

TWO_HOPS: Final = "two hops"
HOPS_AGAIN: Final = "two hops again"
NATIVE: Final = "native"
NATIVE_AGAIN: Final = "native again"
NATIVE_IN_MEMORY: Final = "native in memory"
AIO: Final = "grpc.aio"
AIO_IN_MEMORY: Final = "grpc.aio in memory"
ECHO: Final = "C++ echo"
ALL: Final = (
    TWO_HOPS,
    HOPS_AGAIN,
    NATIVE,
    NATIVE_AGAIN,
    AIO,
    ECHO,
    NATIVE_IN_MEMORY,
    AIO_IN_MEMORY,
)


@dataclass(frozen=True)
class Gateway:
    """One that runs."""

    name: str
    port: int
    """The ingress's."""
    envoy_pid: int
    sidecar_pid: int | None
    operations_port: int | None
    sidecar_socket: str | None = None

    def read_cpu_us(self) -> tuple[float, float]:
        """CPU of Envoy and of what stands beside it, in microseconds."""
        return read_cpu_us(self.envoy_pid), 0.0 if self.sidecar_pid is None else read_cpu_us(self.sidecar_pid)


def read_cpu_us(pid: int) -> float:
    """CPU time of a process, by its own clock, threads included."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e3
