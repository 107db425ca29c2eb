"""From samples to figures: medians over the rounds, their range, and ratios of one round's own values."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

FIRST: Final = "one stream"
PACED: Final = "paced"
BUSY: Final = "lock step"
SHORT: Final = "short answers"
LOADS: Final[dict[str, dict[str, object]]] = {
    FIRST: {"mode": "lock", "streams": 1, "chunks": 3, "warm": 0.3, "seconds": 1.5},
    PACED: {"mode": "paced", "streams": 8, "rate": 25, "warm": 1, "seconds": 2},
    BUSY: {"mode": "lock", "streams": 32, "warm": 1, "seconds": 2},
    SHORT: {"mode": "short", "streams": 16, "warm": 0.5, "seconds": 2},
}
GENERATOR_CORES: Final = 0.9
"""A load generator of one thread that is busier than this is what others wait for."""

Sample = dict[str, Any]
"""What one load on one gateway counted, with `all_us`, `sidecar_us` and `rss_mib`."""
Round = dict[str, dict[str, Sample]]
"""By gateway, then by load."""


@dataclass(frozen=True)
class Figure:
    """One number, with the range of its rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """A target against one peer; `ratio` is the product's figure by the peer's, round by round."""

    what: str
    ratio: Figure | None
    must: float
    aim: float

    @property
    def word(self) -> str:
        """What a reader is told."""
        if self.ratio is None:
            return "not measured"
        if self.ratio.median <= self.aim:
            return "aim reached"
        return "kept" if self.ratio.median <= self.must else "missed"


def summarise(values: list[float]) -> Figure | None:
    """Nothing of nothing."""
    return Figure(statistics.median(values), min(values), max(values)) if values else None


def read(rounds: list[Round], gateway: str, load: str, pick: Callable[[Sample], float]) -> list[float | None]:
    """One value a round; none where that round has no such sample, or nothing in it."""
    found: list[float | None] = []
    for one in rounds:
        sample = one.get(gateway, {}).get(load)
        counted = sample and (sample["requests"] if load == SHORT else sample["chunks"])
        found.append(pick(sample) if sample and counted else None)
    return found


def compare(
    left: list[float | None], right: list[float | None], how: Callable[[float, float], float]
) -> Figure | None:
    """Values of the same round only."""
    pairs = zip(left, right, strict=True)
    return summarise([how(a, b) for a, b in pairs if a is not None and b is not None])


def per_chunk_us(sample: Sample) -> float:
    """CPU of all processes of the gateway."""
    return float(sample["all_us"] / sample["chunks"])


def sidecar_per_chunk_us(sample: Sample) -> float:
    """CPU of the sidecar alone."""
    return float(sample["sidecar_us"] / sample["chunks"])


def per_request_us(sample: Sample) -> float:
    """CPU of all processes of the gateway."""
    return float(sample["all_us"] / sample["requests"])


def sidecar_per_request_us(sample: Sample) -> float:
    """CPU of the sidecar alone."""
    return float(sample["sidecar_us"] / sample["requests"])


def per_second(sample: Sample) -> float:
    """Answers per second."""
    return float(sample["requests"] / sample["seconds"])


def chunks_per_second(sample: Sample) -> float:
    """Chunks per second."""
    return float(sample["chunks"] / sample["seconds"])


def p50(name: str) -> Callable[[Sample], float]:
    """The median of one of the generator's distributions, in microseconds."""
    return lambda sample: float(sample[name]["p50"])


def rss(sample: Sample) -> float:
    """Resident memory, in MiB."""
    return float(sample["rss_mib"])


def judge(rounds: list[Round], product: str, peer: str, base: str) -> list[Verdict]:
    """The targets against one peer. Added is over `base`; where a peer adds nothing, there is no ratio."""
    verdicts = []
    for load in (BUSY, PACED):
        cpu = [read(rounds, one, load, per_chunk_us) for one in (product, peer)]
        verdicts.append(
            Verdict(f"CPU per chunk of all processes, {load}", compare(*cpu, lambda a, b: a / b), 0.2, 0.1)
        )
    times = [read(rounds, one, PACED, p50("chunk_us")) for one in (product, peer, base)]
    ratios = []
    for mine, theirs, none in zip(*times, strict=True):
        if mine is not None and theirs is not None and none is not None and theirs > none:
            ratios.append((mine - none) / (theirs - none))
    verdicts.append(Verdict(f"added p50 per chunk, {PACED}", summarise(ratios), 0.2, 0.1))
    return verdicts


def warn(rounds: list[Round]) -> list[str]:
    """Samples for which the load generator was what was measured."""
    return sorted(
        {
            f"{gateway}, {load}"
            for one in rounds
            for gateway, samples in one.items()
            for load, sample in samples.items()
            if sample["own_cpu"] > GENERATOR_CORES
        }
    )
