"""What admission promises under ten times too much work, and whether a run's evidence says it was kept."""

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Final

from bench.crowd.calls import find_peaks
from bench.crowd.client import Told
from bench.crowd.evidence import SHARING, Evidence, Run, find_median, find_quantile
from bench.crowd.plan import SENDERS, list_parts

SHARE: Final = 0.10
"""How far a share may be from what it should be; in short runs two slots."""
EDGES: Final = 2.0
"""Slots: what the ends of a run may cut off from a share."""
REFUSAL: Final = 2.0
"""How many times the median added time of an accepted request a refusal may cost."""
LATE_S: Final = 0.25
"""A generator that is later than this sends another load than the one that was planned."""
GONE_S: Final = 1.0
"""How long it may take to learn of a client that has left. Who waits does so for about twice as long."""
LONG_S: Final = 30.0
"""In a run of so many seconds some leave in each phase."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise and what is to be said of it."""

    name: str
    kept: bool
    evidence: str
    timed: bool = False
    """It is of milliseconds, and a machine that has no time can break it."""


def judge(evidence: Evidence) -> list[Promise]:
    """Each promise, in the order of the statement."""
    run = Run(evidence)
    return [
        _judge_load(run),
        _judge_deadlines(run),
        *_judge_refusals(run),
        _judge_line(run),
        _judge_shares(run),
        *_judge_callers(run),
        _judge_priority(run),
        _judge_returns(run),
        _judge_engines(run),
        _judge_leavers(run),
        _judge_left_over(run),
    ]


def _judge_load(run: Run) -> Promise:
    """A premise: the load was what it is called."""
    lasted_s = max(run.last_at - run.first_at, 1e-9)
    done = sum(run.first_at <= run.by_name[one.name].ended_at <= run.last_at for one in run.accepted)
    times = len(run.crowd) / max(done, 1)
    late = find_quantile([one.late_s for one in run.crowd], 0.99)
    busy = 1 - statistics.fmean(one.free for one in run.evidence.samples) / run.setting.slots
    return Promise(
        "ten times the load",
        times >= 9.5 and late <= LATE_S and lasted_s >= 0.9 * run.setting.seconds,
        f"{len(run.crowd)} requests in {lasted_s:.1f} s, {times:.1f} times what was answered; slots taken"
        f" {busy:.0%}; generator late by {1e3 * late:.0f} ms (p99)",
        timed=True,
    )


def _judge_deadlines(run: Run) -> Promise:
    """Of those that came while others waited. Whoever finds a slot free before that is let in however near
    its deadline is, and takes nothing from anybody."""
    line_at = min((one.at for one in run.evidence.samples if one.waiting), default=0.0)
    stayed = [one for one in run.accepted if one.end != "left"]
    early = [one for one in stayed if one.sent_at < line_at]
    rest = [one for one in stayed if one.sent_at >= line_at]
    bound = [one for one in rest if one.deadline_s is not None]
    bad = Counter(f"{one.end} {one.status} {one.code}".strip() for one in rest if one.end != "whole")
    late = [one for one in bound if _is_late(one)]
    odd = Counter(one.end for one in run.crowd if one.end in ("hung", "cut"))
    spare = min((one.deadline_s - one.total_s for one in bound if one.deadline_s is not None), default=0.0)
    return Promise(
        "accepted work finishes within its deadline",
        not bad and not late and not odd and bool(bound),
        f"{len(rest)} let in, {len(bound)} of them with a deadline: {len(late)} late, least to spare"
        f" {spare:.2f} s; not whole: {dict(bad) or 0}; hung or cut: {dict(odd) or 0}; before there was a line"
        f" {sum(map(_is_late, early))} late of {len(early)}",
        timed=True,
    )


def _is_late(one: Told) -> bool:
    return one.deadline_s is not None and one.total_s > one.deadline_s


