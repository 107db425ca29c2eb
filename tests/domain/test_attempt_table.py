"""Every state of an attempt with every trigger, and what each held answer is worth."""

import pytest

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.attempt import (
    TRANSITIONS,
    Attempt,
    AttemptState,
    Judgement,
    Trigger,
    read_status_failure,
)
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.events import AttemptAnswered, AttemptBody, AttemptLogged, LogCause
from envoy_ext.domain.ids import AttemptId, ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome
from tests.support.exchange_builders import (
    JSON,
    SSE,
    delta,
    done,
    engine_error,
    finish,
    overloaded,
    ping,
    role,
    validation_error,
)

S, T = AttemptState, Trigger

ROWS = {
    (S.GATED, T.START): S.STARTED,
    (S.GATED, T.CHECK): S.CHECKING,
    (S.GATED, T.REFUSE): S.REFUSED,
    (S.CHECKING, T.START): S.STARTED,
    (S.CHECKING, T.REFUSE): S.REFUSED,
    (S.STARTED, T.ANSWER): S.HOLDING,
    (S.STARTED, T.LOSE): S.LOST,
    (S.HOLDING, T.RELEASE): S.RELEASED,
    (S.HOLDING, T.FAIL_OVER): S.FAILED_OVER,
    (S.HOLDING, T.WITHHOLD): S.WITHHELD,
}
"""All there is; a second copy of the table, so that a row cannot come or go unnoticed."""


def attempt(state=S.GATED, family=ApiFamily.CHAT, choices=1):
    return Attempt(AttemptId("att_1"), 1, family, choices, 1 << 20, state=state)


def answered(status=200, kind=SSE, encoding="", end=False, replica="a"):
    return AttemptAnswered(
        AttemptId("att_1"), status, kind, encoding, None if replica is None else ReplicaId(replica), end
    )


def body(data, end=False):
    return AttemptBody(AttemptId("att_1"), data, end)


def logged(cause=LogCause.UPSTREAM_RESET, replica="a", detail="upstream_reset"):
    return AttemptLogged(AttemptId("att_1"), cause, ReplicaId(replica), 0, detail)


@pytest.mark.parametrize("trigger", list(Trigger))
@pytest.mark.parametrize("state", list(AttemptState))
def test_every_trigger_in_every_state_follows_the_table_or_is_impossible(state, trigger):
    one = attempt(state)
    expected = ROWS.get((state, trigger))
    if expected is None:
        with pytest.raises(ImpossibleEvent, match=f"is {state} and cannot {trigger}"):
            one.move(trigger)
        assert one.state is state
    else:
        one.move(trigger)
        assert one.state is expected


def test_the_table_has_a_row_for_every_state():
    assert set(TRANSITIONS) == set(AttemptState)


@pytest.mark.parametrize("state", list(AttemptState))
def test_a_filter_waits_for_a_word_until_it_has_had_the_last(state):
    assert attempt(state).open is (state in (S.GATED, S.CHECKING, S.STARTED, S.HOLDING))
    assert attempt(state).holding is (state is S.HOLDING)


def test_an_attempt_is_settled_when_both_its_ends_are_known_or_its_filter_was_let_go():
    started = attempt(S.HOLDING)
    started.started_at = 1.0
    assert not started.settled
    started.note_log(logged())
    assert not started.settled
    started.stream_closed = True
    assert started.settled
    released = attempt(S.RELEASED)
    released.started_at = 1.0
    released.note_log(logged())
    assert released.settled


def test_an_attempt_that_never_started_is_logged_without_its_id_and_settles_by_itself():
    assert attempt(S.REFUSED).settled
    gated = attempt(S.GATED)
    assert not gated.settled
    gated.stream_closed = True
    assert gated.settled


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (429, AttemptOutcome.OVERLOADED),
        (503, AttemptOutcome.OVERLOADED),
        (500, AttemptOutcome.ENGINE_ERROR),
        (502, AttemptOutcome.ENGINE_ERROR),
        (504, AttemptOutcome.ENGINE_ERROR),
        (599, AttemptOutcome.ENGINE_ERROR),
        (101, AttemptOutcome.ENGINE_ERROR),
        *[(status, None) for status in (200, 204, 301, 400, 404, 408, 422, 499, 501, 505)],
    ],
)
def test_which_statuses_are_a_replicas_failure(status, outcome):
    assert read_status_failure(status) is outcome


