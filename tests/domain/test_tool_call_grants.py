"""May an attempt make this call? Each state of a call in the ledger, with each way to want it."""

from dataclasses import replace

import pytest

from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.outcomes import AttemptOutcome
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
    check_end,
    decide_claim,
    end_call,
    may_begin_calls,
    mint_call_id,
)
from tests.support.records import START, attempt_ended, attempt_started, begun, ended, first_delta_sent, fold

LEDGER = OperationId("op_1")
GRANTED, ANSWERED, SECOND = "granted again", "answered", "granted as another call"


def wanted(attempt: str = "att_1", what: str = "mail", **changes: object) -> NewCall:
    call = NewCall(
        operation_id=LEDGER,
        attempt_id=AttemptId(attempt),
        at=START,
        tool=what,
        fingerprint=f"{what}()",
        arguments_sha256=f"of {what}",
        keyed=False,
        idempotent=False,
    )
    return replace(call, **changes)  # type: ignore[arg-type]


def grant(calls: list[ToolCall], call: NewCall, state: CallState = CallState.BEGUN) -> ToolCall:
    """The ledger after a call that was let through, and has come to this state."""
    claim = decide_claim(LEDGER, calls, call)
    assert isinstance(claim, CallGranted), claim
    made = claim.call
    if state is not CallState.BEGUN:
        made = end_call(made, CallEnd(made.call_id, made.grants, START + 1, state))
    calls[:] = [*(one for one in calls if one.call_id != made.call_id), made]
    return made


def say(claim: Claim, known: ToolCall) -> str:
    match claim:
        case CallGranted():
            again = claim.call.call_id == known.call_id
            assert claim.call.grants == (known.grants + 1 if again else 1)
            assert claim.call.state is CallState.BEGUN
            return GRANTED if again else SECOND
        case CallAnswered():
            assert claim.call.call_id == known.call_id
            assert (claim.call.state, claim.call.grants) == (known.state, known.grants)
            return ANSWERED
        case CallRefused():
            assert claim.call_id == known.call_id
            return claim.why


# --- one call that is known, and wanted again -------------------------------------------------

UNKNOWN, NOT_KEPT = CallRefusal.OUTCOME_UNKNOWN, CallRefusal.RESULT_NOT_KEPT


