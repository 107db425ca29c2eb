"""The figures of docs/simulation.md, drawn from the kept results alone; to be read in black and white too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.simulation.run import STEP_S
from bench.simulation.scenarios import BACK, FEW, FROM, MANY, TITLES, read_load
from bench.simulation.tables import Results, Run, find

FIGURES = Path(__file__).parents[2] / "docs" / "simulation"
STYLES: dict[str, dict[str, Any]] = {
    "bare": {"color": "0.55", "linestyle": ":", "marker": "s"},
    "limited": {"color": "0.35", "linestyle": "--", "marker": "^"},
    "rules": {"color": "black", "linestyle": "-", "marker": "o"},
    "rules+deadlines": {"color": "black", "linestyle": "-.", "marker": "D"},
}
"""Told apart by the dashes and the marks, not by a colour."""


def find_runs(results: Results, scenario: str, policy: str, replicas: int) -> dict[float, list[Run]]:
    """The runs of a scenario by load, one for each seed."""
    loads = {float(name.split("/")[2]) for name in results if name.startswith(f"{scenario}/{policy}/")}
    found = {load: find(results, scenario, policy, load, replicas) for load in sorted(loads)}
    return {load: runs for load, runs in found.items() if runs}


def draw_all(results: Results) -> None:
    """Every figure."""
    mpl.rcParams.update(
        {
            "font.size": 9,
            "svg.hashsalt": "envoy-ext",
            "axes.grid": True,
            "grid.color": "0.9",
            "font.family": "sans-serif",
        }
    )
    _draw_goodput(results)
    _draw_answered(results)
    _draw_course(results, "deaf-loss50", "half-lost.svg", "half of the replicas away", BACK)
    _draw_course(results, "outage", "outage.svg", "all replicas away", FROM + 30.0)


def _draw_goodput(results: Results) -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11.0, 3.7))
    titles = {"sweep": "engines that notice a closed connection", "deaf-sweep": "engines that do not"}
    for axes, (scenario, title) in zip((left, middle), titles.items(), strict=True):
        _draw_sweep(axes, results, scenario, lambda run: run["goodput"])
        axes.plot([0, 1, 3], [0, 1, 1], color="0.8", linewidth=1.0, zorder=0)
        axes.set_ylabel("answers in time / capacity")
        axes.set_title(title, fontsize=9)
        axes.set_ylim(0, 1.1)
    left.legend(loc="lower right", fontsize=6.5)
    _draw_sweep(right, results, "sweep", lambda run: run["first_s"]["p99"])
    right.set_ylabel("time to the first token, p99 (s)")
    right.set_title("of those that get one", fontsize=9)
    right.set_yscale("log")
    figure.tight_layout()
    _save(figure, "goodput.svg")


def _draw_answered(results: Results) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9.0, 3.9), sharey=True)
    kinds = {"chat": "chat: persons who reload", "app": "app: SDK, 60 s timeout", "batch": "batch: patient"}
    for one, (kind, title) in zip(axes, kinds.items(), strict=True):
        _draw_sweep(one, results, "sweep", lambda run, kind=kind: min(1.0, run["good_by_kind"][kind]))
        one.set_title(title, fontsize=9)
        one.set_ylim(0, 1.05)
    axes[0].set_ylabel("share of what is wanted\nthat is answered in time")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=7.5)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    _save(figure, "answered.svg")


def _draw_sweep(
    axes: Axes, results: Results, scenario: str, read: Callable[[dict[str, Any]], float | None]
) -> None:
    for policy, style in STYLES.items():
        runs = find_runs(results, scenario, policy, FEW)
        loads = [load for load in runs if all(read(run) is not None for run in runs[load])]
        values = [[read(run) or 0.0 for run in runs[load]] for load in loads]
        if loads:
            middle = [sum(one) / len(one) for one in values]
            below = [mean - min(one) for mean, one in zip(middle, values, strict=True)]
            above = [max(one) - mean for mean, one in zip(middle, values, strict=True)]
            axes.errorbar(
                loads, middle, yerr=[below, above], label=TITLES[policy], markersize=3.5, capsize=2, **style
            )
        many = find_runs(results, scenario, policy, MANY)
        points = [(load, read(run)) for load, found in many.items() for run in found]
        axes.plot(
            [load for load, value in points if value is not None],
            [value for _, value in points if value is not None],
            linestyle="none",
            marker=style["marker"],
            color=style["color"],
            markersize=9,
            fillstyle="none",
        )
    axes.set_xlabel("offered load / capacity")
    axes.set_xlim(0, 3.1)


def _draw_course(results: Results, scenario: str, name: str, what: str, back: float) -> None:
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.5, 4.6), sharex=True)
    for axes, series in ((top, "good"), (bottom, "sent")):
        for policy in ("bare", "limited", "rules"):
            runs = [run for found in find_runs(results, scenario, policy, FEW).values() for run in found]
            if not runs:
                continue
            courses = [run["course"][series] for run in runs]
            times = [STEP_S * (number + 0.5) for number in range(len(courses[0]))]
            style = {key: value for key, value in STYLES[policy].items() if key != "marker"}
            middle = [sum(one) / len(one) for one in zip(*courses, strict=True)]
            axes.fill_between(
                times,
                [min(one) for one in zip(*courses, strict=True)],
                [max(one) for one in zip(*courses, strict=True)],
                color="0.85",
                linewidth=0,
            )
            axes.plot(times, middle, label=TITLES[policy], linewidth=1.4, **style)
        axes.axvspan(FROM, back, facecolor="none", edgecolor="0.6", hatch="//", linewidth=0.0, alpha=0.6)
        axes.set_xlim(40, None)
        axes.set_ylim(0, None)
    top.set_title(f"load {read_load(scenario):g}; hatched: {what}; grey: the range of the seeds", fontsize=9)
    top.set_ylabel("answers in time\n/ capacity of all")
    bottom.set_ylabel("requests sent\n/ capacity of all")
    bottom.set_xlabel("time (s)")
    bottom.legend(loc="upper right", fontsize=7.5)
    figure.tight_layout()
    _save(figure, name)


def _save(figure: Any, name: str) -> None:
    figure.savefig(FIGURES / name, metadata={"Date": None})
    plt.close(figure)
