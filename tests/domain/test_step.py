"""A step is handed out once, whole, and its builder starts empty after it."""

from dataclasses import FrozenInstanceError

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.notes import FirstDelta
from envoy_ext.domain.records import FirstDeltaSent
from tests.support.exchange_builders import OPERATION, POOL


def test_a_builder_gives_what_was_put_in_and_is_empty_afterwards():
    builder = step.StepBuilder()
    record = FirstDeltaSent(OPERATION, "att_1", 1.0, None)
    reply, note = step.ReleaseAttempt("att_1"), FirstDelta(POOL, 0.5)
    builder.records.append(record)
    builder.replies.append(reply)
    builder.notes.append(note)
    taken = builder.take()
    assert taken == step.Step((record,), (reply,), (note,))
    assert builder.take() is step.NOTHING
    assert taken == step.Step((record,), (reply,), (note,))


@pytest.mark.parametrize("part", ["records", "replies", "notes"])
def test_a_step_with_any_part_is_not_nothing(part):
    builder = step.StepBuilder()
    getattr(builder, part).append(object())
    assert builder.take() is not step.NOTHING
    assert builder.take() is step.NOTHING


def test_a_step_cannot_be_changed_after_it_was_handed_out():
    with pytest.raises(FrozenInstanceError):
        step.NOTHING.records = ()