@pytest.mark.parametrize(
    ("state", "expected", "where_idempotent"),
    [
        (CallState.BEGUN, UNKNOWN, GRANTED),
        (CallState.RECORDED, ANSWERED, ANSWERED),
        (CallState.NOT_KEPT, NOT_KEPT, GRANTED),
        (CallState.NOT_SENT, GRANTED, GRANTED),
        (CallState.UNKNOWN, UNKNOWN, GRANTED),
    ],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_later_attempt_wants_the_call_of_an_earlier_one(
    state: CallState, expected: str, where_idempotent: str, keyed: bool
) -> None:
    for idempotent, outcome in ((False, expected), (True, where_idempotent)):
        calls: list[ToolCall] = []
        known = grant(calls, wanted(keyed=keyed, idempotent=idempotent), state)
        claim = decide_claim(LEDGER, calls, wanted("att_2", keyed=keyed, idempotent=idempotent))
        assert say(claim, known) == outcome
        if not isinstance(claim, CallRefused):
            assert claim.call.attempts == ("att_1", "att_2")


@pytest.mark.parametrize(
    ("state", "expected", "where_keyed"),
    [
        (CallState.BEGUN, SECOND, CallRefusal.IN_FLIGHT),
        (CallState.RECORDED, SECOND, ANSWERED),
        (CallState.NOT_KEPT, SECOND, NOT_KEPT),
        (CallState.NOT_SENT, GRANTED, GRANTED),
        (CallState.UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_the_attempt_that_made_a_call_wants_an_equal_one(
    state: CallState, expected: str, where_keyed: str
) -> None:
    """An HTTP client repeats by itself what got no answer: that is no second call."""
    for keyed, outcome in ((False, expected), (True, where_keyed)):
        calls: list[ToolCall] = []
        known = grant(calls, wanted(keyed=keyed), state)
        claim = decide_claim(LEDGER, calls, wanted(keyed=keyed))
        assert say(claim, known) == outcome
        if isinstance(claim, CallGranted) and outcome == SECOND:
            assert claim.call.ordinal == 2


# --- equal calls -----------------------------------------------------------------------------


def test_what_an_equal_call_has_done_is_given_before_one_that_was_not_sent_is_made() -> None:
    calls: list[ToolCall] = []
    first, done = grant(calls, wanted()), grant(calls, wanted(), CallState.RECORDED)
    not_sent = end_call(first, CallEnd(first.call_id, first.grants, START + 1, CallState.NOT_SENT))
    claim = decide_claim(LEDGER, [not_sent, done], wanted("att_2"))
    assert say(claim, done) == ANSWERED
    assert not isinstance(claim, CallRefused)
    assert say(decide_claim(LEDGER, [not_sent, claim.call], wanted("att_2")), not_sent) == GRANTED


# --- other calls than before -------------------------------------------------------------------


@pytest.mark.parametrize("state", CallState)
def test_something_new_waits_until_what_was_done_has_been_asked_for(state: CallState) -> None:
    calls: list[ToolCall] = []
    known = grant(calls, wanted(), state)
    claim = decide_claim(LEDGER, calls, wanted("att_2", "order"))
    if state is CallState.NOT_SENT:
        assert isinstance(claim, CallGranted)
    else:
        assert claim == CallRefused(CallRefusal.DIVERGED, known.call_id)


def test_something_new_is_granted_when_everything_done_was_asked_for_in_whatever_order() -> None:
    calls: list[ToolCall] = []
    made = [grant(calls, wanted(what=what), CallState.RECORDED) for what in ("mail", "order")]
    for call in reversed(made):
        claim = decide_claim(LEDGER, calls, wanted("att_2", call.tool))
        assert isinstance(claim, CallAnswered)
        calls[calls.index(call)] = claim.call
    assert isinstance(decide_claim(LEDGER, calls, wanted("att_2", "pay")), CallGranted)


def test_what_may_be_done_twice_neither_waits_nor_is_waited_for() -> None:
    calls: list[ToolCall] = []
    grant(calls, wanted(what="search", idempotent=True), CallState.RECORDED)
    grant(calls, wanted("att_2"), CallState.RECORDED)
    assert isinstance(decide_claim(LEDGER, calls, wanted("att_3", "look", idempotent=True)), CallGranted)


# --- ends ------------------------------------------------------------------------------------


def test_the_first_end_of_the_last_grant_counts() -> None:
    calls: list[ToolCall] = []
    first = grant(calls, wanted(), CallState.NOT_SENT)
    again = grant(calls, wanted())
    assert again.grants == 2
    repeated = CallEnd(first.call_id, first.grants, START + 2, CallState.NOT_SENT)
    assert end_call(again, repeated) == again, "it was sent this time"
    sent = end_call(again, replace(repeated, grant=2, state=CallState.NOT_KEPT, status=201))
    assert (sent.state, sent.status, sent.ended_at) == (CallState.NOT_KEPT, 201, START + 2)
    assert end_call(sent, replace(repeated, grant=2)) == sent


def test_a_call_that_is_made_again_has_the_flag_of_whoever_makes_it() -> None:
    calls: list[ToolCall] = []
    grant(calls, wanted(), CallState.UNKNOWN)
    claim = decide_claim(LEDGER, calls, wanted("att_2", idempotent=True))
    assert isinstance(claim, CallGranted)
    assert claim.call.idempotent
    assert (claim.call.ended_at, claim.call.status) == (None, None)


@pytest.mark.parametrize("state", CallState)
def test_a_result_comes_with_a_recorded_end_and_no_other(state: CallState) -> None:
    end = CallEnd(mint_call_id(LEDGER, "mail()", 1), 1, START, state)
    result, missing = (object(), None) if state is CallState.RECORDED else (None, object())
    check_end(end, result)
    with pytest.raises(ImpossibleEvent):
        check_end(end, missing)


# --- who may call ----------------------------------------------------------------------------


FIRST, SECOND_ONE = attempt_started(), attempt_started(attempt="att_2", number=2)
REFUSED = attempt_ended(attempt="att_3", outcome=AttemptOutcome.REFUSED)


@pytest.mark.parametrize(
    ("records", "who"),
    [
        ([], None),
        ([FIRST], "att_1"),
        ([FIRST, first_delta_sent()], "att_1"),
        ([FIRST, attempt_ended()], None),
        ([FIRST, SECOND_ONE], "att_2"),
        ([FIRST, attempt_ended(), SECOND_ONE], "att_2"),
        ([FIRST, SECOND_ONE, attempt_ended(attempt="att_2")], None),
        ([FIRST, REFUSED], "att_1"),
        ([FIRST, ended()], None),
    ],
)
def test_the_newest_started_attempt_may_while_neither_it_nor_its_operation_has_ended(
    records: list[object], who: str | None
) -> None:
    operation = fold(begun(), *records)  # type: ignore[arg-type]
    attempts = ("att_1", "att_2", "att_3", "att_9")
    allowed = [one for one in attempts if may_begin_calls(operation, AttemptId(one))]
    assert allowed == ([] if who is None else [who])


def test_a_calls_id_is_of_the_ledger_the_call_and_its_place_among_equals() -> None:
    named = [("op_1", "mail()", 1), ("op_2", "mail()", 1), ("op_1", "order()", 1), ("op_1", "mail()", 2)]
    ids = [mint_call_id(OperationId(ledger), fingerprint, n) for ledger, fingerprint, n in named]
    assert len(set(ids)) == len(named)
    assert mint_call_id(OperationId("op_1"), "mail()", 1) == ids[0]
    assert mint_call_id(OperationId("op_\udcff"), "mail()", 1).startswith("call_")
