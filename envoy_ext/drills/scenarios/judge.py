"""Whether the evidence of a played scenario holds what was expected of it, rule by rule; no IO, no clock.

Each rule looks at one thing and can fail by itself. Some hold whatever was played (nobody publishes
beside another attempt); the others compare with what the scenario expects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, assert_never

from envoy_ext.drills.scenarios.evidence import DONE, Evidence, read_delta, read_json
from envoy_ext.drills.scenarios.model import Expected


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says."""

    rule: str
    holds: bool
    said: str = ""
    """What is wrong; empty when nothing is."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged."""

    expected: Expected
    evidence: Evidence
    model_revision: str


def judge(expected: Expected, evidence: Evidence, model_revision: str) -> tuple[Finding, ...]:
    """What every rule says, in the order of `RULES`."""
    case = Case(expected, evidence, model_revision)
    said = {name: rule(case) for name, rule in RULES.items()}
    return tuple(Finding(name, not wrong, wrong) for name, wrong in said.items())


# --- what holds whatever was played ---------------------------------------------------------------


def _answer_of_one_attempt(case: Case) -> str:
    """What the client was given is what one attempt has written, from its beginning, event by event."""
    given = [event.data for event in case.evidence.client.answer]
    if not given:
        return ""
    sources = [one for one in case.evidence.asked if _begins_with(case.evidence.read_published(one), given)]
    return "" if len(sources) == 1 else f"the client's events are those of {len(sources)} attempts"


def _begins_with(whole: Sequence[str], part: Sequence[str]) -> bool:
    return list(whole[: len(part)]) == list(part)


def _one_publisher_at_a_time(case: Case) -> str:
    """No engine writes for an attempt once a later one has reached an engine."""
    evidence = case.evidence
    for earlier, later in pairwise(evidence.asked):
        begun = evidence.read_engine(later, "start")[0].time
        late = [line for line in evidence.read_engine(earlier, "chunk") if line.time >= begun]
        if late:
            return f"{earlier} wrote {len(late)} chunks beside {later}"
    return ""


def _silent_behind_the_fence(case: Case) -> str:
    """No engine writes for an attempt once the sidecar has let a later one go."""
    evidence = case.evidence
    let_go = {line["attempt_id"]: line["time"] for line in evidence.read_trace("reply", "StartAttempt")}
    for earlier, later in pairwise(let_go):
        late = [line for line in evidence.read_engine(earlier, "chunk") if line.time >= let_go[later]]
        if late:
            return f"{earlier} wrote {len(late)} chunks behind its fence"
    return ""


def _ended_before_the_next(case: Case) -> str:
    """An engine has let an attempt go before the sidecar lets a later one go.

    So it is where a replica dies, fails, or has a worker that holds its leases. Without a worker a replica
    that nobody can reach may compute on, and this rule would say so.
    """
    evidence = case.evidence
    let_go = {line["attempt_id"]: line["time"] for line in evidence.read_trace("reply", "StartAttempt")}
    for earlier, later in pairwise(let_go):
        ends = [line.time for line in evidence.read_engine(earlier, "end")]
        if evidence.read_engine(earlier, "start") and not any(time < let_go[later] for time in ends):
            return f"{earlier} was still with its engine when {later} was let go"
    return ""


def _no_attempt_after_the_first_delta(case: Case) -> str:
    """Nothing starts anywhere once the client has read something."""
    deltas = case.evidence.client.deltas
    if not deltas:
        return ""
    late = [line for line in case.evidence.engines if line.what == "start" and line.time >= deltas[0].time]
    return f"{len(late)} attempts started when the client had a delta" if late else ""


