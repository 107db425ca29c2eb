"""The figures that are ratios: every load on every gateway it is about, in turn, round by round."""

from collections.abc import Callable
from typing import Final

from bench.performance import gateways
from bench.performance.gateways import Gateway
from bench.performance.loads import FIRST, FIRST_BUSY, LOCK_STEP, PACED, SHAPES, SHORT, Machine, Sample

PLAN: Final[dict[str, tuple[str, ...]]] = {
    LOCK_STEP: (
        gateways.TWO_HOPS,
        gateways.HOPS_AGAIN,
        gateways.NATIVE,
        gateways.NATIVE_AGAIN,
        gateways.AIO,
        gateways.ECHO,
    ),
    PACED: (
        gateways.TWO_HOPS,
        gateways.HOPS_AGAIN,
        gateways.NATIVE,
        gateways.NATIVE_AGAIN,
        gateways.AIO,
        gateways.ECHO,
    ),
    FIRST: (
        gateways.TWO_HOPS,
        gateways.HOPS_AGAIN,
        gateways.NATIVE,
        gateways.NATIVE_AGAIN,
        gateways.AIO,
        gateways.NATIVE_IN_MEMORY,
    ),
    FIRST_BUSY: (gateways.TWO_HOPS, gateways.NATIVE),
    SHORT: (
        gateways.TWO_HOPS,
        gateways.NATIVE,
        gateways.NATIVE_AGAIN,
        gateways.AIO,
        gateways.NATIVE_IN_MEMORY,
        gateways.AIO_IN_MEMORY,
    ),
}
"""Which gateways a load is put on."""

Round = dict[str, dict[str, Sample]]
"""By load and gateway."""


async def measure_round(
    machine: Machine,
    running: dict[str, Gateway],
    number: int,
    *,
    seconds: float,
    warm_s: float,
    say: Callable[[str], None],
) -> Round:
    """Each second round goes the other way around, so that what drifts hits both sides alike."""
    made: Round = {}
    for load, names in PLAN.items():
        taken = made[load] = {}
        for name in names if number % 2 else names[::-1]:
            if name in running:
                taken[name] = await machine.measure(
                    running[name], seconds=seconds, warm=warm_s, **SHAPES[load]
                )
        say(f"round {number}: {load}: {', '.join(f'{name} {show(one)}' for name, one in taken.items())}")
    return made


def show(sample: Sample) -> str:
    """A sample in a word, for whoever waits."""
    if sample.chunks and not sample.requests:
        return f"{sample.chunks / sample.seconds:.0f}/s at {sample.sidecar_us / sample.chunks:.1f} us"
    return f"{sample.requests / sample.seconds:.0f}/s at {sample.sidecar_us / max(1, sample.requests):.0f} us"
