"""What an operation's records say about it."""

import dataclasses

import pytest

from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.operation import apply_record, build_operation
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase, Reason, RungName
from tests.support.records import (
    START,
    attempt_ended,
    attempt_started,
    begun,
    ended,
    first_delta_sent,
    fold,
    interrupted,
    whole_life,
)


def test_an_operation_that_has_begun_waits_and_is_running() -> None:
    operation = fold(begun())
    assert (operation.state, operation.phase) == (OperationState.RUNNING, Phase.QUEUED)
    assert not operation.first_delta_sent
    assert operation.ending is None
    assert operation.attempts == ()


def test_an_attempt_that_starts_moves_it_to_prefill_and_never_back_there() -> None:
    started = (begun(), attempt_started(attempt="att_1"))
    assert fold(*started).phase is Phase.PREFILL
    later = (first_delta_sent(attempt="att_1"), attempt_started(attempt="att_2", number=2))
    assert fold(*started, *later).phase is Phase.DECODE


def test_a_begun_operation_keeps_everything_its_record_holds() -> None:
    record = begun(key_hash="key-hash", model=None, stream=False, ledger_id="op_0", degraded=(RungName.POOL,))
    operation = fold(record)
    kept = {"created_at": record.at}
    kept |= {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "at"}
    assert {name: getattr(operation, name) for name in kept} == kept


def test_the_first_delta_moves_the_operation_to_decode() -> None:
    operation = fold(begun(), attempt_started(), first_delta_sent())
    assert operation.phase is Phase.DECODE
    assert operation.first_delta_sent
    assert (operation.first_delta_attempt, operation.first_delta_at) == ("att_1", START + 0.2)


def test_the_end_is_what_its_record_says() -> None:
    operation = fold(*whole_life()[:-1], interrupted(model_revision="rev-7"))
    assert (operation.state, operation.phase) == (OperationState.FAILED, Phase.DECODE)
    assert (operation.ending, operation.reason) == (Ending.UPSTREAM_BROKE, Reason.REPLICA_DIED)
    assert (operation.error_code, operation.status) == ("upstream_decode_interrupted", 200)
    assert (operation.delivered_deltas, operation.delivered_output_tokens) == (37, 37)
    assert (operation.delivered_bytes, operation.model_revision) == (4096, "rev-7")
    assert operation.ended_at == START + 1


def test_only_the_first_end_counts() -> None:
    once = fold(begun(), interrupted())
    assert apply_record(once, ended(at=START + 9)) == once


def test_an_attempts_end_after_the_operations_end_fills_the_attempt_and_leaves_the_ending() -> None:
    before = fold(begun(), attempt_started(), first_delta_sent(), interrupted())
    assert before.attempts[0].outcome is None
    after = apply_record(before, attempt_ended(outcome=AttemptOutcome.REPLICA_DIED, at=START + 2))
    assert after.attempts[0].outcome is AttemptOutcome.REPLICA_DIED
    assert after.attempts[0].ended_at == START + 2
    assert dataclasses.replace(after, attempts=()) == dataclasses.replace(before, attempts=())


def test_a_first_delta_told_after_the_end_does_not_reopen_the_phase() -> None:
    operation = fold(begun(), attempt_started(), ended(), first_delta_sent())
    assert operation.first_delta_sent
    assert operation.phase is Phase.COMPLETED


def test_a_known_outcome_replaces_unknown_and_nothing_replaces_a_known_one() -> None:
    unknown = attempt_ended(outcome=AttemptOutcome.UNKNOWN, detail="sidecar_restarted", first_byte_at=None)
    died = attempt_ended(outcome=AttemptOutcome.REPLICA_DIED, at=START + 3)
    completed = attempt_ended(outcome=AttemptOutcome.COMPLETED, at=START + 4)
    operation = fold(begun(), attempt_started(), unknown, died, completed, unknown)
    (attempt,) = operation.attempts
    assert attempt.outcome is AttemptOutcome.REPLICA_DIED
    assert (attempt.ended_at, attempt.first_byte_at) == (START + 3, START + 0.15)
    assert attempt.detail == "via_upstream"


def test_the_replica_is_the_one_that_was_connected_and_not_the_one_that_was_asked_for() -> None:
    asked = attempt_started(replica="a")
    assert fold(begun(), asked).attempts[0].replica == "a"
    for told in ([asked, first_delta_sent(replica="b")], [asked, attempt_ended(replica="b")]):
        assert fold(begun(), *told).attempts[0].replica == "b"
        assert fold(begun(), *reversed(told)).attempts[0].replica == "b"


def test_a_replica_that_is_not_told_leaves_the_known_one() -> None:
    operation = fold(begun(), attempt_started(replica="a"), attempt_ended(replica=None))
    assert operation.attempts[0].replica == "a"


def test_an_attempt_that_ended_without_a_start_is_kept_and_uses_no_budget() -> None:
    refused = attempt_ended(attempt="att_9", outcome=AttemptOutcome.REFUSED, replica=None)
    operation = fold(begun(), refused)
    assert operation.attempts[0].number is None
    assert operation.retry_budget == 2


def test_attempts_stay_in_the_order_in_which_they_came_up() -> None:
    second = attempt_started(attempt="att_2", number=2, replica="b")
    operation = fold(begun(), attempt_started(), second, attempt_ended(attempt="att_1"))
    assert [attempt.attempt_id for attempt in operation.attempts] == ["att_1", "att_2"]
    assert [attempt.number for attempt in operation.attempts] == [1, 2]


@pytest.mark.parametrize(("attempts", "left"), [(0, 2), (1, 1), (2, 0), (3, 0)])
def test_the_retry_budget_is_what_max_attempts_leaves_and_never_below_zero(attempts: int, left: int) -> None:
    started = [attempt_started(attempt=f"att_{n}", number=n) for n in range(1, attempts + 1)]
    assert fold(begun(max_attempts=2), *started).retry_budget == left


def test_records_without_a_begin_are_no_operation() -> None:
    assert build_operation([]) is None
    assert build_operation([attempt_started(), ended()]) is None


def test_a_begin_that_comes_late_hides_nothing() -> None:
    in_order = whole_life()
    assert build_operation([*in_order[1:], in_order[0]]) == build_operation(in_order)


def test_a_record_before_the_begin_or_of_another_operation_is_a_bug_said_loudly() -> None:
    with pytest.raises(ImpossibleEvent, match="has not begun"):
        apply_record(None, attempt_started())
    with pytest.raises(ImpossibleEvent, match="op_2"):
        apply_record(fold(begun("op_1")), attempt_started("op_2"))


def test_what_is_given_up_is_told_as_it_stands_last() -> None:
    """On arrival, when the first attempt starts in another pool, and with an answer of the gateway's own."""
    shortened = begun(degraded=(RungName.SHORTEN_GENERATION,))
    assert fold(begun()).degraded == ()
    assert fold(shortened, attempt_started()).degraded == (RungName.SHORTEN_GENERATION,)
    moved = dataclasses.replace(
        attempt_started(), pool="small", degraded=(RungName.SHORTEN_GENERATION, RungName.POOL)
    )
    operation = fold(shortened, moved)
    assert (operation.pool, operation.degraded) == ("small", (RungName.SHORTEN_GENERATION, RungName.POOL))
    assert fold(shortened, ended(degraded=(RungName.TEMPLATE,))).degraded == (RungName.TEMPLATE,)
