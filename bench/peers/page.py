"""The table on standard output, and docs/performance-peers.md, both from one run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.peers import figures
from bench.peers.figures import BUSY, FIRST, LOADS, PACED, SHORT, Figure, Round, Sample
from bench.peers.install import LITELLM, SMG

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "performance-peers.md"
DIRECT: Final = "direct"
TWO_HOPS: Final = "two hops"
PRODUCT: Final = "envoy-ext"
PEERS: Final = (LITELLM, SMG)


@dataclass
class Run:
    """What one run of the benchmark gave."""

    rounds: list[Round]
    idle_mib: dict[str, float]
    missing: dict[str, str]
    """Peers that did not start, and why."""
    machine: dict[str, Any]


HEAD: Final = Path(__file__).parent / "page.md"
"""What the page says before its figures; LOADS stands for the loads."""


def write_tables(run: Run) -> str:
    """All figures of a run, in Markdown."""
    machine = run.machine
    parts = [
        f"{machine['date']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}, "
        f"Envoy {machine['envoy']}, LiteLLM proxy {machine[LITELLM]}, smg {machine[SMG]}; "
        f"{len(run.rounds)} rounds.",
        f"The machine's load average was {machine['load'][0]} before and {machine['load'][1]} at the end, on "
        f"{machine['cores']} cores. " + _say_noise(machine),
        "Medians of the rounds, and their range. What is added is over another gateway's in the same round.",
        _write_costs(run),
        _write_times(run),
        _write_memory(run),
        _write_verdicts(run),
    ]
    parts += [f"**{name} was not measured**: {why}" for name, why in run.missing.items()]
    if warned := figures.warn(run.rounds):
        parts.append("The load generator was busy, and may be what is measured: " + "; ".join(warned) + ".")
    return "\n\n".join(parts)


def write_page(run: Run) -> str:
    """The whole document."""
    loads = [
        f"- **{name}**: " + ", ".join(f"{key} {value}" for key, value in options.items())
        for name, options in LOADS.items()
    ]
    head = HEAD.read_text().replace("LOADS", "\n".join(loads))
    return f"{head}\n{write_tables(run)}\n"


def _say_noise(machine: dict[str, Any]) -> str:
    if max(machine["load"]) > machine["cores"] + 1:
        return (
            "Others were at work on it: times, and what was done in a second, are not to be quoted; "
            "ratios of CPU time hold better."
        )
    return "It had little else to do."


def _names(run: Run) -> list[str]:
    return list(run.rounds[0]) if run.rounds else []


def _row(run: Run, name: str, cells: list[tuple[str, Callable[[Sample], float]]]) -> str:
    shown = [
        _show(figures.summarise([v for v in figures.read(run.rounds, name, load, pick) if v is not None]))
        for load, pick in cells
    ]
    return f"| {name} | " + " | ".join(shown) + " |"


def _show(figure: Figure | None, digits: int = 0) -> str:
    if figure is None:
        return "-"
    return f"{figure.median:,.{digits}f} ({figure.low:,.{digits}f} to {figure.high:,.{digits}f})"


def _table(titles: list[str], rows: list[str]) -> str:
    return "\n".join(["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), *rows])


def _write_costs(run: Run) -> str:
    cells = [
        (BUSY, figures.per_chunk_us),
        (PACED, figures.per_chunk_us),
        (SHORT, figures.per_request_us),
        (BUSY, figures.chunks_per_second),
        (SHORT, figures.per_second),
    ]
    rows = [_row(run, name, cells) for name in _names(run) if name != DIRECT]
    if PRODUCT in _names(run):
        alone = [
            (BUSY, figures.sidecar_per_chunk_us),
            (PACED, figures.sidecar_per_chunk_us),
            (SHORT, figures.sidecar_per_request_us),
        ]
        row = _row(run, PRODUCT, alone)
        rows.append(row.replace(PRODUCT, f"{PRODUCT}, the sidecar alone", 1) + " - | - |")
    titles = ["CPU of all processes", "us per chunk, lock step", "us per chunk, paced", "us per short answer"]
    return _table([*titles, "chunks/s, lock step", "short answers/s"], rows)


def _write_times(run: Run) -> str:
    cells = [(FIRST, "first_us"), (FIRST, "chunk_us"), (PACED, "chunk_us")]
    rows = []
    for name in _names(run):
        if name == DIRECT:
            continue
        shown = []
        for base in (DIRECT, TWO_HOPS):
            for load, which in cells:
                mine, none = (figures.read(run.rounds, one, load, figures.p50(which)) for one in (name, base))
                shown.append(_show(figures.compare(mine, none, lambda a, b: a - b)))
        rows.append(f"| {name} | " + " | ".join(shown) + " |")
    what = ["first token, one stream", "chunk, one stream", "chunk, paced"]
    titles = [f"{one}, over {base}" for base in (DIRECT, TWO_HOPS) for one in what]
    return _table(["Added p50, us", *titles], rows)


def _write_memory(run: Run) -> str:
    rows = []
    for name in _names(run):
        if name == DIRECT:
            continue
        values = [v for v in figures.read(run.rounds, name, BUSY, figures.rss) if v is not None]
        rows.append(f"| {name} | {run.idle_mib[name]:.0f} | {_show(figures.summarise(values))} |")
    return _table(["Resident memory of all processes, MiB", "before any load", "in lock step"], rows)


def _write_verdicts(run: Run) -> str:
    rows = []
    for peer in PEERS:
        if peer not in _names(run):
            continue
        for one in figures.judge(run.rounds, PRODUCT, peer, DIRECT):
            targets = f"{one.must} / {one.aim} | {one.word}" if peer == LITELLM else "none |"
            rows.append(f"| {one.what} | {peer} | {_show(one.ratio, 2)} | {targets} |")
    return _table(["envoy-ext against a peer", "peer", "ratio", "must / aim", "verdict"], rows)
