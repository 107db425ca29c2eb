"""Were the promises kept? Each is one line with what it says, what was found, and whether that holds.

All is judged by what clients saw and by what the engines wrote down themselves; of the gateway's own word
only its gauges behind the end are taken.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.loss.evidence import Evidence, Generation, Try

COME_BACK: Final = frozenset(
    {
        "queue_full",
        "queue_deadline_exceeded",
        "no_ready_replica",
        "draining",
        "upstream_unavailable",
        "retry_budget_exhausted",
    }
)
"""Codes behind which another try may help: with Retry-After, and never with `x-should-retry: false`."""
STAY_AWAY: Final = frozenset({"deadline_exceeded", "replay_not_allowed"})
IN_STREAM: Final = frozenset({"upstream_decode_interrupted"})
"""Said behind the first delta, where no header can be added."""
NEVER_LET_IN: Final = frozenset({"queue_full", "queue_deadline_exceeded", "no_ready_replica", "draining"})
MAX_ATTEMPTS: Final = 2
LONGEST_RETRY_AFTER_S: Final = 30
WINDOW_S: Final = 3.0
STILL_REFUSED: Final = 0.05
"""Of a window's tries, in a pool that has recovered: a random load has its peaks."""
HANG_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Promise:
    """One of them, and what came of it."""

    text: str
    found: str
    kept: bool


def judge(run: Evidence) -> list[Promise]:
    """All promises, in the order of the docs."""
    return [
        *_judge_goodput(run),
        *_judge_survivor(run),
        *_judge_refusals(run),
        *_judge_attempts(run),
        *_judge_end(run),
    ]


# --- what was answered ----------------------------------------------------------------------------


def is_good(run: Evidence, one: Try) -> bool:
    """Whether its client got a whole answer within its deadline."""
    return one.whole and one.ended_at - one.sent_at <= run.shape.deadline_s


def count_good(run: Evidence, since: float, until: float) -> int:
    """Whole answers in time that ended within a span."""
    return sum(is_good(run, one) and since <= one.ended_at < until for one in run.tries)


def _judge_goodput(run: Evidence) -> Iterable[Promise]:
    marks, shape = run.marks, run.shape
    seconds = marks.back_at - marks.lost_at
    good_per_s = count_good(run, marks.lost_at, marks.back_at) / seconds
    share = good_per_s / run.capacity
    yield Promise(
        f"while one is lost, answers in time are at least {shape.goodput:.0%} of what the other can do",
        f"{good_per_s:.2f}/s of {run.capacity:.2f}/s: {share:.0%}",
        share >= shape.goodput,
    )
    computed = [one for one in run.generations if one.replica == run.survivor and _began(one, run)]
    tokens = sum(one.tokens for one in computed)
    good = {one.request_id for one in run.tries if is_good(run, one)}
    wasted = sum(one.tokens for one in computed if one.request_id not in good)
    part = wasted / max(1, tokens)
    yield Promise(
        f"of the tokens that it computes, at least {shape.goodput:.0%} are of such answers",
        f"{tokens - wasted} of {tokens}: {1 - part:.0%}",
        tokens > 0 and 1 - part >= shape.goodput,
    )


def _began(one: Generation, run: Evidence) -> bool:
    """Whether it began while a replica was lost, early enough to end then."""
    return run.marks.lost_at <= one.started_at < run.marks.back_at - run.shape.deadline_s / 2


# --- the replica that is left ---------------------------------------------------------------------


def find_peak(spans: Iterable[tuple[float, float]]) -> int:
    """The most of them at one moment; one that ends as another begins makes room for it."""
    turns = sorted(turn for begin, end in spans for turn in ((begin, 1), (end, -1)))
    peak = now = 0
    for _, change in turns:
        now += change
        peak = max(peak, now)
    return peak


def split_attempts(run: Evidence) -> tuple[list[Generation], list[Generation]]:
    """First attempts, and those that repeat one. Where nobody listened any more no engine wrote the first one
    down: then the client was told of two attempts, and one generation is there, which is the second."""
    told = {one.request_id: one.attempts for one in run.tries if one.status == 200}
    found = Counter(one.request_id for one in run.generations)
    seen: set[str] = set()
    first: list[Generation] = []
    again: list[Generation] = []
    for one in sorted(run.generations, key=lambda one: one.started_at):
        refused_before = found[one.request_id] == 1 and told.get(one.request_id, 1) > 1
        (again if one.request_id in seen or refused_before else first).append(one)
        seen.add(one.request_id)
    return first, again


def _spans(run: Evidence, found: Iterable[Generation]) -> list[tuple[float, float]]:
    return [(one.started_at, run.marks.end_at if one.ended_at is None else one.ended_at) for one in found]


def _judge_survivor(run: Evidence) -> Iterable[Promise]:
    shape, marks = run.shape, run.marks
    first, again = split_attempts(run)
    own = find_peak(_spans(run, (one for one in first if one.replica == run.survivor)))
    yield Promise(
        f"never more first attempts at the replica that stays than its {shape.slots} slots"
        f" (and {shape.on_their_way} on the way when the other is lost)",
        f"at most {own}",
        own <= shape.slots + shape.on_their_way,
    )
    whole = find_peak(_spans(run, (one for one in run.generations if one.replica == run.survivor)))
    most = shape.slots + shape.budget
    yield Promise(
        f"never more of all attempts there than its slots and the {shape.budget} replays of the budget",
        f"at most {whole}",
        whole <= most,
    )
    before = _read_times(run, marks.measured_from, marks.both_at)
    during = _read_times(run, marks.lost_at, marks.back_at)
    kept = bool(before and during) and _p90(during) <= shape.latency * _p90(before)
    yield Promise(
        f"its own time for an answer stays below {shape.latency:g} times that of the measured capacity (p90)",
        f"{_p90(during):.2f} s, {_p90(before):.2f} s before",
        kept,
    )
    replays = find_peak(_spans(run, again))
    yield Promise(
        f"never more replays at once than the budget allows ({shape.budget})",
        f"at most {replays}, {len(again)} in all",
        replays <= shape.budget,
    )