def _recorded_before_sent(case: Case) -> str:
    """The journal had each attempt before it was let go, and the first delta before that was let out.

    By the order of the trace, which is finer than what engines and clients can see.
    """
    evidence = case.evidence
    order = [(line["kind"], line["is"], line.get("attempt_id")) for line in evidence.trace]
    asked: list[str | None] = [*evidence.asked]
    pairs = [(("recorded", "AttemptStarted", one), ("reply", "StartAttempt", one)) for one in asked]
    if evidence.client.deltas:
        sent = next((one[2] for one in order if one[:2] == ("recorded", "FirstDeltaSent")), None)
        pairs.append((("recorded", "FirstDeltaSent", sent), ("reply", "ReleaseAttempt", sent)))
    for record, reply in pairs:
        if record not in order or reply not in order or order.index(record) > order.index(reply):
            return f"{reply[1]} of {reply[2]} without {record[1]} before it"
    return ""


def _each_attempt_reaches_one_engine_once(case: Case) -> str:
    """No attempt is begun twice, and the journal names its replica."""
    told = {one["attempt_id"]: one["replica"] for one in case.evidence.operation["attempts"]}
    for attempt_id in case.evidence.asked:
        starts = [line.replica for line in case.evidence.read_engine(attempt_id, "start")]
        if starts != [told.get(attempt_id)]:
            return f"{attempt_id} started at {starts}, and the journal says {told.get(attempt_id)}"
    return ""


def _journal_tells_what_the_client_saw(case: Case) -> str:
    """Counts, ids and the error are the same on both sides."""
    client, operation = case.evidence.client, case.evidence.operation
    told = operation["error"] or {}
    pairs: dict[str, tuple[Any, Any]] = {
        "deltas": (len(client.deltas), operation["delivered_deltas"]),
        "first delta": (bool(client.deltas), operation["first_delta_sent"]),
        "attempts": (client.headers.get("x-attempt-count"), str(len(operation["attempts"]))),
        "operation": (client.headers.get("x-operation-id"), operation["operation_id"]),
        "whole": (_is_whole(case.evidence), operation["state"] == "completed"),
        "code": (client.error.get("code"), told.get("code")),
        "reason": (client.error.get("reason"), told.get("reason")),
    }
    wrong = [f"{name}: {seen} and {said}" for name, (seen, said) in pairs.items() if seen != said]
    return f"client and journal differ in {'; '.join(wrong)}" if wrong else ""


def _is_whole(evidence: Evidence) -> bool:
    client = evidence.client
    finished = [
        choice.get("finish_reason")
        for event in client.events
        for choice in read_json(event.data).get("choices", ())
    ]
    clean = client.status == 200 and not client.cut and not client.errors
    return clean and any(finished) and [event.data for event in client.events].count(DONE) == 1


# --- what this scenario expects -------------------------------------------------------------------


def _client_got_what_was_expected(case: Case) -> str:
    """The kind of answer, its length and its end."""
    expected, client = case.expected, case.evidence.client
    got = (client.status, len(client.deltas), client.cut)
    if got != (expected.status, expected.delivered, False):
        return f"HTTP {client.status}, {len(client.deltas)} deltas, cut: {client.cut}"
    dones, ends = [event.data for event in client.events].count(DONE), len(client.errors)
    match expected.answer:
        case "whole":
            good = _is_whole(case.evidence) and client.events[-1].data == DONE
        case "interrupted":
            good = (dones, ends) == (0, 1) and client.events[-1].error is not None
        case "refused":
            good = not client.events and client.refusal is not None
        case _:
            assert_never(expected.answer)
    if not good:
        return f"not {expected.answer}: {len(client.events)} events, {ends} of them an error, {dones} [DONE]"
    named = (client.error.get("code"), client.error.get("reason"))
    return "" if named == (expected.code, expected.reason) else f"its error is {named}"