def _judge_refusals(run: Run) -> list[Promise]:
    """Two kinds. Refused on arrival: held against what is added to an accepted request beside its wait in the
    line, and beside what any request takes that goes to an engine directly; the lesser of two: in the calm
    before, and meanwhile. That is the stricter reading, and for the median. The dearest hundredth is held
    against what is added with the wait. Refused after a wait (a request with less in the line came, or a
    deadline fell out of reach): the wait is in both sides."""
    direct = find_median(run.read_added_s(run.direct))
    added = find_median(run.read_added_s(run.accepted)) - direct
    without_wait = find_median(run.read_added_without_wait_s(run.accepted)) - direct
    calm_direct = find_median(run.read_added_s(one for one in run.calm if one.direct))
    calm = find_median(run.read_added_s(one for one in run.calm if not one.direct)) - calm_direct
    strict = min(without_wait, calm)
    at_once = [one.total_s for one in run.refused if not one.operation]
    large = [one.total_s for one in run.refused if one.large and not one.operation]
    large_added = run.read_added_without_wait_s(one for one in run.accepted if one.large)
    waited = [one.total_s for one in run.refused if one.operation]
    costs, tail = find_median(at_once), find_quantile(at_once, 0.99)
    return [
        Promise(
            "a refusal on arrival costs no more than twice what is added to accepted work without its wait",
            bool(at_once) and 0 < costs <= REFUSAL * strict and tail <= REFUSAL * added,
            f"{len(at_once)} refused in {1e3 * costs:.1f} ms (median), {1e3 * tail:.1f} ms (p99); added"
            f" without a wait: {1e3 * calm:.1f} ms in the calm before, {1e3 * without_wait:.1f} ms meanwhile;"
            f" ratio to the lesser {_divide(costs, strict):.2f} (p99 {_divide(tail, strict):.2f}); direct"
            f" {1e3 * direct:.1f} ms; large bodies: {len(large)} refused in {1e3 * find_median(large):.1f}"
            f" ms, {1e3 * find_median(large_added):.1f} ms added to {len(large_added)} accepted",
            timed=True,
        ),
        Promise(
            "a refusal after a wait costs no more than twice what is added to accepted work with its wait",
            not waited or find_median(waited) <= REFUSAL * added,
            f"{len(waited)} refused after {find_median(waited):.2f} s (median), "
            f"{find_quantile(waited, 0.99):.2f} s (p99); added with the wait {added:.2f} s (median)",
            timed=True,
        ),
    ]


def _judge_line(run: Run) -> Promise:
    seen = max((one.waiting for one in run.evidence.samples), default=0)
    deepest, bound = run.evidence.deepest, run.setting.queue
    return Promise(
        "the queue never exceeds its bound",
        seen <= bound and deepest <= bound and len(run.evidence.samples) >= 5 * run.setting.seconds,
        f"bound {bound}, deepest {deepest} by the sidecar's account, {seen} in"
        f" {len(run.evidence.samples)} samples",
    )


def _judge_shares(run: Run) -> Promise:
    """In slots given: that is what is promised. For how long each was held is told beside it."""
    since, until = run.find_backlogged()
    given, weights = run.count_given("kind"), sum(SHARING.values())
    total = sum(given[name] for name in SHARING)
    fair = {name: total * weight / weights for name, weight in SHARING.items()}
    waited = [one for one in run.evidence.samples if since <= one.at <= until]
    starved = sum(not all(one.classes.get(name) for name in SHARING) for one in waited)
    held = dict.fromkeys(SHARING, 0.0)
    for one in run.accepted:
        call = run.calls[one.name][0]
        if one.kind in held and since <= call.started_at <= until and call.ended_at is not None:
            held[one.kind] += call.ended_at - call.started_at
    all_held = sum(held.values()) or 1.0
    told = (f"{name} {given[name]} (x{_divide(given[name], fair[name]):.2f} of its share)" for name in fair)
    return Promise(
        "every class gets its share",
        total > 0
        and all(abs(given[name] - fair[name]) <= max(SHARE * fair[name], EDGES) for name in fair)
        and starved <= 0.05 * len(waited),
        f"{total} slots given in {until - since:.1f} s: {', '.join(told)}; one class had nobody waiting in"
        f" {starved} of {len(waited)} samples; of the engines' time"
        f" {', '.join(f'{name} {time_s / all_held:.0%}' for name, time_s in held.items())}",
    )


