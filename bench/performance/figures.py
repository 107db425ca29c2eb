"""From samples to figures. One value a round, so that only what was measured side by side is compared.

Evidence that does not show what its line says is refused (`Spoiled`), and its line has no figure then: chunks
that were merged where none may be, a load generator that was the one to wait for, nothing that was counted.
"""

from collections.abc import Callable
from typing import Final

from bench.performance import gateways
from bench.performance.loads import FIRST, LOCK_STEP, PACED, SHORT, Sample
from bench.performance.rounds import Round
from bench.performance.targets import ADDED, CHUNK_AIO, CHUNK_ECHO, FIRST_ADDED, RATE, REQUEST_AIO

MERGED_SHARE: Final = 0.001
GENERATOR_CORES: Final = 0.9
"""One thread that is busy for nine tenths of the time is what others wait for."""
FEWEST: Final = 30
"""Below so many chunks or answers a median is chance."""


class Spoiled(Exception):
    """The evidence does not show what it is there for; says why."""


def take(samples: Round, load: str, gateway: str) -> Sample:
    """A sample that can be believed."""
    sample = samples.get(load, {}).get(gateway)
    if sample is None:
        raise Spoiled(f"{load} was not measured on {gateway}")
    if sample.spoiled:
        raise Spoiled(f"{gateway}, {load}: {sample.spoiled}")
    if (sample.requests if load == SHORT else sample.chunks) < FEWEST:
        raise Spoiled(f"{gateway}, {load}: too little was answered")
    if sample.generator_cores > GENERATOR_CORES:
        raise Spoiled(f"{gateway}, {load}: the load generator was busy for {sample.generator_cores:.0%}")
    if load == LOCK_STEP and sample.merged > MERGED_SHARE * sample.chunks:
        raise Spoiled(f"{gateway}, {load}: {sample.merged} times chunks were merged")
    return sample


def compute_chunk_cpu(samples: Round, gateway: str) -> float:
    """Of the sidecar, in microseconds."""
    sample = take(samples, LOCK_STEP, gateway)
    if sample.sidecar_us <= 0:
        raise Spoiled(f"{gateway}, {LOCK_STEP}: no CPU time was counted")
    return sample.sidecar_us / sample.chunks


def compute_request_cpu(samples: Round, gateway: str) -> float:
    """Of the sidecar, in microseconds."""
    sample = take(samples, SHORT, gateway)
    if sample.sidecar_us <= 0:
        raise Spoiled(f"{gateway}, {SHORT}: no CPU time was counted")
    return sample.sidecar_us / sample.requests


def compute_rate(samples: Round, gateway: str) -> float:
    """Chunks per second."""
    sample = take(samples, LOCK_STEP, gateway)
    return sample.chunks / sample.seconds


def read_chunk_us(samples: Round, gateway: str) -> float:
    """The median time of a chunk on its way, in the paced load."""
    return _read_median(take(samples, PACED, gateway).chunk_us, f"{gateway}, {PACED}")


def read_first_ms(samples: Round, gateway: str) -> float:
    """From a request to its first chunk."""
    return _read_median(take(samples, FIRST, gateway).first_us, f"{gateway}, {FIRST}") / 1e3


def _read_median(quantiles: dict[str, float], what: str) -> float:
    if quantiles.get("n", 0) < FEWEST:
        raise Spoiled(f"{what}: too few times were taken")
    return quantiles["p50"]


Read = Callable[[Round], float]


FIGURES: Final[dict[str, Read]] = {
    CHUNK_AIO.key: lambda one: compute_chunk_cpu(one, gateways.NATIVE) / compute_chunk_cpu(one, gateways.AIO),
    CHUNK_ECHO.key: lambda one: (
        compute_chunk_cpu(one, gateways.NATIVE) / compute_chunk_cpu(one, gateways.ECHO)
    ),
    REQUEST_AIO.key: lambda one: (
        compute_request_cpu(one, gateways.NATIVE) / compute_request_cpu(one, gateways.AIO)
    ),
    RATE.key: lambda one: compute_rate(one, gateways.NATIVE) / compute_rate(one, gateways.TWO_HOPS),
    ADDED.key: lambda one: read_chunk_us(one, gateways.NATIVE) - read_chunk_us(one, gateways.TWO_HOPS),
    FIRST_ADDED.key: lambda one: read_first_ms(one, gateways.NATIVE) - read_first_ms(one, gateways.TWO_HOPS),
}
"""How each line's figure is read from one round, by the target's key."""

_CHUNK_CPU: Final = "the sidecar's CPU per chunk, native twice"
_REQUEST_CPU: Final = "the sidecar's CPU per short answer, native twice"
_HOPS_RATE: Final = "chunks/s, two hops twice"
_RATE: Final = "chunks/s, native twice"
_HOPS_CHUNK: Final = "a chunk's median time, two hops twice"
_CHUNK: Final = "a chunk's median time, native twice"
_HOPS_FIRST: Final = "the first token's median time, two hops twice"
_FIRST: Final = "the first token's median time, native twice"


def _twice(read: Callable[[Round, str], float], one: str, again: str) -> Read:
    return lambda samples: read(samples, again) / read(samples, one)


NOISE: Final[dict[str, Read]] = {
    _CHUNK_CPU: _twice(compute_chunk_cpu, gateways.NATIVE, gateways.NATIVE_AGAIN),
    _REQUEST_CPU: _twice(compute_request_cpu, gateways.NATIVE, gateways.NATIVE_AGAIN),
    _HOPS_RATE: _twice(compute_rate, gateways.TWO_HOPS, gateways.HOPS_AGAIN),
    _RATE: _twice(compute_rate, gateways.NATIVE, gateways.NATIVE_AGAIN),
    _HOPS_CHUNK: _twice(read_chunk_us, gateways.TWO_HOPS, gateways.HOPS_AGAIN),
    _CHUNK: _twice(read_chunk_us, gateways.NATIVE, gateways.NATIVE_AGAIN),
    _HOPS_FIRST: _twice(read_first_ms, gateways.TWO_HOPS, gateways.HOPS_AGAIN),
    _FIRST: _twice(read_first_ms, gateways.NATIVE, gateways.NATIVE_AGAIN),
}
"""What comes out where 1 should: the same set-up measured twice in one round."""

NOISE_OF: Final[dict[str, tuple[str, ...]]] = {
    CHUNK_AIO.key: (_CHUNK_CPU,),
    CHUNK_ECHO.key: (_CHUNK_CPU,),
    REQUEST_AIO.key: (_REQUEST_CPU,),
    RATE.key: (_HOPS_RATE, _RATE),
    ADDED.key: (_HOPS_CHUNK, _CHUNK),
    FIRST_ADDED.key: (_HOPS_FIRST, _FIRST),
}
"""Which of them a target's figure is made of."""
