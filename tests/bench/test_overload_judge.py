"""The judge of the overload run: a good run is told to be one, and each way to spoil it is seen."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.crowd.calls import Call, find_peaks, read_calls
from bench.crowd.client import BEFORE, Told, has_enough, read_answer
from bench.crowd.evidence import Evidence
from bench.crowd.plan import KINDS, SENDERS, Asked, Setting, draw_plan
from bench.crowd.verdict import judge
from bench.crowd.watch import Entry, Sample

SETTING = Setting(seconds=60.0, seed=1)
T0 = 1000.0
TURNS = {
    "chat": ("greedy", "modest-1", "modest-2"),
    "batch": ("batch-1", "batch-2"),
    "default": ("default-1", "default-2"),
}
ORDER = ("chat", "batch", "chat", "default", "chat", "batch", "chat")
HOLD_S = 0.4


def tell(name: str, kind: str, caller: str, sent_at: float, total_s: float, **more: object) -> Told:
    facts: dict[str, object] = {"end": "whole", "status": 200, "deadline_s": None, "direct": False, **more}
    return Told(name=name, kind=kind, caller=caller, sent_at=sent_at, total_s=total_s, late_s=0.0, **facts)  # type: ignore[arg-type]


class Made:
    """What a good run leaves behind."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.calls: list[Call] = []
        self.entries: list[Entry] = []
        for number in range(24):
            at = T0 - 30 + number
            self.serve(f"{BEFORE}{number}-gateway", "chat", "calm", at, wait_s=0.004)
            self.answer(f"{BEFORE}{number}-direct", "chat", "calm", at, at + 0.0005, 0.001, direct=True)
        served = dict.fromkeys(TURNS, 0)
        for number in range(800):
            kind, start = ORDER[number % len(ORDER)], T0 + number * 0.075
            caller = TURNS[kind][served[kind] % len(TURNS[kind])]
            served[kind] += 1
            self.serve(f"{caller}-{number}", kind, caller, start - 2.0, wait_s=2.0, deadline_s=5.0)
        for number in range(60):
            self.serve(f"alarm-{number}", "alarm", "alarm", T0 + number + 0.01, wait_s=0.02, hold_s=0.1)
        for number in range(9000):
            at = T0 + number / 150
            self.refuse(f"refused-{number}", at, 0.004, number % 30 + 1, operation=False)
            if number % 100 == 0:
                self.refuse(f"sent-away-{number}", at, 0.05, 3, operation=True)
        for number in range(240):
            at = T0 + number / 4
            self.answer(f"direct-{number}", "chat", "direct", at, at + 0.0005, 0.001, direct=True)
        self.told.append(tell("leaves-1", "chat", "greedy", T0 + 5, 0.5, end="left"))
        for name, after_s in (("leaves-2", 0.05), ("leaves-3", 0.3)):
            at = T0 + 60.2 + after_s
            self.told.append(tell(name, "alarm", "alarm", at, after_s + 0.01, end="left"))
            call = Call(name, "b", at + 0.01, at + after_s + 0.02, "client_disconnected", 1, at + 0.2)
            self.calls.append(call)
        waiting = {"chat": 18, "batch": 9, "default": 5, "alarm": 0}
        self.samples = [Sample(T0 + number * 0.05, 32, waiting, 0) for number in range(1200)]

    def serve(
        self,
        name: str,
        kind: str,
        caller: str,
        at: float,
        wait_s: float,
        hold_s: float = HOLD_S,
        **more: object,
    ) -> None:
        self.answer(name, kind, caller, at, at + wait_s + 0.004, 0.008, hold_s, **more)
        self.entries.append(Entry(name, at + 0.003, at + wait_s + 0.001))

    def answer(
        self,
        name: str,
        kind: str,
        caller: str,
        at: float,
        start: float,
        beside_s: float,
        hold_s: float = HOLD_S,
        **more: object,
    ) -> None:
        replica = "direct" if more.get("direct") else "ab"[len(self.calls) % 2]
        self.calls.append(Call(name, replica, start, start + hold_s, "done", 9, start + 0.1))
        self.told.append(tell(name, kind, caller, at, start - at + hold_s + beside_s / 2, **more))

    def refuse(self, name: str, at: float, total_s: float, retry_after: int, *, operation: bool) -> None:
        facts = {"status": 429, "code": "queue_full", "retry_after": retry_after, "operation": operation}
        self.told.append(tell(name, "chat", "greedy", at, total_s, end="refused", **facts))

    def close(self) -> Evidence:
        return Evidence(SETTING, self.told, self.calls, self.samples, 32, {}, self.entries)


