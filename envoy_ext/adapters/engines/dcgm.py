"""NVIDIA's DCGM exporter: the health of the GPUs beside an engine.

Names: dcgm-exporter, etc/default-counters.csv. ECC is not in its default list and row remapping is;
what a list leaves out is unknown.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from envoy_ext.adapters.engines.exposition import Series
from envoy_ext.adapters.engines.figures import read_families
from envoy_ext.domain.sample import GpuSample

TEMPERATURE: Final = b"DCGM_FI_DEV_GPU_TEMP"
MEMORY_TEMPERATURE: Final = b"DCGM_FI_DEV_MEMORY_TEMP"
XID: Final = b"DCGM_FI_DEV_XID_ERRORS"
"""A gauge with the code of the last error, 0 when there was none since the exporter watches."""
DOUBLE_BIT: Final = b"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
REMAP_FAILURE: Final = b"DCGM_FI_DEV_ROW_REMAP_FAILURE"
REMAP_PENDING: Final = b"DCGM_FI_DEV_ROW_REMAP_PENDING"

FAMILIES: Final = frozenset({TEMPERATURE, MEMORY_TEMPERATURE, XID, DOUBLE_BIT, REMAP_FAILURE, REMAP_PENDING})

SMALLEST_BLANK: Final = 2_147_483_632.0
"""DCGM writes "no value", "not supported" and the like as numbers: from 2147483632 (32 bit), from
140737488355328 (floating point) and from 9223372036854775792 (64 bit; as a float 2**63, so compared by size).
The exporter of gpu-monitoring-tools
passed them on (#97 there), today's leaves the line out. No temperature, error code or count of double-bit
errors comes near the smallest of them."""


def parse_dcgm(page: bytes, gpus: Collection[int] = ()) -> tuple[GpuSample, ...]:
    """The GPUs that the exporter tells of, those in `gpus` (indices on the node) when it names any.

    A GPU the page does not hold is not in the result. Raises `NotMetrics`.
    """
    found = read_families(page, FAMILIES)
    wanted = {str(gpu) for gpu in gpus}
    shown = {series.labels["gpu"] for family in found.values() for series in family if "gpu" in series.labels}
    worst = {name: _read_worst(family) for name, family in found.items()}
    return tuple(_read_gpu(worst, gpu) for gpu in sorted(shown & wanted if wanted else shown, key=_natural))


def _read_worst(family: Sequence[Series]) -> dict[str, float]:
    """The largest value of each GPU, which has several series: one for each MIG slice and each pod on it."""
    worst: dict[str, float] = {}
    for series in family:
        gpu = series.labels.get("gpu")
        if gpu is not None and math.isfinite(series.value) and 0 <= series.value < SMALLEST_BLANK:
            worst[gpu] = max(series.value, worst.get(gpu, 0.0))
    return worst


def _read_gpu(worst: Mapping[bytes, Mapping[str, float]], gpu: str) -> GpuSample:
    values = {name: family[gpu] for name, family in worst.items() if gpu in family}
    xid, failed, pending = values.get(XID), values.get(REMAP_FAILURE), values.get(REMAP_PENDING)
    return GpuSample(
        gpu=gpu,
        temperature_c=values.get(TEMPERATURE),
        memory_temperature_c=values.get(MEMORY_TEMPERATURE),
        xid=None if xid is None else int(xid),
        ecc_double_bit=values.get(DOUBLE_BIT),
        row_remap_failure=None if failed is None else failed != 0,
        row_remap_pending=None if pending is None else pending != 0,
    )


def _natural(gpu: str) -> tuple[int, str]:
    return (len(gpu), gpu)