def _attempts_are_those_expected(case: Case) -> str:
    """How many, how each ended, and how far its engine had come."""
    evidence, found = case.evidence, []
    for one in evidence.operation["attempts"]:
        computed = len(evidence.read_engine(one["attempt_id"], "token"))
        written = sum(bool(read_delta(data)) for data in evidence.read_published(one["attempt_id"]))
        found.append((one["outcome"], one["replica"], computed, written))
    wanted = [(one.outcome.value, one.replica, one.computed, one.published) for one in case.expected.attempts]
    same = len(found) == len(wanted) and all(
        (has[0], has[2:]) == (wants[0], wants[2:]) and wants[1] in (None, has[1])
        for has, wants in zip(found, wanted, strict=True)
    )
    return "" if same else f"outcome, replica, computed, published: {found}"


def _cancels_are_those_expected(case: Case) -> str:
    """How many attempts their engines were told to end."""
    ends = [line for line in case.evidence.engines if line.what == "end"]
    cancels = sum(line.ended == "client_disconnected" for line in ends)
    return "" if cancels == case.expected.cancels else f"{cancels} cancels"


def _tools_did_what_was_expected_once(case: Case) -> str:
    """The tool's own log has each execution, and none twice under one key."""
    tools = case.evidence.tools
    if [line.tool for line in tools] != list(case.expected.executions):
        return f"executions: {[line.tool for line in tools]}"
    keys = [line.key for line in tools]
    return "" if len(set(keys)) == len(keys) and all(keys) else "a call was executed twice, or without a key"


def _results_are_replayed_as_they_were(case: Case) -> str:
    """What an engine is given out of the ledger is what the one before it was given by the tool."""
    answers = [line for line in case.evidence.engines if line.what == "tool"]
    replayed = [line for line in answers if line.replayed]
    if len(replayed) != case.expected.results_replayed:
        return f"{len(replayed)} results came out of the ledger"
    made = {(line.tool, line.status, line.data) for line in answers if not line.replayed}
    strange = [line for line in replayed if (line.tool, line.status, line.data) not in made]
    return f"{len(strange)} results out of the ledger are none that a tool gave" if strange else ""


def _operation_is_as_expected(case: Case) -> str:
    """The journal's last word."""
    operation = case.evidence.operation
    found = (operation["state"], operation["ending"])
    return "" if found == (case.expected.state, case.expected.ending) else f"the journal says {found}"


def _refused_replays_are_those_expected(case: Case) -> str:
    """The codes with which replays were not allowed."""
    codes = [line["code"] for line in case.evidence.read_trace("note", "ReplayRefused")]
    return "" if codes == list(case.expected.replays_refused) else f"replays refused with {codes}"


def _answered_by_the_named_weights(case: Case) -> str:
    """Engines and journal name the model revision that the scenario names, wherever they name one."""
    named = {read_json(event.data).get("system_fingerprint") for event in case.evidence.client.deltas}
    named.add(case.evidence.operation["model_revision"])
    others = named - {case.model_revision, None}
    if others or (case.evidence.client.deltas and None in named):
        return f"the answer is of {sorted(str(one) for one in named)}"
    return ""


RULES: Final[dict[str, Callable[[Case], str]]] = {
    "the answer is of one attempt": _answer_of_one_attempt,
    "one publisher at a time": _one_publisher_at_a_time,
    "silent behind the fence": _silent_behind_the_fence,
    "ended before the next is let go": _ended_before_the_next,
    "no attempt after the first delta": _no_attempt_after_the_first_delta,
    "recorded before sent": _recorded_before_sent,
    "each attempt reaches one engine once": _each_attempt_reaches_one_engine_once,
    "the journal tells what the client saw": _journal_tells_what_the_client_saw,
    "the client got what was expected": _client_got_what_was_expected,
    "the attempts are those expected": _attempts_are_those_expected,
    "the cancels are those expected": _cancels_are_those_expected,
    "the tools did what was expected, once": _tools_did_what_was_expected_once,
    "results are replayed as they were": _results_are_replayed_as_they_were,
    "the operation is as expected": _operation_is_as_expected,
    "the refused replays are those expected": _refused_replays_are_those_expected,
    "answered by the named weights": _answered_by_the_named_weights,
}
"""Every rule by its name; each says what is wrong, or nothing."""
