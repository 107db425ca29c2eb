"""What is promised of the hot path: for each line the figure to be reached, and the one that is aimed at."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table."""

    key: str
    text: str
    against: str
    unit: str
    """`x` is a ratio."""
    must: float
    aim: float
    at_least: bool = False
    """Whether more is better."""
    digits: int = 2

    def reaches(self, value: float, bound: float) -> bool:
        """Whether a value is as good as a bound."""
        return value >= bound if self.at_least else value <= bound

    def show_bound(self, value: float) -> str:
        """A bound with its unit."""
        return f"{value:g}" + (f" {self.unit}" if self.unit != "x" else "")

    def show(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.{self.digits}f}" + (f" {self.unit}" if self.unit != "x" else "")


CHUNK_AIO: Final = Target(
    "chunk_cpu_aio",
    "the sidecar's CPU per chunk, saturated: 64 streams in lock step",
    "the same servicers on `grpc.aio`",
    "x",
    0.2,
    0.1,
)
CHUNK_ECHO: Final = Target(
    "chunk_cpu_echo",
    "the same, with all that the product does in it",
    "a C++ gRPC server that echoes",
    "x",
    0.7,
    0.4,
)
REQUEST_AIO: Final = Target(
    "request_cpu_aio",
    "the sidecar's CPU per short answer: both filters and the logs",
    "the same servicers on `grpc.aio`",
    "x",
    0.15,
    0.1,
)
RATE: Final = Target(
    "chunk_rate",
    "chunks per second, saturated: 64 streams in lock step",
    "two hops of plain Envoy",
    "x",
    0.55,
    0.65,
    at_least=True,
)
ADDED: Final = Target(
    "chunk_added",
    "added to a chunk's median time, 40 streams at 50 chunks/s",
    "two hops of plain Envoy",
    "us",
    250,
    150,
    digits=0,
)
FIRST_ADDED: Final = Target(
    "first_added", "added to the first token's median time, one stream", "two hops of plain Envoy", "ms", 2, 1
)
IDLE: Final = Target(
    "idle_memory", "the sidecar's memory per idle stream", "fewer such streams", "KiB", 16, 8, digits=1
)
MANY: Final = Target(
    "many_p99",
    "p99 of a chunk's time in the sidecar, 1,000 streams at 50 chunks/s or the most this machine carries",
    "–",
    "ms",
    5,
    2,
)
TARGETS: Final = (CHUNK_AIO, CHUNK_ECHO, REQUEST_AIO, RATE, ADDED, FIRST_ADDED, IDLE, MANY)
