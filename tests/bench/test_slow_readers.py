"""The judge of slow readers: memory that rises above its allowance, and streams that do not go on."""

import pytest

from bench.slow_readers import ENVOY_MAY_RISE, MIB, SIDECAR_MAY_RISE, Watched


@pytest.mark.parametrize(
    ("sidecar", "envoy", "found"),
    [
        ([90 * MIB, 91 * MIB], [30 * MIB, 30 * MIB], []),
        ([90 * MIB, 90 * MIB + SIDECAR_MAY_RISE], [30 * MIB, 30 * MIB + ENVOY_MAY_RISE], []),
        ([90 * MIB, 80 * MIB], [30 * MIB, 20 * MIB], []),
        ([90 * MIB, 95 * MIB], [30 * MIB], ["slow: the sidecar grew by 5.0 MiB"]),
        ([90 * MIB, 95 * MIB, 90 * MIB], [30 * MIB], ["slow: the sidecar grew by 5.0 MiB"]),
        ([90 * MIB], [30 * MIB, 39 * MIB], ["slow: Envoy grew by 9.0 MiB"]),
    ],
)
def test_a_rise_above_the_allowance_is_told_even_when_it_has_gone(
    sidecar: list[int], envoy: list[int], found: list[str]
) -> None:
    assert Watched("slow", sidecar, envoy).judge() == found


def test_a_complaint_stands_beside_flat_memory() -> None:
    watched = Watched("stopped", [MIB], [MIB], ["stopped: 1 of 12 streams did not go on"])
    assert watched.judge() == ["stopped: 1 of 12 streams did not go on"]