GOOD = Made().close()
SERVED = next(one.name for one in GOOD.told if one.name.startswith("greedy-") and one.sent_at > T0 + 40)


def broken(evidence: Evidence) -> list[str]:
    return [one.name for one in judge(evidence) if not one.kept]


def change_told(fits: Callable[[Told], bool], **changes: object) -> Evidence:
    told = [replace(one, **changes) if fits(one) else one for one in GOOD.told]  # type: ignore[arg-type]
    return replace(GOOD, told=told)


def change_one(name: str, **changes: object) -> Evidence:
    return change_told(lambda one: one.name == name, **changes)


def without_calls(fits: Callable[[Told], bool]) -> Evidence:
    gone = {one.name for one in GOOD.told if fits(one)}
    return replace(GOOD, calls=[call for call in GOOD.calls if call.name not in gone])


def move_calls(name: str, by_s: float, **changes: object) -> Evidence:
    calls = [
        replace(call, started_at=call.started_at + by_s, ended_at=(call.ended_at or 0.0) + by_s, **changes)  # type: ignore[arg-type]
        if call.name == name
        else call
        for call in GOOD.calls
    ]
    return replace(GOOD, calls=calls)


def deepen(waiting: int) -> Evidence:
    samples = [*GOOD.samples[:-1], replace(GOOD.samples[-1], waiting=waiting)]
    return replace(GOOD, samples=samples)


def read_number(one: Told) -> int:
    return int(one.name.rpartition("-")[2])


SPOILED = {
    "a line without a bound": (replace(GOOD, deepest=33), ["the queue never exceeds its bound"]),
    "a line seen above its bound": (deepen(40), ["the queue never exceeds its bound"]),
    "a line that nobody looked at": (
        replace(GOOD, samples=GOOD.samples[::20]),
        ["the queue never exceeds its bound"],
    ),
    "an unfair share": (
        without_calls(lambda one: one.kind == "batch" and read_number(one) % 4 == 0),
        ["every class gets its share"],
    ),
    "a caller that gets more": (
        without_calls(lambda one: one.caller == "modest-2" and read_number(one) % 3 == 0),
        ["callers of chat share alike"],
    ),
    "a leaked slot": (
        replace(GOOD, left_over={"slots: taken": 1.0}),
        ["after the load all counters are 0"],
    ),
    "an engine that computes on": (
        replace(GOOD, calls=[*GOOD.calls[:-1], replace(GOOD.calls[-1], ended_at=None)]),
        ["after the load all counters are 0"],
    ),
    "slow refusals": (
        change_told(lambda one: one.end == "refused" and not one.operation, total_s=0.03),
        ["a refusal on arrival costs no more than twice what is added to accepted work without its wait"],
    ),
    "refusals after a long wait": (
        change_told(lambda one: one.end == "refused" and one.operation, total_s=5.0),
        ["a refusal after a wait costs no more than twice what is added to accepted work with its wait"],
    ),
    "one that is late": (
        change_one(SERVED, deadline_s=2.1),
        ["accepted work finishes within its deadline"],
    ),
    "one that was cut": (
        change_one(SERVED, end="broken", code="upstream_decode_interrupted"),
        ["accepted work finishes within its deadline"],
    ),
    "one that hangs": (change_one("refused-7", end="hung"), ["accepted work finishes within its deadline"]),
    "returns as one": (
        change_told(lambda one: one.end == "refused", retry_after=5),
        ["Retry-After is spread"],
    ),
    "a refusal without a hint": (change_one("refused-7", retry_after=None), ["Retry-After is spread"]),
    "one engine with more than its slots": (
        replace(GOOD, calls=[replace(call, replica="a") for call in GOOD.calls]),
        ["engines never have more than their slots"],
    ),
    "an alarm refused": (
        replace(
            change_one("alarm-9", end="refused", code="queue_full", retry_after=3, operation=True),
            calls=without_calls(lambda one: one.name == "alarm-9").calls,
        ),
        ["a higher priority is not slowed down by the others"],
    ),
    "a rare caller refused": (
        change_one("refused-7", caller="rare"),
        ["a caller that asks for little is not refused for one that asks for much"],
    ),
    "sent after it has left": (move_calls("leaves-3", 9.0), ["a client that has left is sent nowhere"]),
    "half the load": (
        replace(GOOD, told=[one for one in GOOD.told if "refused" not in one.name or read_number(one) % 2]),
        ["ten times the load"],
    ),
}