def _judge_callers(run: Run) -> list[Promise]:
    given, parts = run.count_given("caller"), list_parts()
    promises = []
    for kind in SHARING:
        own = [one for one in SENDERS if one.kind == kind]
        fair = parts[kind] / len(own)
        crowding = [one.caller for one in own if one.times > fair]
        mean = sum(given[caller] for caller in crowding) / len(crowding)
        worst = max(abs(given[caller] - mean) for caller in crowding)
        promises.append(
            Promise(
                f"callers of {kind} share alike",
                mean > 0 and worst <= max(SHARE * mean, EDGES),
                ", ".join(f"{caller} {given[caller]}" for caller in crowding) + f" of {mean:.1f} each",
            )
        )
    rare = [one for one in run.crowd if one.caller == "rare"]
    full = sum(one.code == "queue_full" for one in rare)
    promises.append(
        Promise(
            "a caller that asks for little is not refused for one that asks for much",
            full == 0,
            f"rare: {len(rare)} requests, {full} refused with queue_full",
        )
    )
    return promises


def _judge_priority(run: Run) -> Promise:
    alarms = [one for one in run.crowd if one.kind == "alarm" and one.end != "left"]
    served = sum(one.end == "whole" for one in alarms)
    return Promise(
        "a higher priority is not slowed down by the others",
        bool(alarms) and served == len(alarms),
        f"{served} of {len(alarms)} alarms answered, in {find_median([one.total_s for one in alarms]):.2f} s"
        " (median)",
    )


def _judge_returns(run: Run) -> Promise:
    """Those that are refused do not come back as one."""
    without = sum(one.retry_after is None for one in run.refused if one.code != "deadline_exceeded")
    told = [one for one in run.refused if one.retry_after is not None]
    back = Counter(int(one.ended_at + (one.retry_after or 0)) for one in told)
    went = Counter(int(one.ended_at) for one in told)
    busiest, most = max(back.values(), default=0), max(went.values(), default=0)
    values = {one.retry_after for one in told}
    return Promise(
        "Retry-After is spread",
        without == 0 and len(values) >= 5 and busiest <= most and bool(told),
        f"{len(values)} values, {min(values, default=0)} to {max(values, default=0)} s; the busiest second"
        f" sends {busiest} back, the busiest sent {most} away; {without} without",
    )


def _judge_engines(run: Run) -> Promise:
    ours = [call for call in run.evidence.calls if call.name in run.by_name]
    peaks = find_peaks(ours)
    worst = max((count for replica, count in peaks.items() if replica), default=0)
    return Promise(
        "engines never have more than their slots",
        worst <= run.setting.slots_each and peaks[""] <= run.setting.slots,
        f"at most {peaks['']} of {run.setting.slots} at once, {worst} of {run.setting.slots_each} at one"
        f" engine (their own logs); twice asked for: {sum(len(calls) > 1 for calls in run.calls.values())}",
    )


def _judge_leavers(run: Run) -> Promise:
    left = [one for one in run.crowd if one.end == "left"]
    phases: Counter[str] = Counter()
    after = 0
    for one in left:
        calls = run.calls.get(one.name)
        if not calls:
            phases["in line"] += 1
            continue
        call = calls[0]
        prefill = call.prefilled_at is None or call.prefilled_at > one.ended_at
        phases["in prefill" if prefill else "later"] += 1
        after += call.started_at > one.ended_at + GONE_S
    enough = 3 if run.setting.seconds >= LONG_S else 1
    return Promise(
        "a client that has left is sent nowhere",
        after == 0 and len(phases) >= enough,
        f"{len(left)} left: {dict(phases)}; begun later than {GONE_S} s behind that: {after}",
    )


def _judge_left_over(run: Run) -> Promise:
    unended = sum(call.ended_at is None for call in run.evidence.calls)
    left = run.evidence.left_over
    return Promise(
        "after the load all counters are 0",
        not left and not unended,
        ", ".join(f"{name} {count:g}" for name, count in left.items()) or f"all; engines still run {unended}",
    )


def count_codes(evidence: Evidence) -> dict[str, int]:
    """What clients were told, for people."""
    run = Run(evidence)
    return dict(Counter(one.code or one.end for one in run.crowd).most_common())


def _divide(one: float, other: float) -> float:
    return one / other if other > 0 else float("inf")
