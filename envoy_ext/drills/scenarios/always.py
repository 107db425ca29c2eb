"""What must hold of the evidence whatever was played; no IO, no clock."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.drills.scenarios.case import Case
from envoy_ext.drills.scenarios.evidence import read_json


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
    # One that was not let go has tried no replica.
    tried = sum(one["outcome"] != AttemptOutcome.REFUSED for one in operation["attempts"])
    pairs: dict[str, tuple[Any, Any]] = {
        "deltas": (len(client.deltas), operation["delivered_deltas"]),
        # Recorded before it is sent, so one that was lost on its way stands there too.
        "first delta": (bool(client.deltas), bool(client.deltas) and operation["first_delta_sent"]),
        "attempts": (client.headers.get("x-attempt-count"), str(tried)),
        "operation": (client.headers.get("x-operation-id"), operation["operation_id"]),
        "whole": (client.whole, operation["state"] == "completed"),
        "code": (client.error.get("code"), told.get("code")),
        "reason": (client.error.get("reason"), told.get("reason")),
    }
    wrong = [f"{name}: {seen} and {said}" for name, (seen, said) in pairs.items() if seen != said]
    return f"client and journal differ in {'; '.join(wrong)}" if wrong else ""


def _no_tool_acts_twice_under_a_key(case: Case) -> str:
    """Each call that a tool was sent had a key, and no key came twice: none of the tools is idempotent."""
    keys = [line.key for line in case.evidence.tools]
    return "" if len(set(keys)) == len(keys) and all(keys) else "a call was executed twice, or without a key"


def _results_are_replayed_as_they_were(case: Case) -> str:
    """What an engine is given out of the ledger is the answer to an execution in that tool's own log."""
    given = {(line.tool, line.number) for line in case.evidence.tools}
    replayed = [line for line in case.evidence.engines if line.replayed]
    strange = [line for line in replayed if (line.tool, read_json(line.data).get("execution")) not in given]
    return f"{len(strange)} results out of the ledger are none that a tool gave" if strange else ""


def _answered_by_the_named_weights(case: Case) -> str:
    """Engines and journal name the model revision that the scenario names, wherever they name one."""
    named = {read_json(event.data).get("system_fingerprint") for event in case.evidence.client.deltas}
    named.add(case.evidence.operation["model_revision"])
    others = named - {case.model_revision, None}
    if others or (case.evidence.client.deltas and None in named):
        return f"the answer is of {sorted(str(one) for one in named)}"
    return ""


ALWAYS: Final[dict[str, Callable[[Case], str]]] = {
    "the answer is of one attempt": _answer_of_one_attempt,
    "one publisher at a time": _one_publisher_at_a_time,
    "silent behind the fence": _silent_behind_the_fence,
    "ended before the next is let go": _ended_before_the_next,
    "no attempt after the first delta": _no_attempt_after_the_first_delta,
    "recorded before sent": _recorded_before_sent,
    "each attempt reaches one engine once": _each_attempt_reaches_one_engine_once,
    "the journal tells what the client saw": _journal_tells_what_the_client_saw,
    "no tool acts twice under a key": _no_tool_acts_twice_under_a_key,
    "results are replayed as they were": _results_are_replayed_as_they_were,
    "answered by the named weights": _answered_by_the_named_weights,
}
"""Rules by their names; each says what is wrong, or nothing."""
