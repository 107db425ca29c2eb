"""Where tools are watched, nothing is done again before it is known what earlier attempts have called."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import DeliveryClosed, LedgerRead
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.notes import LedgerAwaited, ReplayRefused, ReplayStarted
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Reason
from envoy_ext.domain.records import AttemptEnded, AttemptStarted
from envoy_ext.domain.tool_calls import CallState, ToolCall
from tests.support.exchange_builders import OPERATION, Policy
from tests.support.exchange_claims import WHOLE, assert_one_whole_answer, assert_refused
from tests.support.exchange_envoy import LEDGER, Envoy
from tests.support.tool_builders import made

WATCHES = Policy(watches_tools=True)
UNKNOWN = made(CallState.UNKNOWN)


def looks(envoy: Envoy) -> list[AttemptId]:
    return [note.attempt_id for note in envoy.notes if isinstance(note, LedgerAwaited)]


def test_a_replay_starts_once_the_ledger_allows_it():
    envoy = Envoy(policy=WATCHES, ledger=(made(CallState.RECORDED),), late=(LEDGER,))
    envoy.replica.is_lost()
    starts = [record for record in envoy.records if isinstance(record, AttemptStarted)]
    assert [record.number for record in starts] == [1, 2], "recorded before anybody looks"
    assert (envoy.started, looks(envoy), envoy.looked_up) == (1, ["att_2"], [OPERATION])
    assert not [note for note in envoy.notes if isinstance(note, ReplayStarted)]
    envoy.catch_up(LEDGER)
    assert envoy.started == 2
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, 2)
    assert len([note for note in envoy.notes if isinstance(note, ReplayStarted)]) == 1


@pytest.mark.parametrize(
    ("ledger", "code", "status", "call"),
    [
        ((UNKNOWN,), "tool_outcome_unknown", 409, UNKNOWN.call_id),
        ((made(CallState.BEGUN),), "tool_outcome_unknown", 409, UNKNOWN.call_id),
        ((made(CallState.NOT_KEPT),), "replay_not_allowed", 503, UNKNOWN.call_id),
        (None, "replay_not_allowed", 503, None),
    ],
)
def test_a_replay_that_the_ledger_forbids_goes_nowhere_and_the_operation_says_which_call(
    ledger: tuple[ToolCall, ...] | None, code: str, status: int, call: str | None
):
    envoy = Envoy(policy=WATCHES, ledger=ledger)
    envoy.replica.is_lost()
    assert envoy.started == 1
    assert_refused(envoy, code, status, Reason.REPLICA_DIED)
    envoy.wait(60)
    assert envoy.end is not None
    assert (envoy.end.error_code, envoy.end.tool_call_id) == (code, call)
    assert envoy.end.ending is Ending.UPSTREAM_BROKE
    assert envoy.outcomes == ["replica_died", "refused"]
    refused = [note for note in envoy.notes if isinstance(note, ReplayRefused)]
    assert [note.code for note in refused] == [code]
    where = dict(envoy.client.error.headers).get("location")
    assert where == (f"/v1/operations/{OPERATION}" if call else None)
    assert envoy.exchange.finished


def test_without_tools_nobody_looks():
    envoy = Envoy(ledger=(UNKNOWN,), ledger_id=OperationId("op_0"))
    envoy.replica.is_lost()
    assert (envoy.started, looks(envoy)) == (2, [])


def test_a_first_attempt_looks_only_where_another_operation_was_before_it():
    envoy = Envoy(policy=WATCHES, ledger=(UNKNOWN,))
    assert (envoy.started, looks(envoy)) == (1, [])

    envoy = Envoy(policy=WATCHES, ledger=(made(CallState.RECORDED),), ledger_id=OperationId("op_0"))
    assert (envoy.started, envoy.looked_up) == (1, ["op_0"])

    envoy = Envoy(policy=WATCHES, ledger=(UNKNOWN,), ledger_id=OperationId("op_0"))
    assert envoy.started == 0
    assert envoy.client.error is not None
    assert (envoy.client.error.code, envoy.client.error.http_status) == ("tool_outcome_unknown", 409)
    envoy.wait(60)
    assert envoy.end is not None
    assert (envoy.end.ending, envoy.end.tool_call_id) == (Ending.REFUSED, UNKNOWN.call_id)


def test_a_look_that_outlasts_its_client_starts_nothing():
    """Its attempt's stream has not ended yet."""
    envoy = Envoy(policy=WATCHES, late=(LEDGER,))
    envoy.replica.is_lost()
    envoy.receive(DeliveryClosed())
    envoy.catch_up(LEDGER)
    assert envoy.started == 1


def test_a_client_that_leaves_during_the_look_has_nothing_started_for_it():
    envoy = Envoy(policy=WATCHES, late=(LEDGER,))
    envoy.replica.is_lost()
    envoy.client_leaves()
    envoy.catch_up(LEDGER)
    assert envoy.started == 1
    envoy.wait(60)
    assert envoy.outcomes == ["replica_died", "refused"]
    assert envoy.exchange.finished


def test_an_answer_to_the_look_that_never_comes_leaves_no_attempt_without_an_end():
    envoy = Envoy(policy=WATCHES, late=(LEDGER,))
    envoy.replica.is_lost()
    envoy.client_leaves()
    envoy.wait(60)
    assert envoy.exchange.finished
    assert envoy.outcomes == ["replica_died", "unknown"]


def test_an_attempt_that_is_overtaken_during_its_look_is_not_started_by_the_answer():
    envoy = Envoy(policy=Policy(watches_tools=True, max_attempts=3), late=(LEDGER,), replicas=("a", "b", "c"))
    envoy.replica.is_lost()
    envoy.asks_again()
    envoy.catch_up(LEDGER)
    ends = {one.attempt_id: one.outcome for one in envoy.records if isinstance(one, AttemptEnded)}
    assert ends["att_2"] is AttemptOutcome.REFUSED
    started = [reply.attempt_id for reply in envoy.replies if isinstance(reply, step.StartAttempt)]
    assert started == ["att_1", "att_3"]
    envoy.receive(LedgerRead(AttemptId("att_3"), (UNKNOWN,)))
    assert envoy.started == 2, "a second answer changes nothing"


def test_a_start_that_cannot_be_recorded_looks_for_nothing():
    envoy = Envoy(policy=WATCHES, late=(LEDGER,))
    envoy.journal_fails_at = AttemptStarted
    envoy.replica.is_lost()
    assert (envoy.started, envoy.looked_up) == (1, [])
    assert step.RefuseAttempt(AttemptId("att_2"), "upstream_unavailable") in envoy.replies
    assert envoy.client.error is not None
    assert envoy.client.error.code == "upstream_unavailable"
