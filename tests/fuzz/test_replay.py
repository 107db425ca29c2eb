"""The fuzz targets without a fuzzer: seeds, former findings, and a few mutations of each seed."""

import random
from pathlib import Path

import pytest

from tests.fuzz.run import TARGETS, find_target

FINDINGS = Path(__file__).parent / "findings"
KEPT = sorted(path.relative_to(FINDINGS).as_posix() for path in FINDINGS.glob("*/*"))


def scramble(data: bytes, most: int, rnd: random.Random) -> bytes:
    """Bytes changed, left out, put in."""
    changed = bytearray(data)
    for _ in range(rnd.randint(1, 3)):
        at = rnd.randrange(len(changed) + 1)
        match rnd.randrange(3):
            case 0 if at < len(changed):
                changed[at] = rnd.randrange(256)
            case 1:
                del changed[at : at + rnd.randint(1, 8)]
            case _:
                changed[at:at] = rnd.randbytes(rnd.randint(1, 8))
    return bytes(changed[:most])


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_what_is_near_them(name: str) -> None:
    target, rnd = find_target(name), random.Random(name)
    for seed in target.seeds():
        target.check(seed)
        for _ in range(3):
            seed = target.mutate(seed, target.LONGEST, rnd, lambda data, most: scramble(data, most, rnd))
            assert len(seed) <= target.LONGEST
            target.check(seed)


@pytest.mark.parametrize("kept", KEPT)
def test_what_was_found_once(kept: str) -> None:
    find_target(kept.partition("/")[0]).check((FINDINGS / kept).read_bytes())
