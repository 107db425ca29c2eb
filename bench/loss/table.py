"""A run as rows of a table, phase by phase, and its promises as lines."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from bench.loss.evidence import Evidence
from bench.loss.verdict import Promise, count_good, is_good, split_attempts

HEADER: Final = (
    "| lost by | phase | calls/s | tries/s | in time/s | refused/s | client left/s | attempts/s | replays |"
    " tokens of no use | answer p50, s | p99, s | refusal p50, ms |\n|" + "---|" * 13
)


def build_rows(name: str, run: Evidence) -> list[str]:
    """One row for each phase."""
    marks = run.marks
    spans = {
        "one alone": (marks.measured_from, marks.measured_from + run.shape.measure_s),
        "both": (marks.both_at, marks.lost_at),
        "one lost": (marks.lost_at, marks.back_at),
        "both again": (marks.back_at, marks.end_at),
    }
    return [_build_row(name, phase, run, *span) for phase, span in spans.items()]


def _build_row(name: str, phase: str, run: Evidence, since: float, until: float) -> str:
    seconds = until - since
    tries = [one for one in run.tries if since <= one.sent_at < until]
    begun = [one for one in run.generations if since <= one.started_at < until]
    _, again = split_attempts(run)
    good = {one.request_id for one in run.tries if is_good(run, one)}
    tokens = sum(one.tokens for one in begun)
    wasted = sum(one.tokens for one in begun if one.request_id not in good)
    times = sorted(one.ended_at - one.sent_at for one in tries if is_good(run, one)) or [0.0]
    refused = [one for one in tries if one.status >= 400]
    cells = (
        name,
        phase,
        f"{len({one.call for one in tries}) / seconds:.1f}",
        f"{len(tries) / seconds:.1f}",
        f"{count_good(run, since, until) / seconds:.1f}",
        f"{len(refused) / seconds:.1f}",
        f"{sum(one.left for one in tries) / seconds:.1f}",
        f"{len(begun) / seconds:.1f}",
        sum(since <= one.started_at < until for one in again),
        f"{wasted / max(1, tokens):.0%}",
        f"{median(times):.2f}",
        f"{times[int(0.99 * len(times))]:.2f}",
        f"{median([one.ended_at - one.sent_at for one in refused] or [0.0]) * 1000:.0f}",
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def tell(promises: Sequence[Promise]) -> str:
    """One line for each."""
    return "\n".join(f"{'kept  ' if one.kept else 'BROKEN'} {one.text}: {one.found}" for one in promises)