def test_a_run_that_kept_its_promises_is_told_so() -> None:
    assert broken(GOOD) == []


@pytest.mark.parametrize("how", SPOILED)
def test_each_promise_that_was_not_kept_is_seen(how: str) -> None:
    evidence, expected = SPOILED[how]
    assert broken(evidence) == expected


def test_the_plan_is_ten_times_the_capacity_and_the_same_for_the_same_seed() -> None:
    plan = draw_plan(SETTING)
    ours = [one for one in plan if not one.direct]
    assert len(ours) == pytest.approx(10 * SETTING.capacity_per_s * SETTING.seconds, rel=0.05)
    assert sum(one.times for one in SENDERS) == pytest.approx(10.0)
    assert {one.kind for one in ours} == KINDS.keys()
    assert plan == draw_plan(SETTING)
    assert plan != draw_plan(replace(SETTING, seed=2))


@pytest.mark.parametrize(
    ("status", "body", "stream", "end"),
    [
        (200, b'data: {"choices":[]}\n\ndata: [DONE]\n\n', True, "whole"),
        (200, b'data: {"choices":[]}\n\n', True, "broken"),
        (200, b'data: {"error":{"code":"x"}}\n\ndata: [DONE]\n\n', True, "broken"),
        (200, b'{"choices":[{"finish_reason":"stop"}]}', False, "whole"),
        (200, b"", False, "broken"),
        (429, b'{"error":{"code":"queue_full"}}', True, "refused"),
    ],
)
def test_an_answer_is_read_for_what_it_is(status: int, body: bytes, stream: bool, end: str) -> None:
    assert read_answer(status, body, stream)["end"] == end


def test_a_client_leaves_behind_the_third_delta() -> None:
    asked = Asked("x", 0.0, "chat", "greedy", True, 9, leaves_after_deltas=3)
    role, delta = b'{"role":"assistant","content":""}', b'{"content":"a"}'
    assert not has_enough(asked, bytearray(role + 2 * delta))
    assert has_enough(asked, bytearray(role + 3 * delta))
    assert not has_enough(replace(asked, leaves_after_deltas=None), bytearray(role + 9 * delta))


def test_an_engines_log_is_read_for_who_was_there_at_once(tmp_path: Path) -> None:
    lines = [
        (1.0, "r1", 1, "start", {}),
        (1.1, None, 2, "start", {}),
        (1.2, "r1", 1, "token", {}),
        (1.3, "r3", 3, "start", {}),
        (1.5, "r1", 1, "end", {"ended": "done"}),
        (1.5, "r4", 4, "start", {}),
    ]
    path = tmp_path / "a.log"
    names = ("time", "request_id", "generation", "what")
    written = [{**dict(zip(names, line, strict=False)), "replica": "a", **line[4]} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in written))
    calls = read_calls([path])
    assert [(call.name, call.tokens, call.ended) for call in calls] == [
        ("r1", 1, "done"),
        ("r3", 0, ""),
        ("r4", 0, ""),
    ]
    assert calls[0].prefilled_at == 1.2
    assert find_peaks(calls) == {"a": 2, "": 2}
