"""What it costs to read an engine's metrics page, against prometheus_client's parser, side by side.

    python bench/parse_cost.py [--rounds 15] [--json FILE]

For each recorded page: CPU time of this project's parser, which looks for the families of one engine
by name, and of `prometheus_client.parser`, which builds every sample of the page, as reading those
families with it would need. Both run in turn, round by round, in one thread; figures are medians of
the thread's own CPU time. The last page is a real one behind 4 MiB of series that nobody wants.
Quote the ratios.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parent.parent))

from envoy_ext.adapters.engines import get_engine, parse_dcgm
from envoy_ext.adapters.scraper import MAX_PAGE_BYTES

DATA = Path(__file__).parent.parent / "tests" / "data"
PAGES = (
    ("vllm", "metrics/vllm_v0_0.6.txt"),
    ("vllm", "metrics/vllm_v1_0.24plus_single.txt"),
    ("vllm", "real/vllm_metrics_busy.raw"),
    ("sglang", "metrics/sglang_single_0.5.txt"),
    ("sglang", "metrics/sglang_cp_duplicated_ranks.txt"),
    ("llamacpp", "real/xllamacpp_metrics.raw"),
    ("tgi", "metrics/tgi_3.x.txt"),
    ("triton", "metrics/triton_trtllm_backend.txt"),
    ("dcgm", "metrics/dcgm_healthy_h100x2.txt"),
)
UNWANTED = b'vllm:junk_total{engine="0",model_name="random-%d",finished_reason="stop"} 1.0\n'
SLICE_S = 0.02
"""CPU time that one measurement takes at least: thread clocks tick in microseconds."""


@dataclass
class Cost:
    """One page, read both ways."""

    engine: str
    page: str
    kilobytes: float
    ours_us: float
    prometheus_client_us: float
    ratio: float


def main() -> None:
    """Measure and print."""
    options = read_options()
    costs = [
        measure(engine, name, page, read, options.rounds)
        for engine, name, page, read in [*load_pages(), build_large_page()]
    ]
    print(f"{'engine':<10}{'page':<40}{'KB':>8}{'ours':>12}{'prom_client':>14}{'ratio':>8}")
    for cost in costs:
        print(
            f"{cost.engine:<10}{cost.page:<40}{cost.kilobytes:>8.1f}{cost.ours_us:>9.0f} us"
            f"{cost.prometheus_client_us:>11.0f} us{cost.ratio:>7.0f}x"
        )
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    return parser.parse_args()


def load_pages() -> list[tuple[str, str, bytes, Callable[[bytes], object]]]:
    return [
        (engine, Path(path).stem, (DATA / path).read_bytes(), build_reader(engine)) for engine, path in PAGES
    ]


def build_large_page() -> tuple[str, str, bytes, Callable[[bytes], object]]:
    """As large as the scraper takes one, with the wanted families at its end."""
    page = (DATA / "real/vllm_metrics_busy.raw").read_bytes()
    lines = (MAX_PAGE_BYTES - len(page)) // len(UNWANTED % 10_000)
    padding = b"".join(UNWANTED % number for number in range(lines))
    return "vllm", "vllm_metrics_busy behind 4 MiB", (padding + page)[-MAX_PAGE_BYTES:], build_reader("vllm")


def build_reader(engine: str) -> Callable[[bytes], object]:
    if engine == "dcgm":
        return parse_dcgm
    parse = get_engine(engine).parse
    return lambda page: parse(page, 0.0)


def measure(engine: str, name: str, page: bytes, read: Callable[[bytes], object], rounds: int) -> Cost:
    def read_all(page: bytes) -> object:
        return list(text_string_to_metric_families(page.decode()))

    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(time_one(read, page))
        theirs.append(time_one(read_all, page))
    ours_us, theirs_us = statistics.median(ours) * 1e6, statistics.median(theirs) * 1e6
    return Cost(engine, name, len(page) / 1000, ours_us, theirs_us, theirs_us / ours_us)


def time_one(read: Callable[[bytes], object], page: bytes) -> float:
    """CPU seconds of one reading, averaged over as many as fill the slice."""
    repeats, started = 0, time.thread_time()
    while (spent := time.thread_time() - started) < SLICE_S:
        read(page)
        repeats += 1
    return spent / repeats


if __name__ == "__main__":
    main()
