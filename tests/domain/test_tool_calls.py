"""No call that acts is let out twice under one id, unless it is known that it never reached its tool."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.records import Record
from envoy_ext.domain.tool_calls import (
    CallAnswered,
    CallEnd,
    CallGranted,
    CallRefusal,
    CallRefused,
    CallState,
    Claim,
    NewCall,
    ToolCall,
    decide_claim,
    end_call,
    find_not_kept,
    find_unknown,
    may_begin_calls,
    mint_call_id,
)
from tests.support.records import attempt_ended, attempt_started, begun, ended
from tests.support.tool_builders import made

LEDGER = OperationId("op_1")
FIRST, SECOND = AttemptId("att_1"), AttemptId("att_2")
S, R = CallState, CallRefusal


def want(
    attempt: str = "att_2", what: str = "mail", *, keyed: bool = False, idempotent: bool = False
) -> NewCall:
    return NewCall(LEDGER, AttemptId(attempt), 2.0, "mail", what, f"of {what}", keyed, idempotent)


def name(claim: Claim) -> str:
    match claim:
        case CallGranted():
            return "granted"
        case CallAnswered():
            return "answered"
        case CallRefused():
            return str(claim.why)


@pytest.mark.parametrize(
    ("state", "wanted", "outcome"),
    [
        # A later attempt makes the call of an earlier one.
        (S.BEGUN, want(), R.OUTCOME_UNKNOWN),
        (S.UNKNOWN, want(), R.OUTCOME_UNKNOWN),
        (S.NOT_KEPT, want(), R.RESULT_NOT_KEPT),
        (S.NOT_SENT, want(), "granted"),
        (S.RECORDED, want(), "answered"),
        # The tool may be called twice.
        (S.BEGUN, want(idempotent=True), "granted"),
        (S.UNKNOWN, want(idempotent=True), "granted"),
        (S.NOT_KEPT, want(idempotent=True), "granted"),
        (S.RECORDED, want(idempotent=True), "answered"),
        # The same attempt makes an equal call: a second one, unless it may be a repetition.
        (S.BEGUN, want("att_1"), "granted"),
        (S.RECORDED, want("att_1"), "granted"),
        (S.NOT_KEPT, want("att_1"), "granted"),
        (S.NOT_SENT, want("att_1"), "granted"),
        (S.UNKNOWN, want("att_1"), R.OUTCOME_UNKNOWN),
        (S.UNKNOWN, want("att_1", idempotent=True), "granted"),
        # Under a key of its own it is the same call, whoever makes it.
        (S.BEGUN, want("att_1", keyed=True), R.IN_FLIGHT),
        (S.UNKNOWN, want("att_1", keyed=True), R.OUTCOME_UNKNOWN),
        (S.NOT_KEPT, want("att_1", keyed=True), R.RESULT_NOT_KEPT),
        (S.NOT_SENT, want("att_1", keyed=True), "granted"),
        (S.RECORDED, want("att_1", keyed=True), "answered"),
        (S.BEGUN, want(keyed=True), R.OUTCOME_UNKNOWN),
        # Another call than that of the earlier attempt.
        (S.BEGUN, want(what="other"), R.DIVERGED),
        (S.UNKNOWN, want(what="other"), R.DIVERGED),
        (S.NOT_KEPT, want(what="other"), R.DIVERGED),
        (S.RECORDED, want(what="other"), R.DIVERGED),
        (S.NOT_SENT, want(what="other"), "granted"),
        (S.RECORDED, want(what="other", idempotent=True), "granted"),
        (S.RECORDED, want("att_1", what="other"), "granted"),
    ],
)
def test_every_state_of_a_call_and_every_way_to_make_it_again(
    state: CallState, wanted: NewCall, outcome: str
) -> None:
    assert name(decide_claim(LEDGER, [made(state)], wanted)) == outcome


def test_a_key_that_comes_with_other_arguments_is_refused() -> None:
    wanted = replace(want(keyed=True), arguments_sha256="other")
    refused = decide_claim(LEDGER, [made(S.RECORDED)], wanted)
    assert refused == CallRefused(R.KEY_REUSED, made(S.RECORDED).call_id)


def test_a_call_that_is_made_again_is_begun_anew_under_its_id() -> None:
    old = made(S.NOT_SENT, ended_at=1.5, status=503)
    claim = decide_claim(LEDGER, [old], want())
    assert isinstance(claim, CallGranted)
    assert claim.call == replace(
        old, attempts=(FIRST, SECOND), state=S.BEGUN, begun_at=2.0, ended_at=None, status=None, grants=2
    )


def test_equal_calls_are_answered_in_their_order() -> None:
    one = made(S.RECORDED)
    two = replace(one, call_id=mint_call_id(LEDGER, "mail", 2), ordinal=2)
    first = decide_claim(LEDGER, [one, two], want())
    assert isinstance(first, CallAnswered)
    second = decide_claim(LEDGER, [first.call, two], want())
    assert isinstance(second, CallAnswered)
    assert (first.call.call_id, second.call.call_id) == (one.call_id, two.call_id)
    third = decide_claim(LEDGER, [first.call, second.call], want())
    assert isinstance(third, CallGranted)
    assert third.call.ordinal == 3


@pytest.mark.parametrize(
    ("calls", "unknown", "not_kept"),
    [
        ([], False, False),
        ([made(S.RECORDED), made(S.NOT_SENT)], False, False),
        ([made(S.RECORDED), made(S.BEGUN)], True, False),
        ([made(S.UNKNOWN)], True, False),
        ([made(S.NOT_KEPT)], False, True),
        ([made(S.UNKNOWN, idempotent=True), made(S.NOT_KEPT, idempotent=True)], False, False),
    ],
)
def test_what_forbids_a_replay(calls: list[ToolCall], unknown: bool, not_kept: bool) -> None:
    assert (find_unknown(calls) is not None, find_not_kept(calls) is not None) == (unknown, not_kept)


ENDS = (S.RECORDED, S.NOT_KEPT, S.NOT_SENT, S.UNKNOWN)


class Replays(RuleBasedStateMachine):
    """One operation, its attempts, and a tool. Ends of calls may come late, twice, in any order, or never:
    a gateway that dies takes those with it that were on their way."""

    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = [begun("op_1")]
        self.calls: dict[str, ToolCall] = {}
        self.number = 0
        self.let_out: Counter[str] = Counter()
        self.kept_in: Counter[str] = Counter()
        """Of those let out: the ones that were told not to have left."""
        self.start_attempt()

    def _store(self, claim: Claim) -> None:
        """As a store does it: what a claim says is the ledger's from then on."""
        if not isinstance(claim, CallRefused):
            self.calls[claim.call.call_id] = claim.call

    @rule()
    def start_attempt(self) -> None:
        self.number += 1
        self.records.append(attempt_started("op_1", f"att_{self.number}", self.number))

    @rule()
    def end_attempt(self) -> None:
        self.records.append(attempt_ended("op_1", f"att_{self.number}"))

    @rule(
        target=grants,
        attempt=st.integers(1, 4),
        what=st.sampled_from("ab"),
        keyed=st.booleans(),
        idempotent=st.sampled_from([False, False, False, True]),
    )
    def call(self, attempt: int, what: str, keyed: bool, idempotent: bool) -> CallEnd | None:
        # A tool is idempotent or it is not: what it is called by says which.
        what = f"{what}{'-key' if keyed else ''}{'-safe' if idempotent else ''}"
        wanted = want(f"att_{attempt}", what, keyed=keyed, idempotent=idempotent)
        if not may_begin_calls(build_operation(self.records), wanted.attempt_id):
            return None
        claim = decide_claim(LEDGER, list(self.calls.values()), wanted)
        self._store(claim)
        if not isinstance(claim, CallGranted):
            return None
        if not idempotent:
            self.let_out[claim.call.call_id] += 1
        return CallEnd(claim.call.call_id, claim.call.grants, 3.0, S.UNKNOWN)

    @rule(end=grants, state=st.sampled_from(ENDS))
    def end(self, end: CallEnd | None, state: CallState) -> None:
        if end is None:
            return
        before = self.calls[end.call_id]
        after = end_call(before, replace(end, state=state))
        self.calls[end.call_id] = after
        if after != before and state is S.NOT_SENT and not after.idempotent:
            self.kept_in[end.call_id] += 1

    @precondition(lambda self: self.number > 1)
    @rule()
    def replay_what_was_done(self) -> None:
        """Where nothing forbids it, a new attempt that calls as the ledger tells is answered to the end."""
        calls = list(self.calls.values())
        if find_unknown(calls) is not None or find_not_kept(calls) is not None:
            return
        self.start_attempt()
        for call in calls:
            wanted = want(
                f"att_{self.number}",
                call.fingerprint,
                keyed="-key" in call.fingerprint,
                idempotent=call.idempotent,
            )
            if call.state is S.RECORDED:
                claim = decide_claim(LEDGER, list(self.calls.values()), wanted)
                assert isinstance(claim, CallAnswered), claim
                self._store(claim)

    @invariant()
    def no_call_that_acts_is_let_out_twice(self) -> None:
        for call_id, count in self.let_out.items():
            assert count <= 1 + self.kept_in[call_id], call_id

    @invariant()
    def ids_are_those_of_the_calls(self) -> None:
        for call_id, call in self.calls.items():
            assert call_id == mint_call_id(LEDGER, call.fingerprint, call.ordinal)


TestReplays = Replays.TestCase


def test_only_the_newest_attempt_of_a_running_operation_acts() -> None:
    records: list[Record] = [begun("op_1"), attempt_started("op_1", "att_1", 1)]
    assert may_begin_calls(build_operation(records), FIRST)
    records.append(attempt_started("op_1", "att_2", 2))
    assert [may_begin_calls(build_operation(records), one) for one in (FIRST, SECOND)] == [False, True]
    records.append(attempt_ended("op_1", "att_2"))
    assert not may_begin_calls(build_operation(records), SECOND)
    records.append(ended("op_1"))
    assert not may_begin_calls(build_operation(records), SECOND)
    assert not may_begin_calls(None, FIRST)
