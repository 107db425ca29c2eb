"""The sidecar as it is always started, in a process that tells on request what is in it.

    python -m bench.inside FILE [--trace] serve -c config.yaml

At SIGUSR1 it collects garbage and writes to FILE, as JSON: how many objects of which types there are beyond
those of its start, how many blocks are allocated, the tasks, and with `--trace` which files have allocated
what. The product knows nothing of all this.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType

from bench.inside.report import PER_TYPE, Report
from envoy_ext.cli import cli


def build_report() -> Report:
    """What there is at this moment. Objects of before the start are frozen, and not listed."""
    gc.collect()
    types = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    files: dict[str, int] = {}
    if tracemalloc.is_tracing():
        for one in tracemalloc.take_snapshot().statistics("lineno"):
            place = one.traceback[0]
            files[f"{place.filename}:{place.lineno}"] = one.size
    try:
        tasks = len(asyncio.all_tasks())
    except RuntimeError:  # between two turns of the loop
        tasks = 0
    return Report(
        blocks=sys.getallocatedblocks(),
        objects=types.total(),
        tasks=tasks,
        types=dict(types.most_common(PER_TYPE)),
        places=files,
    )


def main() -> None:
    """Run the command line with the handler in place."""
    path, *rest = sys.argv[1:]
    if rest[0] == "--trace":
        rest = rest[1:]
        tracemalloc.start()

    def tell(_number: int, _frame: FrameType | None) -> None:
        half = Path(f"{path}.half")
        half.write_text(json.dumps(build_report().__dict__))
        os.replace(half, path)

    signal.signal(signal.SIGUSR1, tell)
    cli(rest)


if __name__ == "__main__":
    main()
