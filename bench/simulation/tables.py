"""The tables of docs/simulation.md, written from the kept results; a test compares the two."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.simulation.scenarios import FEW, LOADS, MANY, POLICIES, TROUBLES, read_load

Results = dict[str, dict[str, Any]]
Run = dict[str, Any]
PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
KEPT = PAGE.parent / "simulation" / "against_envoy.json"
SHORT = {
    "bare": "Envoy",
    "limited": "Envoy, limited",
    "rules": "rules",
    "rules+deadlines": "rules, deadlines told",
}
WHAT = {
    "loss10": "a tenth of the replicas away",
    "loss30": "three tenths away",
    "loss50": "half of them away",
    "deaf-loss50": "half of them away, engines do not notice",
    "outage": "all away for 30 s",
    "slow": "a tenth four times slower",
    "greedy": "one caller asks for as much as all can do",
    "blind": "no page for a minute",
}
LAST = 12
"""Bins of five seconds: the last minute of a run."""


def find(results: Results, scenario: str, policy: str, load: float, replicas: int) -> list[Run]:
    """The runs of a case, one for each seed that all the compared policies have: like beside like."""
    seeds = [
        {
            name.rsplit("/", 1)[1]
            for name in results
            if name.startswith(f"{scenario}/{one}/{load:g}/{replicas}/")
        }
        for one in {*POLICIES, policy}
    ]
    common = sorted(set.intersection(*seeds))
    return [results[f"{scenario}/{policy}/{load:g}/{replicas}/{seed}"] for seed in common]


def show(runs: Iterable[Run], read: Callable[[Run], float | None], digits: int = 2) -> str:
    """The mean of the seeds and their range; one figure where that rounds to the same."""
    values = [value for run in runs if (value := read(run)) is not None]
    if not values:
        return "–"
    low, mean, high = (f"{one:.{digits}f}" for one in (min(values), sum(values) / len(values), max(values)))
    return mean if low == high else f"{mean} ({low}–{high})"


def write_sweep(results: Results, scenario: str, replicas: int) -> str:
    """Rows by load and policy."""
    head = "| load | | goodput | chat | app | batch | sent for each | wasted | first token p50, p99 (s) |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for load in LOADS:
        for policy in SHORT:
            runs = find(results, scenario, policy, load, replicas)
            if not runs:
                continue
            kinds = [
                show(runs, lambda run, kind=kind: run["good_by_kind"][kind])
                for kind in ("chat", "app", "batch")
            ]
            first = ", ".join(show(runs, lambda run, at=at: run["first_s"][at], 1) for at in ("p50", "p99"))
            cells = [
                f"{load:g}",
                SHORT[policy],
                show(runs, lambda run: run["goodput"]),
                *kinds,
                show(runs, lambda run: run["sent_per_intent"], 1),
                show(runs, lambda run: run["wasted_work"]),
                first,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_troubles(results: Results) -> str:
    """Rows by trouble and policy."""
    lines = [
        "| trouble, load | | answered of what was wanted | goodput of the last minute | sent for each"
        " | wasted | first token p99 (s) |",
        "|---|---|---|---|---|---|---|",
    ]
    for scenario in TROUBLES:
        for policy in POLICIES:
            runs = find(results, scenario, policy, read_load(scenario), FEW)
            if not runs:
                continue
            cells = [
                f"{WHAT[scenario]}, {read_load(scenario):g}" if policy == POLICIES[0] else "",
                SHORT[policy],
                show(runs, lambda run: run["goodput"] / run["offered"]),
                show(runs, _read_last),
                show(runs, lambda run: run["sent_per_intent"], 1),
                show(runs, lambda run: run["wasted_work"]),
                show(runs, lambda run: run["first_s"]["p99"], 1),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _read_last(run: Run) -> float:
    """Goodput of the last minute, in parts of the capacity."""
    last: list[float] = run["course"]["good"][-LAST:]
    return sum(last) / len(last)


def write_greedy(results: Results) -> str:
    """What the others get, and what the greedy one does."""
    lines = ["| | answered of the others' | answered of its own |", "|---|---|---|"]
    for policy in POLICIES:
        runs = find(results, "greedy", policy, read_load("greedy"), FEW)
        if runs:
            others = show(runs, lambda run: run["greedy"]["others_answered"])
            own = show(runs, lambda run: run["greedy"]["greedy_answered"])
            lines.append(f"| {SHORT[policy]} | {others} | {own} |")
    return "\n".join(lines)


def write_envoy() -> str:
    """The simulation beside a real Envoy."""
    lines = [
        "| load | sent | answered: real, simulated | ratio | median time (s): real, simulated | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for load, both in json.loads(KEPT.read_text()).items():
        real, simulated = both["real"], both["simulated"]
        cells = [load, str(both["sent"])]
        for what in ("answered", "median_s"):
            cells += [f"{real[what]}, {simulated[what]}", f"{simulated[what] / real[what]:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_tables(results: Results) -> dict[str, str]:
    """All of them, by the names of their places in the page."""
    return {
        "sweep": write_sweep(results, "sweep", FEW),
        "many": write_sweep(results, "sweep", MANY),
        "deaf": write_sweep(results, "deaf-sweep", FEW),
        "troubles": write_troubles(results),
        "greedy": write_greedy(results),
        "envoy": write_envoy(),
    }


def fill(page: str, results: Results) -> str:
    """The page with its tables as the results have them."""
    for name, table in write_tables(results).items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- / -->)", re.S)
        page, found = place.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)
        if found != 1:
            raise ValueError(f"the page has {found} places for the table {name}")
    return page
