"""What is kept of an answer under way, as far as that is decided by the answer alone."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.answer_keeping import AnswerKeeping, KeepingPolicy
from envoy_ext.domain.kept_answer import KeptAnswer


@pytest.mark.parametrize(
    ("status", "kept"), [(200, True), (201, True), (199, False), (302, False), (404, False)]
)
def test_only_what_a_replica_did_is_kept(status: int, kept: bool) -> None:
    keeping = AnswerKeeping(KeepingPolicy())
    headers = (("content-type", "application/json"),)
    keeping.note(step.ForwardResponse("req-1", "op_1", 1, False, status=status, headers=headers))
    keeping.note(step.ForwardBody(b"{}", end=True))
    answer = KeptAnswer(status, headers, b"{}") if kept else None
    assert keeping.build(last_word_said=False) == answer
    assert keeping.held_bytes == (2 if kept else 0), "what is not kept is let go of"
