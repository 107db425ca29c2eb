"""The judge of played scenarios: good evidence holds, and each rule has evidence that it refuses.

Every spoiled form names the rules that must say so. Rules that it does not name may say so too, where one
fault shows in several places; a rule that no form names would be a rule that cannot fail.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from envoy_ext.domain.tool_calls import CallState
from envoy_ext.drills.scenarios.always import ALWAYS
from envoy_ext.drills.scenarios.evidence import ClientEvent, EngineLine, Evidence, ToolLine
from envoy_ext.drills.scenarios.expected import EXPECTED
from envoy_ext.drills.scenarios.judge import KNOWN, Finding, judge
from envoy_ext.drills.scenarios.model import Expected
from tests.support.scenario_evidence import (
    BEGIN,
    REVISION,
    build_answer,
    build_attempt,
    build_error,
    build_event,
    build_interrupted,
    build_refused,
    build_replayed,
)

Good = Callable[[], tuple[Expected, Evidence]]
Spoil = Callable[[Evidence], Evidence]

FIRST, SECOND = "att_00000001", "att_00000002"


def find_broken(expected: Expected, evidence: Evidence) -> set[str]:
    return {finding.rule for finding in judge(expected, evidence, REVISION) if not finding.holds}


@pytest.mark.parametrize("good", [build_replayed, build_interrupted, build_refused])
def test_good_evidence_holds(good: Good) -> None:
    assert find_broken(*good()) == set()


def test_without_an_operation_in_the_journal_nothing_holds() -> None:
    expected, evidence = build_replayed()
    findings = judge(expected, replace(evidence, operation={}), REVISION)
    assert [(finding.rule, finding.holds) for finding in findings] == [(KNOWN, False)]


def test_a_first_delta_may_be_lost_behind_its_record() -> None:
    expected, evidence = build_refused()
    assert find_broken(expected, with_operation(first_delta_sent=True)(evidence)) == set()


# --- how evidence is spoiled ------------------------------------------------------------------------


def with_events(change: Callable[[list[str]], list[str]]) -> Spoil:
    def spoil(evidence: Evidence) -> Evidence:
        first = evidence.client.events[0].time
        data = change([event.data for event in evidence.client.events])
        events = tuple(ClientEvent(first + number / 1000, one) for number, one in enumerate(data))
        return replace(evidence, client=replace(evidence.client, events=events))

    return spoil


def with_client(**changes: Any) -> Spoil:
    return lambda evidence: replace(evidence, client=replace(evidence.client, **changes))


def with_header(name: str, value: str) -> Spoil:
    def spoil(evidence: Evidence) -> Evidence:
        headers = {**evidence.client.headers, name: value}
        return replace(evidence, client=replace(evidence.client, headers=headers))

    return spoil


def with_operation(**changes: Any) -> Spoil:
    return lambda evidence: replace(evidence, operation={**evidence.operation, **changes})


def with_attempt(number: int, **changes: Any) -> Spoil:
    def spoil(evidence: Evidence) -> Evidence:
        attempts = [dict(one) for one in evidence.operation["attempts"]]
        attempts[number - 1] |= changes
        return replace(evidence, operation={**evidence.operation, "attempts": attempts})

    return spoil


def with_line(at: float, attempt_id: str, what: str, replica: str = "left", **more: Any) -> Spoil:
    def spoil(evidence: Evidence) -> Evidence:
        lines = (*evidence.engines, EngineLine(at, replica, attempt_id, what, **more))
        return replace(evidence, engines=tuple(sorted(lines, key=lambda line: line.time)))

    return spoil


def with_lines(change: Callable[[EngineLine], EngineLine | None]) -> Spoil:
    def spoil(evidence: Evidence) -> Evidence:
        changed = [change(line) for line in evidence.engines]
        return replace(evidence, engines=tuple(line for line in changed if line is not None))

    return spoil


def with_trace(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Spoil:
    def spoil(evidence: Evidence) -> Evidence:
        changed = [change(dict(line)) for line in evidence.trace]
        return replace(evidence, trace=tuple(line for line in changed if line is not None))

    return spoil


def with_tools(*lines: ToolLine) -> Spoil:
    return lambda evidence: replace(evidence, tools=lines)


def late(name: str) -> Spoil:
    """The record of it stands behind everything else."""

    def spoil(evidence: Evidence) -> Evidence:
        late = [line for line in evidence.trace if (line["kind"], line["is"]) == ("recorded", name)]
        return replace(evidence, trace=(*(line for line in evidence.trace if line not in late), *late))

    return spoil


def cut_of(what: str, attempt_id: str) -> Spoil:
    return with_lines(lambda line: None if (line.what, line.attempt_id) == (what, attempt_id) else line)


ONE = "the answer is of one attempt"
ALONE = "one publisher at a time"
FENCE = "silent behind the fence"
ENDED = "ended before the next is let go"
NONE_AFTER = "no attempt after the first delta"
ORDER = "recorded before sent"
ONCE = "each attempt reaches one engine once"
TELLS = "the journal tells what the client saw"
GOT = "the client got what was expected"
ATTEMPTS = "the attempts are those expected"
CANCELS = "the cancels are those expected"
TOOLS = "the tools did what was expected"
KEYS = "no tool acts twice under a key"
RESULTS = "results are replayed as they were"
LEDGER = "the ledger knows what was expected"
OPERATION = "the operation is as expected"
REFUSED = "the refused replays are those expected"
WEIGHTS = "answered by the named weights"

DELTA = f"data: {build_event('left-1', 'late ')}\n\n"

SPOILED: dict[str, tuple[Good, Spoil, set[str]]] = {
    "text of two attempts": (
        build_replayed,
        with_events(lambda data: [*build_answer("left-1", 2, whole=False), *data[1:]]),
        {ONE},
    ),
    "the second answer begins in its middle": (
        build_replayed,
        with_events(lambda data: [data[0], *data[2:]]),
        {ONE, GOT, TELLS},
    ),
    "an event twice": (build_replayed, with_events(lambda data: [data[0], data[1], *data[1:]]), {ONE}),
    "an event changed on its way": (
        build_replayed,
        with_events(lambda data: [data[0], data[1].replace("word0", "word9"), *data[2:]]),
        {ONE},
    ),
    "text that no engine wrote": (
        build_interrupted,
        with_events(lambda data: [*data[:-1], build_event("left-1", "more "), data[-1]]),
        {ONE},
    ),
    "the lost attempt writes on beside the second": (
        build_replayed,
        with_line(BEGIN + 2.5, FIRST, "chunk", data=DELTA),
        {ALONE, FENCE},
    ),
    "the lost attempt writes when the second is let go, and not there yet": (
        build_replayed,
        with_line(BEGIN + 1.8, FIRST, "chunk", data=DELTA),
        {FENCE},
    ),
    "the lost attempt is computed on when the second is let go": (
        build_replayed,
        with_lines(lambda line: replace(line, time=BEGIN + 1.9) if line.ended == "killed" else line),
        {ENDED},
    ),
    "the lost attempt is computed for good": (build_replayed, cut_of("end", FIRST), {ENDED}),
    "a second attempt behind the first delta": (
        build_interrupted,
        with_line(BEGIN + 5, SECOND, "start", "right"),
        {NONE_AFTER},
    ),
    "the first delta was recorded late": (build_replayed, late("FirstDeltaSent"), {ORDER}),
    "the first delta was not recorded": (
        build_replayed,
        with_trace(lambda line: None if line["is"] == "FirstDeltaSent" else line),
        {ORDER},
    ),
    "attempts were recorded late": (build_replayed, late("AttemptStarted"), {ORDER}),
    "attempts were not recorded": (
        build_replayed,
        with_trace(lambda line: None if line["is"] == "AttemptStarted" else line),
        {ORDER},
    ),
    "an attempt reached two engines": (
        build_replayed,
        with_line(BEGIN + 2.001, SECOND, "start", "left"),
        {ONCE},
    ),
    "an attempt that the journal does not know": (
        build_replayed,
        with_line(BEGIN + 1.5, "att_00000009", "start"),
        {ONCE, ORDER},
    ),
    "an attempt that the journal has elsewhere": (build_replayed, with_attempt(1, replica="right"), {ONCE}),
    "other counts": (build_replayed, with_operation(delivered_deltas=2), {TELLS}),
    "unknown counts": (build_replayed, with_operation(delivered_deltas=None), {TELLS}),
    "a first delta that nobody recorded": (build_replayed, with_operation(first_delta_sent=False), {TELLS}),
    "another number of attempts": (build_replayed, with_header("x-attempt-count", "1"), {TELLS}),
    "another operation": (build_replayed, with_header("x-operation-id", "op_00000002"), {TELLS}),
    "another code": (
        build_interrupted,
        with_operation(error={"code": "upstream_unavailable", "reason": "replica_died"}),
        {TELLS},
    ),
    "another reason": (
        build_interrupted,
        with_operation(error={"code": "upstream_decode_interrupted", "reason": "truncated"}),
        {TELLS},
    ),
    "failed, with a whole answer": (build_replayed, with_operation(state="failed"), {TELLS, OPERATION}),
    "completed, with a broken one": (
        build_interrupted,
        with_operation(state="completed"),
        {TELLS, OPERATION},
    ),
    "no end": (build_replayed, with_events(lambda data: data[:-1]), {GOT}),
    "two ends": (build_replayed, with_events(lambda data: [*data, data[-1]]), {GOT, TELLS, ONE}),
    "an end without a finish": (
        build_replayed,
        with_events(lambda data: [*data[:-2], data[-1]]),
        {GOT, TELLS},
    ),
    "cut": (build_replayed, with_client(cut=True), {GOT, TELLS}),
    "another status": (build_replayed, with_client(status=503), {GOT, TELLS}),
    "too few deltas": (
        build_interrupted,
        with_events(lambda data: [data[0], data[1], data[-1]]),
        {GOT, TELLS},
    ),
    "no word of the break": (build_interrupted, with_events(lambda data: data[:-1]), {GOT, TELLS}),
    "two words of the break": (build_interrupted, with_events(lambda data: [*data, data[-1]]), {GOT}),
    "the break is told, and text follows": (
        build_interrupted,
        with_events(lambda data: [data[0], data[1], data[-1], data[2]]),
        {GOT},
    ),
    "the break is told, and called an end": (
        build_interrupted,
        with_events(lambda data: [*data, "[DONE]"]),
        {GOT, ONE},
    ),
    "the break is told in other words": (
        build_interrupted,
        with_events(lambda data: [*data[:-1], build_error(reason="truncated")]),
        {GOT, TELLS},
    ),
    "a refusal without a word": (build_refused, with_client(refusal=None), {GOT, TELLS}),
    "a stream in place of a refusal": (
        build_refused,
        with_client(events=(ClientEvent(BEGIN + 4, build_event("left-1")),)),
        {GOT, ONE},
    ),
    "another outcome": (build_replayed, with_attempt(1, outcome="network_partition"), {ATTEMPTS}),
    "another replica": (
        build_replayed,
        lambda evidence: with_attempt(2, replica="near")(
            with_lines(lambda line: replace(line, replica="near") if line.attempt_id == SECOND else line)(
                evidence
            )
        ),
        {ATTEMPTS},
    ),
    "a third attempt": (
        build_replayed,
        lambda evidence: with_operation(
            attempts=[*evidence.operation["attempts"], build_attempt(3, "left", "completed")]
        )(evidence),
        {ATTEMPTS, TELLS},
    ),
    "nothing was computed": (build_replayed, cut_of("token", FIRST), {ATTEMPTS}),
    "nothing was written": (build_replayed, cut_of("chunk", FIRST), {ATTEMPTS}),
    "a cancel that nobody expects": (
        build_replayed,
        with_lines(
            lambda line: replace(line, ended="client_disconnected") if line.ended == "killed" else line
        ),
        {CANCELS},
    ),
    "a tool that nobody expects": (build_replayed, with_tools(ToolLine(BEGIN, "pay", "k1", 1)), {TOOLS}),
    "a tool that acts twice under one key": (
        build_replayed,
        with_tools(ToolLine(BEGIN, "pay", "k1", 1), ToolLine(BEGIN, "pay", "k1", 1)),
        {KEYS, TOOLS},
    ),
    "a tool that got no key": (
        build_replayed,
        with_tools(ToolLine(BEGIN, "pay", "", 1)),
        {KEYS},
    ),
    "a result out of the ledger that no tool gave": (
        build_replayed,
        with_line(BEGIN + 2.5, SECOND, "tool", "right", tool="pay", status=200, replayed=True),
        {RESULTS, TOOLS},
    ),
    "a call in the ledger that nobody expects": (
        build_replayed,
        with_operation(tool_calls=[{"tool": "pay", "state": "recorded"}]),
        {LEDGER},
    ),
    "another ending": (build_replayed, with_operation(ending="unknown"), {OPERATION}),
    "a replay was refused in silence": (
        build_refused,
        with_trace(lambda line: None if line["is"] == "ReplayRefused" else line),
        {REFUSED},
    ),
    "a replay was refused for another reason": (
        build_refused,
        with_trace(lambda line: {**line, "code": "retry_budget_exhausted"} if "code" in line else line),
        {REFUSED},
    ),
    "other weights": (build_replayed, with_operation(model_revision="weights-2"), {WEIGHTS}),
    "nameless weights": (build_replayed, with_operation(model_revision=None), {WEIGHTS}),
    "other weights in the answer": (
        build_replayed,
        with_events(lambda data: [one.replace(REVISION, "weights-2") for one in data]),
        {WEIGHTS},
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_evidence_is_refused_by_the_rule_that_looks_at_it(name: str) -> None:
    good, spoil, rules = SPOILED[name]
    expected, evidence = good()
    assert rules <= find_broken(expected, spoil(evidence))


@pytest.mark.parametrize("name", SPOILED)
def test_what_must_hold_always_is_judged_without_an_expectation(name: str) -> None:
    good, spoil, rules = SPOILED[name]
    _, evidence = good()
    assert judge(None, evidence, REVISION) == tuple(Finding(rule, True) for rule in ALWAYS)
    broken = {finding.rule for finding in judge(None, spoil(evidence), REVISION) if not finding.holds}
    assert rules & set(ALWAYS) <= broken


def test_every_rule_has_evidence_that_it_refuses() -> None:
    assert {rule for _, _, rules in SPOILED.values() for rule in rules} == {*ALWAYS, *EXPECTED}


@pytest.mark.parametrize(
    ("tools", "holds"),
    [
        ((), False),
        ((ToolLine(BEGIN, "pay", "k1", 1),), True),
        ((ToolLine(BEGIN, "look", "k1", 1),), False),
        ((ToolLine(BEGIN, "pay", "k1", 1), ToolLine(BEGIN, "pay", "k2", 1)), False),
    ],
)
def test_tools_are_to_have_done_what_is_expected(tools: tuple[ToolLine, ...], holds: bool) -> None:
    expected, evidence = build_replayed()
    expected = expected.model_copy(update={"executions": ("pay",)})
    assert (TOOLS not in find_broken(expected, replace(evidence, tools=tools))) is holds


@pytest.mark.parametrize(("state", "broken"), [("recorded", set()), ("unknown", {LEDGER})])
def test_the_ledger_is_to_know_what_is_expected(state: str, broken: set[str]) -> None:
    expected, evidence = build_replayed()
    expected = expected.model_copy(update={"tool_calls": (CallState.RECORDED,)})
    call = {"tool": "pay", "state": state}
    assert find_broken(expected, with_operation(tool_calls=[call])(evidence)) == broken


def test_an_attempt_that_was_not_let_go_has_tried_no_replica() -> None:
    expected, evidence = build_refused()
    refused = build_attempt(2, "right", "refused")
    told = with_operation(attempts=[*evidence.operation["attempts"], refused])(evidence)
    assert find_broken(expected, told) == {ATTEMPTS}


def test_two_executions_under_one_key_are_one_too_many_even_where_two_are_expected() -> None:
    expected, evidence = build_replayed()
    expected = expected.model_copy(update={"executions": ("pay", "pay")})
    for second, broken in (("k1", {KEYS}), ("k2", set())):
        tools = (ToolLine(BEGIN, "pay", "k1", 1), ToolLine(BEGIN, "pay", second, 2))
        assert find_broken(expected, replace(evidence, tools=tools)) == broken


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        ({}, set()),
        ({"replayed": False}, {TOOLS}),
        ({"data": '{"execution": 2}'}, {RESULTS}),
        ({"data": "half of an answer"}, {RESULTS}),
        ({"tool": "mail"}, {RESULTS}),
    ],
)
def test_a_result_out_of_the_ledger_is_one_of_its_tool(given: dict[str, Any], broken: set[str]) -> None:
    expected, evidence = build_replayed()
    expected = expected.model_copy(update={"results_replayed": 1, "executions": ("pay",)})
    evidence = with_tools(ToolLine(BEGIN + 1, "pay", "k1", 1))(evidence)
    line = {"tool": "pay", "status": 200, "data": '{"execution": 1}', "replayed": True, **given}
    evidence = with_line(BEGIN + 2.001, SECOND, "tool", "right", **line)(evidence)
    assert find_broken(expected, evidence) == broken


def test_what_is_wrong_is_said_without_the_text_of_the_answer() -> None:
    for good, spoil, _ in SPOILED.values():
        expected, evidence = good()
        said = [finding.said for finding in judge(expected, spoil(evidence), REVISION)]
        assert "word" not in json.dumps(said)