@pytest.mark.parametrize(
    ("answer", "judgement", "outcome"),
    [
        (answered(), Judgement.KEEP_HOLDING, None),
        (answered(kind=JSON), Judgement.KEEP_HOLDING, None),
        (answered(status=503), Judgement.FAILED, AttemptOutcome.OVERLOADED),
        (answered(status=503, end=True), Judgement.FAILED, AttemptOutcome.OVERLOADED),
        (answered(status=500), Judgement.FAILED, AttemptOutcome.ENGINE_ERROR),
        (answered(status=404), Judgement.PASS_ERROR, AttemptOutcome.CLIENT_ERROR),
        (answered(status=404, end=True), Judgement.PASS_ERROR, AttemptOutcome.CLIENT_ERROR),
        (answered(status=501), Judgement.PASS_ERROR, AttemptOutcome.CLIENT_ERROR),
        (answered(status=204, kind="", end=True), Judgement.COMMIT, None),
        (answered(kind=JSON, end=True), Judgement.FAILED, AttemptOutcome.TRUNCATED),
        (answered(status=204, kind=JSON, end=True), Judgement.COMMIT, None),
        (answered(status=304, kind=JSON, end=True), Judgement.COMMIT, None),
        (answered(kind=SSE, end=True), Judgement.FAILED, AttemptOutcome.TRUNCATED),
        (answered(kind=SSE, encoding="gzip", end=True), Judgement.COMMIT, None),
    ],
)
def test_what_response_headers_are_worth(answer, judgement, outcome):
    one = attempt(S.HOLDING)
    assert one.judge_answer(answer) is judgement
    assert one.outcome is outcome


@pytest.mark.parametrize(
    ("data", "end", "judgement", "outcome"),
    [
        (b"", False, Judgement.KEEP_HOLDING, None),
        (ping() + role(), False, Judgement.KEEP_HOLDING, None),
        (role() + finish(), False, Judgement.KEEP_HOLDING, None),
        (delta("Hel")[:-1], False, Judgement.KEEP_HOLDING, None),
        (delta("Hel"), False, Judgement.COMMIT, None),
        (delta("Hel"), True, Judgement.COMMIT, None),
        (delta("Hel") + engine_error(), False, Judgement.COMMIT, None),
        (role() + finish() + done(), False, Judgement.COMMIT, None),
        (role() + finish(), True, Judgement.COMMIT, None),
        (validation_error(), False, Judgement.PASS_ERROR, AttemptOutcome.CLIENT_ERROR),
        (engine_error(), False, Judgement.FAILED, AttemptOutcome.ENGINE_ERROR),
        (engine_error() + done(), True, Judgement.FAILED, AttemptOutcome.ENGINE_ERROR),
        (role() + overloaded(), False, Judgement.FAILED, AttemptOutcome.OVERLOADED),
        (role(), True, Judgement.FAILED, AttemptOutcome.TRUNCATED),
        (b"", True, Judgement.FAILED, AttemptOutcome.TRUNCATED),
        (done(), False, Judgement.FAILED, AttemptOutcome.TRUNCATED),
        (finish("abort") + done(), False, Judgement.FAILED, AttemptOutcome.ENGINE_ERROR),
        (finish("abort"), True, Judgement.FAILED, AttemptOutcome.ENGINE_ERROR),
    ],
)
def test_what_the_held_part_of_a_stream_is_worth(data, end, judgement, outcome):
    for size in (max(len(data), 1), 1):
        one = attempt(S.HOLDING)
        one.judge_answer(answered())
        judged = Judgement.KEEP_HOLDING
        chunks = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
        for number, piece in enumerate(chunks, 1):
            judged = one.judge_body(body(piece, end and number == len(chunks)))
            if judged is not Judgement.KEEP_HOLDING:
                break
        assert judged is judgement
        assert one.outcome is outcome


def test_a_document_commits_with_its_first_byte():
    one = attempt(S.HOLDING)
    one.judge_answer(answered(kind=JSON))
    assert one.judge_body(body(b"")) is Judgement.KEEP_HOLDING
    assert one.judge_body(body(b"{")) is Judgement.COMMIT


def test_an_error_event_is_described_by_its_labels_alone():
    one = attempt(S.HOLDING)
    one.judge_answer(answered())
    one.judge_body(body(engine_error()))
    assert one.detail == "error event InternalServerError 500"


def test_an_end_without_anything_to_read_is_described():
    one = attempt(S.HOLDING)
    one.judge_answer(answered())
    one.judge_body(body(role(), end=True))
    assert one.detail == "ended truncated before the first delta"


def test_a_body_without_headers_is_a_bug_of_ours():
    with pytest.raises(ImpossibleEvent, match="body before headers"):
        attempt(S.HOLDING).judge_body(body(b"x"))


def test_the_replica_that_answered_outranks_the_one_in_the_log():
    one = attempt(S.HOLDING)
    one.judge_answer(answered(replica="b"))
    one.note_log(logged(replica="a"))
    assert one.replica == "b"
    silent = attempt(S.STARTED)
    silent.note_log(logged(replica="a"))
    assert (silent.replica, silent.detail) == ("a", "upstream_reset")
