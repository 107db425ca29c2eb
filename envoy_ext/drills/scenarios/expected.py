"""What a scenario expects of the evidence; no IO, no clock."""

from collections.abc import Callable
from typing import Final, assert_never

from envoy_ext.drills.scenarios.case import Case
from envoy_ext.drills.scenarios.evidence import DONE, read_delta
from envoy_ext.drills.scenarios.model import Expected


def _client_got_what_was_expected(case: Case, expected: Expected) -> str:
    """The kind of answer, its length and its end."""
    client = case.evidence.client
    got = (client.status, len(client.deltas), client.cut)
    if got != (expected.status, expected.delivered, False):
        return f"HTTP {client.status}, {len(client.deltas)} deltas, cut: {client.cut}"
    dones, ends = [event.data for event in client.events].count(DONE), len(client.errors)
    match expected.answer:
        case "whole":
            good = client.whole and dones == 1 and client.events[-1].data == DONE
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


def _attempts_are_those_expected(case: Case, expected: Expected) -> str:
    """How many, how each ended, and how far its engine had come."""
    evidence, found = case.evidence, []
    for one in evidence.operation["attempts"]:
        computed = len(evidence.read_engine(one["attempt_id"], "token"))
        written = sum(bool(read_delta(data)) for data in evidence.read_published(one["attempt_id"]))
        found.append((one["outcome"], one["replica"], computed, written))
    wanted = [(one.outcome.value, one.replica, one.computed, one.published) for one in expected.attempts]
    same = len(found) == len(wanted) and all(
        (has[0], has[2:]) == (wants[0], wants[2:]) and wants[1] in (None, has[1])
        for has, wants in zip(found, wanted, strict=True)
    )
    return "" if same else f"outcome, replica, computed, published: {found}"


def _cancels_are_those_expected(case: Case, expected: Expected) -> str:
    """How many attempts their engines were told to end."""
    ends = [line for line in case.evidence.engines if line.what == "end"]
    cancels = sum(line.ended == "client_disconnected" for line in ends)
    return "" if cancels == expected.cancels else f"{cancels} cancels"


def _tools_did_what_was_expected(case: Case, expected: Expected) -> str:
    """What the tools have done, and how many of their answers engines were given again."""
    executions = [line.tool for line in case.evidence.tools]
    replayed = sum(line.replayed for line in case.evidence.engines)
    same = (executions, replayed) == (list(expected.executions), expected.results_replayed)
    return "" if same else f"executions: {executions}, and {replayed} results out of the ledger"


def _ledger_knows_what_was_expected(case: Case, expected: Expected) -> str:
    """The state of each call, as the operations API tells it."""
    calls = [(one["tool"], one["state"]) for one in case.evidence.operation["tool_calls"] or ()]
    wanted = [state.value for state in expected.tool_calls]
    return "" if [state for _, state in calls] == wanted else f"the ledger says {calls}"


def _operation_is_as_expected(case: Case, expected: Expected) -> str:
    """The journal's last word."""
    operation = case.evidence.operation
    found = (operation["state"], operation["ending"])
    return "" if found == (expected.state, expected.ending) else f"the journal says {found}"


def _refused_replays_are_those_expected(case: Case, expected: Expected) -> str:
    """The codes with which replays were not allowed."""
    codes = [line["code"] for line in case.evidence.read_trace("note", "ReplayRefused")]
    return "" if codes == list(expected.replays_refused) else f"replays refused with {codes}"


EXPECTED: Final[dict[str, Callable[[Case, Expected], str]]] = {
    "the client got what was expected": _client_got_what_was_expected,
    "the attempts are those expected": _attempts_are_those_expected,
    "the cancels are those expected": _cancels_are_those_expected,
    "the tools did what was expected": _tools_did_what_was_expected,
    "the ledger knows what was expected": _ledger_knows_what_was_expected,
    "the operation is as expected": _operation_is_as_expected,
    "the refused replays are those expected": _refused_replays_are_those_expected,
}
"""Rules by their names; each says what is wrong, or nothing."""
