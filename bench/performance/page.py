"""The tables of docs/performance.md, written from what a run has kept; a test compares the two."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from bench.performance import gateways
from bench.performance.figures import NOISE
from bench.performance.loads import FIRST, FIRST_BUSY, LOCK_STEP, PACED, SHORT, Sample
from bench.performance.many import Seen
from bench.performance.results import Results
from bench.performance.rounds import PLAN
from bench.performance.verdict import Line, Word, summarise_noise

PAGE: Final = Path(__file__).parents[2] / "docs" / "performance.md"
KEPT: Final = PAGE.parent / "performance" / "results.json"
QUIET_CORES: Final = 0.1
_BOLD: Final = {Word.MISSED: "**missed**", Word.NO_EVIDENCE: "**no evidence**"}


def write_run(results: Results) -> str:
    """What was run, on what, and how quiet it was there."""
    about, samples = results.about, results.list_samples()
    text = (
        f"{about['when']}, commit {about['commit']}; {about['cores']} cores ({about['cpu']}), "
        f"Linux {about['kernel']}, Python {about['python']}, Envoy {about['envoy']} with one worker; "
        f"{len(results.rounds)} rounds of {about['seconds']:g} s a load, {about['took_s'] / 60:.0f} min "
        f"in all. The journal: {about['journal']}."
    )
    if not samples:
        return text
    others = [one.other_cores for one in samples]
    stolen = [one.stolen_cores for one in samples]
    waiting = [one.waiting_cores for one in samples]
    quiet = statistics.median(others) <= QUIET_CORES
    disk = f"{max(waiting):.2f} at most waited for a disk"
    return (
        f"{text}\n\n"
        f"{'Nothing else ran' if quiet else '**The machine was not quiet**'}: other processes took "
        f"{statistics.median(others):.2f} cores in the middle and {max(others):.2f} at most, the machine's "
        f"host {statistics.median(stolen):.2f} and {max(stolen):.2f}; {disk}; "
        f"load average {about['load_before']:.1f} before the run. Replica and clients took "
        f"{max(one.generator_cores for one in samples):.2f} of their one core at most."
    )


def write_verdicts(lines: Iterable[Line]) -> str:
    """The table of targets."""
    rows = ["| what | against | must | aim | found | rounds | verdict |", "|---|---|---|---|---|---|---|"]
    for line in lines:
        target = line.target
        sign = "≥" if target.at_least else "≤"
        found, rounds = "–", "–"
        if line.figure is not None:
            found = target.show(line.figure.median)
            rounds = f"{line.figure.low:.{target.digits}f} to {line.figure.high:.{target.digits}f}"
        word = _BOLD.get(line.word, line.word.value)
        if line.why:
            word += f": {line.why}"
        elif not line.sure:
            word += ", not in every round"
        word += "".join(f"; {one}" for one in line.noise)
        bounds = [f"{sign} {target.show_bound(one)}" for one in (target.must, target.aim)]
        rows.append(f"| {' | '.join([target.text, target.against, *bounds, found, rounds, word])} |")
    return "\n".join(rows)


def write_noise(results: Results) -> str:
    """What differs where nothing does."""
    rows = ["| the same, measured twice | ratio | rounds |", "|---|---|---|"]
    for what in NOISE:
        found = summarise_noise(what, results.rounds)
        if found is not None:
            rows.append(f"| {what} | {found.median:.2f} | {found.low:.2f} to {found.high:.2f} |")
    return "\n".join(rows)


_Read = Callable[[Sample], float]
_FIRST_COLUMNS: Final[dict[str, _Read]] = {
    "first token p50, us": lambda one: one.first_us["p50"],
    "p99, us": lambda one: one.first_us["p99"],
    "sidecar, us a request": lambda one: one.sidecar_us / one.requests,
    "Envoy, us a request": lambda one: one.envoy_us / one.requests,
}
_COLUMNS: Final[dict[str, dict[str, _Read]]] = {
    LOCK_STEP: {
        "chunks/s": lambda one: one.chunks / one.seconds,
        "sidecar, us a chunk": lambda one: one.sidecar_us / one.chunks,
        "Envoy, us a chunk": lambda one: one.envoy_us / one.chunks,
        "p99, us": lambda one: one.chunk_us["p99"],
    },
    PACED: {
        "p50, us": lambda one: one.chunk_us["p50"],
        "p99, us": lambda one: one.chunk_us["p99"],
        "sidecar, us a chunk": lambda one: one.sidecar_us / one.chunks,
        "Envoy, us a chunk": lambda one: one.envoy_us / one.chunks,
    },
    FIRST: _FIRST_COLUMNS,
    FIRST_BUSY: _FIRST_COLUMNS,
    SHORT: {
        "answers/s": lambda one: one.requests / one.seconds,
        "sidecar, us an answer": lambda one: one.sidecar_us / one.requests,
        "Envoy, us an answer": lambda one: one.envoy_us / one.requests,
        "p50, ms": lambda one: one.request_us["p50"] / 1e3,
    },
}
_TITLES: Final = {
    LOCK_STEP: "64 streams in lock step",
    PACED: "40 streams at 50 chunks/s",
    FIRST: "one stream, requests 10 ms apart",
    FIRST_BUSY: "one stream, a request at once behind the end of another",
    SHORT: "short answers, 32 at once",
}


def write_medians(results: Results) -> str:
    """Each load on each gateway: medians of the rounds."""
    parts: list[str] = []
    for load, columns in _COLUMNS.items():
        rows = [f"| {_TITLES[load]} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for gateway in PLAN[load]:
            taken = [one[load][gateway] for one in results.rounds if gateway in one.get(load, {})]
            if taken:
                cells = [_show_median(taken, read) for read in columns.values()]
                rows.append(f"| {gateway} | {' | '.join(cells)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _show_median(samples: Sequence[Sample], read: _Read) -> str:
    try:
        value = statistics.median(read(one) for one in samples)
    except (KeyError, ZeroDivisionError):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def write_idle(results: Results) -> str:
    """What idle streams take."""
    rows = ["| streams | sidecar, KiB a stream | Envoy, KiB a stream |", "|---|---|---|"]
    rows += [
        f"| {one.few:,} to {one.many:,} | {one.kib_a_stream:.1f} | {one.envoy_kib_a_stream:.1f} |"
        for one in results.held
    ]
    return "\n".join(rows)


def write_many(results: Results) -> str:
    """What was tried, and what is found at the most that was carried."""
    rows = [
        "| gateway | streams x chunks/s | of the chunks due | carried | waited, ms | handled, ms"
        " | in the sidecar, ms | its loop's own lag, p99, ms | client's p50, p99, ms | sidecar, cores |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, tried in results.tried.items():
        rows += [_write_seen(name, one) for one in tried]
    rows += [_write_seen(f"{gateways.NATIVE}, the most", one) for one in results.many]
    rows += [_write_seen(f"{gateways.NATIVE}, slow streams", one) for one in results.slow]
    return "\n".join(rows)


def _write_seen(name: str, one: Seen) -> str:
    both = "–"
    if one.handled_ms is not None and one.waited_ms is not None:
        both = f"{one.handled_ms + one.waited_ms:.2f}"
    client = (f"{one.sample.chunk_us.get(at, 0.0) / 1e3:.1f}" for at in ("p50", "p99"))
    cells = [
        name,
        f"{one.streams:,} x {one.rate:g}",
        f"{one.share:.1%}",
        "yes" if one.carried else "no",
        "–" if one.waited_ms is None else f"{one.waited_ms:.2f}",
        "–" if one.handled_ms is None else f"{one.handled_ms:.3f}",
        both,
        "–" if one.lag_ms is None else f"≤ {one.lag_ms:g}",
        ", ".join(client),
        f"{one.sample.sidecar_us / 1e6 / one.sample.seconds:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def write_tables(results: Results) -> dict[str, str]:
    """All of them, by the names of their places in the page."""
    return {
        "run": write_run(results),
        "verdicts": write_verdicts(results.judge()),
        "noise": write_noise(results),
        "medians": write_medians(results),
        "idle": write_idle(results),
        "many": write_many(results),
    }


def fill(page: str, results: Results) -> str:
    """The page with its tables as the results have them."""
    for name, table in write_tables(results).items():
        parts = re.split(rf"(?<=<!-- {name} -->\n)(?s:.*?)(<!-- / -->)", page, maxsplit=1)
        if len(parts) != 3:
            raise ValueError(f"the page has no place for the table {name}")
        page = f"{parts[0]}{table}\n{parts[1]}{parts[2]}"
    return page
