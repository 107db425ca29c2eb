"""Repeating any record of an operation, at any later place, never changes what its records say."""

from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.adapters.operation_codec import build_operation_json
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
)
from tests.support.record_strategies import records

one_operation = st.lists(records(st.just(OperationId("op_1"))), min_size=1, max_size=12)


@given(one_operation, st.data())
def test_a_repeated_record_changes_nothing(told: list, data: st.DataObject) -> None:
    repeated = list(told)
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        record = data.draw(st.sampled_from(told))
        after_it = repeated.index(record) + 1
        repeated.insert(data.draw(st.integers(after_it, len(repeated))), record)
    assert build_operation(repeated) == build_operation(told)


@given(one_operation)
def test_telling_everything_twice_changes_nothing(told: list) -> None:
    assert build_operation([*told, *told]) == build_operation(told)


@given(one_operation)
def test_the_fold_keeps_the_first_end_and_forgets_no_attempt(told: list) -> None:
    operation = build_operation(told)
    if operation is None:
        assert not [record for record in told if isinstance(record, OperationBegun)]
        return
    ends = [record for record in told if isinstance(record, OperationEnded)]
    assert operation.ending == (ends[0].ending if ends else None)
    assert operation.ended_at == (ends[0].at if ends else None)
    attempts = [record for record in told if isinstance(record, AttemptStarted | AttemptEnded)]
    first_deltas = [record for record in told if isinstance(record, FirstDeltaSent)]
    named = {record.attempt_id for record in [*attempts, *first_deltas[:1]]}
    assert {attempt.attempt_id for attempt in operation.attempts} == named
    for attempt in operation.attempts:
        outcomes = [
            record.outcome
            for record in told
            if isinstance(record, AttemptEnded) and record.attempt_id == attempt.attempt_id
        ]
        known = [outcome for outcome in outcomes if outcome is not AttemptOutcome.UNKNOWN]
        assert attempt.outcome == next(iter(known or outcomes), None)


@given(one_operation)
def test_every_operation_has_a_json_form_with_the_same_keys(told: list) -> None:
    operation = build_operation(told)
    if operation is not None:
        shown = build_operation_json(operation)
        assert len(shown) == 20
        assert len(shown["attempts"]) == len(operation.attempts)
        assert (shown["ended_at"] is None) == (operation.ending is None)