def _read_times(run: Evidence, since: float, until: float) -> list[float]:
    return [
        one.ended_at - one.started_at
        for one in run.generations
        if one.replica == run.survivor and one.ended == "done" and one.ended_at is not None
        if since <= one.started_at < until
    ]


def _p90(times: Sequence[float]) -> float:
    return sorted(times)[int(0.9 * len(times))] if times else 0.0


# --- refusals -------------------------------------------------------------------------------------


def _judge_refusals(run: Evidence) -> Iterable[Promise]:
    refused = [one for one in run.tries if one.status >= 400]
    wrong = [one for one in refused if not _is_advised(one)]
    yield Promise(
        "every refusal says whether and when to come back",
        f"{len(refused)} refused, {len(wrong)} badly{_name(wrong)}",
        not wrong,
    )
    lost = [one for one in run.tries if run.marks.lost_at <= one.sent_at < run.marks.back_at]
    shed = [one.ended_at - one.sent_at for one in lost if one.code in NEVER_LET_IN]
    whole = [one.ended_at - one.sent_at for one in lost if is_good(run, one)]
    cheap = not shed or (bool(whole) and median(shed) <= run.shape.refusal * median(whole))
    yield Promise(
        f"while one is lost, the median refusal takes its client at most {run.shape.refusal:g} times the"
        " median answer",
        f"{median(shed or [0.0]) * 1000:.0f} ms, {median(whole or [0.0]) * 1000:.0f} ms",
        cheap,
    )
    limit_s = run.shape.deadline_s + HANG_S
    hung = [one for one in run.tries if not one.ended_at or one.ended_at - one.sent_at > limit_s]
    yield Promise(
        "nobody hangs beyond its deadline", f"{len(hung)} of {len(run.tries)}{_name(hung)}", not hung
    )


def _is_advised(one: Try) -> bool:
    if one.code in COME_BACK:
        text = one.retry_after or ""
        return (
            text.isdigit()
            and 1 <= int(text) <= LONGEST_RETRY_AFTER_S
            and one.should_retry != "false"
            and (one.status == 429) == (one.code == "queue_full")
        )
    return one.code in STAY_AWAY and one.should_retry == "false" and one.retry_after is None


# --- attempts -------------------------------------------------------------------------------------


def _judge_attempts(run: Evidence) -> Iterable[Promise]:
    marks = run.marks
    shed = {one.request_id for one in run.tries if one.status >= 400 and one.code in NEVER_LET_IN}
    computed = [one for one in run.generations if one.request_id in shed]
    yield Promise(
        "of what is refused no replica hears",
        f"{len(computed)} generations of {len(shed)} refused tries",
        not computed,
    )
    known = {one.request_id for one in run.tries}
    first, again = split_attempts(run)
    odd = [one for one in first if one.request_id not in known]
    often = [one for one in again if sum(o.request_id == one.request_id for o in again) >= MAX_ATTEMPTS]
    worst = _find_worst_window(run, first, again)
    yield Promise(
        "in every second no more attempts than requests let in, and replays of the budget",
        f"{len(first)} requests, {len(again)} replays; worst second {worst}",
        not odd and not often and worst <= 2 * run.shape.budget,
    )
    lost = [one for one in run.tries if marks.lost_at <= one.sent_at < marks.back_at]
    calls = len({one.call for one in lost})
    begun = [one for one in run.generations if marks.lost_at <= one.started_at < marks.back_at]
    able = run.capacity * (marks.back_at - marks.lost_at) + 2 * run.shape.slots
    yield Promise(
        "however often clients repeat, replicas are asked for no more than they can do",
        f"{calls} calls, {len(lost)} tries, {len(begun)} attempts (able: {able:.0f})",
        len(begun) <= able * 1.1,
    )


def _find_worst_window(run: Evidence, first: Sequence[Generation], again: Sequence[Generation]) -> int:
    """The most replays that began within one second of the run."""
    starts = sorted(one.started_at for one in again)
    return max((sum(at <= other < at + 1.0 for other in starts) for at in starts), default=0)


# --- the end --------------------------------------------------------------------------------------


def find_recovery(run: Evidence) -> float | None:
    """Seconds from the return to the moment from which on every window is answered; None: never."""
    marks = run.marks
    found = None
    at = marks.back_at
    while at + WINDOW_S <= marks.end_at:
        tries = [one for one in run.tries if at <= one.sent_at < at + WINDOW_S]
        bad = sum(not is_good(run, one) for one in tries)
        if not tries or bad > STILL_REFUSED * len(tries):
            found = None
        elif found is None:
            found = at - marks.back_at
        at += WINDOW_S / 3
    return found


def _judge_end(run: Evidence) -> Iterable[Promise]:
    limit_s = run.shape.recovered_s
    if limit_s is not None:
        after = find_recovery(run)
        yield Promise(
            f"all calls are answered again within {limit_s:g} s of the return",
            "never" if after is None else f"after {after:.0f} s",
            after is not None and after <= limit_s,
        )
    yield Promise(
        "nothing is left behind: no request in flight, no bug",
        f"{run.inflight:.0f} in flight, {run.bugs:.0f} bugs",
        run.inflight == 0 and run.bugs == 0,
    )


def _name(tries: Sequence[Try]) -> str:
    """The first few, for people."""
    shown = ", ".join(f"{one.request_id} {one.status} {one.code or '-'}" for one in tries[:3])
    return f" ({shown})" if shown else ""
