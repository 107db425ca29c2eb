"""`python -m bench.simulation`: run every case without a result, keep it, write tables and figures.

--only sweep,loss30   these scenarios
--replicas 100        fleets of this size
--seeds 1,2           these seeds
--again               also what has a result
--plot                nothing but tables and figures
"""

import argparse
import fcntl
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bench.simulation.run import Simulation
from bench.simulation.scenarios import Case, list_cases
from bench.simulation.tables import PAGE, fill

RESULTS = Path(__file__).parents[2] / "docs" / "simulation" / "results.json"
KEPT_COURSES = ("good", "sent")


def run_case(case: Case) -> dict[str, Any]:
    """One run, as its result is kept."""
    begun = time.perf_counter()
    report = Simulation(case.build()).run().report()
    course = report.pop("course")
    if not case.scenario.endswith("sweep"):
        report["course"] = {what: [round(one, 3) for one in course[what]] for what in KEPT_COURSES}
    print(f"{case.name}: goodput {report['goodput']:.3f}, {time.perf_counter() - begun:.0f} s", flush=True)
    return report


def read_results() -> dict[str, dict[str, Any]]:
    """What was kept, by the names of the cases."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep_result(name: str, report: dict[str, Any]) -> None:
    """Put it among the others: one line a run, in their order. Two such programs may run side by side."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with (RESULTS.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _write(read_results() | {name: report})


def _write(results: dict[str, dict[str, Any]]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results)]
    written = RESULTS.with_suffix(".new")
    written.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    written.replace(RESULTS)


def main() -> None:
    """Read the command, and do it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--seeds", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    results = read_results()
    cases = [] if asked.plot else list_cases()
    if asked.only:
        cases = [case for case in cases if case.scenario in asked.only.split(",")]
    if asked.replicas:
        cases = [case for case in cases if case.replicas == asked.replicas]
    if asked.seeds:
        cases = [case for case in cases if str(case.seed) in asked.seeds.split(",")]
    if not asked.again:
        cases = [case for case in cases if case.name not in results]
    with ProcessPoolExecutor(asked.processes) as pool:
        running = {pool.submit(run_case, case): case for case in cases}
        for done in as_completed(running):
            keep_result(running[done].name, done.result())
    from bench.simulation.plots import draw_all  # matplotlib is not needed to run

    draw_all(read_results())
    PAGE.write_text(fill(PAGE.read_text(), read_results()))


if __name__ == "__main__":
    main()
