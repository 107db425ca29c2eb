"""From series to the figures of a sample; a figure that is not known is None and never 0.

One rule for what a page cannot mean: a NaN, an infinity or a negative number among the series of a
figure makes the figure unknown. Left out of a sum it would read as "idle", and NaN is below no
threshold. llama.cpp printed `-nan` before its first request (ggml-org/llama.cpp#11868).

Lines with the same labels are one series, and the last one stands: the text format forbids to
repeat them, and counting a repeated gauge twice would invent load.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from envoy_ext.adapters.engines.exposition import Series, scan

PROCESS_START: Final = b"process_start_time_seconds"
"""Of the process that serves the page, in Unix seconds. Python's client exports it on Linux, but not in
multiprocess mode (prometheus/client_python, process_collector.py); llama.cpp, TGI and Triton never do."""

Families: TypeAlias = Mapping[bytes, Sequence[Series]]


def read_families(page: bytes, wanted: frozenset[bytes]) -> Families:
    """The wanted families that have samples, each series once. Raises `NotMetrics`."""
    found: dict[bytes, list[Series]] = {}
    for series in scan(page, wanted):
        found.setdefault(series.name, []).append(series)
    return {name: family if len(family) == 1 else _keep_last(family) for name, family in found.items()}


def _keep_last(family: Sequence[Series]) -> Sequence[Series]:
    return tuple({frozenset(series.labels.items()): series for series in family}.values())


def select(family: Iterable[Series], label: str, value: str) -> Sequence[Series]:
    """The series whose label has the value; a missing label is the empty value, as Prometheus has it."""
    return [series for series in family if series.labels.get(label, "") == value]


def compute_sum(family: Sequence[Series]) -> float | None:
    """The sum over all series."""
    return _known(sum(values)) if (values := _values(family)) else None


def compute_peak(family: Sequence[Series]) -> float | None:
    """The largest of all series."""
    return max(values) if (values := _values(family)) else None


def compute_sum_of_peaks(family: Sequence[Series], *labels: str) -> float | None:
    """The sum over the values of `labels`, of the largest series with each value.

    For a family in which some labels name parts that add up, and the others name observers of the
    same thing.
    """
    if not (values := _values(family)):
        return None
    peaks: dict[tuple[str, ...], float] = {}
    for series, value in zip(family, values, strict=True):
        part = tuple(series.labels.get(label, "") for label in labels)
        peaks[part] = max(value, peaks.get(part, 0.0))
    return _known(sum(peaks.values()))


def compute_share(part: float | None, whole: float | None = 1.0) -> float | None:
    """`part` of `whole`, 0 to 1; what is over the whole counts as full."""
    if part is None or whole is None or whole <= 0:
        return None
    return min(1.0, part / whole)


def compute_progress(counters: Iterable[float | None]) -> float | None:
    """The sum of the counters that are known: it moves when any of them does, and falls with none."""
    known = [value for value in counters if value is not None]
    return sum(known) if known else None


def first_known(*values: float | None) -> float | None:
    """The first that is not None: for names that replaced each other and mean the same."""
    return next((value for value in values if value is not None), None)


def _values(family: Sequence[Series]) -> list[float]:
    """Every value, or nothing when one of them cannot be meant."""
    values = []
    for series in family:
        if not 0 <= series.value < math.inf:  # NaN compares with nothing
            return []
        values.append(series.value)
    return values


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
