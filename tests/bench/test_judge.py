"""The judge of the storms: each untruth that a stream could end with is called one."""

import json
from dataclasses import replace

import pytest

from bench.load.seen import BodyEnd, Seen, StreamEnd, Untrue, judge
from bench.load.verdict import Policy, check_generations, check_keys, judge_run

TOKENS = 3


def event(data: object) -> str:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def delta(index: int, replica: str = "a", generation: int = 1) -> str:
    content = f"{replica}.{generation}.{index} "
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]})


FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
DONE = event("[DONE]")
WHOLE = delta(0) + delta(1) + delta(2) + FINISH + DONE


def error(partial: bool, code: str, tokens: int = 0) -> dict[str, object]:
    return {
        "code": code,
        "reason": "replica_died",
        "partial_output": partial,
        "delivered_output_tokens": tokens,
    }


def typed(tokens: int = 2, partial: bool = True) -> str:
    return event({"error": error(partial, "upstream_decode_interrupted", tokens)})


def stream(body: str) -> Seen:
    return Seen("r1", "sha", 200, "text/event-stream", "op_1", 1, "", body, BodyEnd.ORDERLY)


def refusal(code: object = "upstream_unavailable", partial: bool = False) -> Seen:
    body = json.dumps({"error": error(partial, code)})  # type: ignore[arg-type]
    return Seen("r1", "sha", 503, "application/json", "op_1", 2, "", body, BodyEnd.ORDERLY)


def test_the_three_truthful_ends() -> None:
    assert judge(stream(WHOLE), TOKENS) is StreamEnd.COMPLETE
    assert judge(stream(delta(0) + delta(1) + typed()), TOKENS) is StreamEnd.INTERRUPTED
    assert judge(refusal(), TOKENS) is StreamEnd.REFUSED


def test_a_whole_answer_whose_replica_died_before_its_done_is_whole() -> None:
    assert judge(stream(delta(0) + delta(1) + delta(2) + FINISH), TOKENS) is StreamEnd.COMPLETE


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("", id="nothing"),
        pytest.param(delta(0) + delta(1), id="a part and no word on it"),
        pytest.param(delta(0) + FINISH + DONE, id="a short answer that says it is whole"),
        pytest.param(delta(0) + delta(1) + delta(2) + DONE, id="a DONE without a finish"),
        pytest.param(delta(0) + delta(1, "b") + typed(), id="text of two replicas"),
        pytest.param(delta(0) + delta(1, generation=2) + typed(), id="text of two generations"),
        pytest.param(delta(0) + delta(2) + typed(), id="a gap"),
        pytest.param(delta(0) + delta(0) + typed(), id="a repeat"),
        pytest.param(delta(0) + typed() + typed(), id="two typed events"),
        pytest.param(delta(0) + typed() + DONE, id="a DONE after the typed event"),
        pytest.param(delta(0) + typed() + delta(1), id="text after the typed event"),
        pytest.param(typed(0, partial=False), id="a typed event behind nothing"),
        pytest.param(delta(0) + FINISH + typed(), id="a typed event behind a finish"),
        pytest.param(delta(0) + delta(1)[:-1], id="half an event"),
        pytest.param(
            delta(0) + event({"error": {"code": 500, "partial_output": True}}), id="an engine's error"
        ),
    ],
)
def test_every_other_end_of_a_stream_is_untrue(body: str) -> None:
    with pytest.raises(Untrue):
        judge(stream(body), TOKENS)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(stream(WHOLE), body_end=BodyEnd.CUT), id="cut"),
        pytest.param(replace(stream(WHOLE), body_end=BodyEnd.HUNG), id="hung"),
        pytest.param(replace(stream(WHOLE), content_type="text/plain"), id="another type"),
        pytest.param(replace(refusal(), body="upstream connect error"), id="Envoy's own words"),
        pytest.param(refusal(code=400), id="an engine's refusal"),
        pytest.param(refusal(partial=True), id="a refusal that claims a part"),
    ],
)
def test_every_other_answer_is_untrue(seen: Seen) -> None:
    with pytest.raises(Untrue):
        judge(seen, TOKENS)


def operation(**changes: object) -> dict[str, object]:
    """What the journal says of the interrupted stream."""
    return {
        "operation_id": "op_1",
        "request_id": "r1",
        "state": "failed",
        "ending": "upstream_broke",
        "first_delta_sent": True,
        "delivered_deltas": 2,
        "delivered_output_tokens": 2,
        "attempts": [{"attempt": 1, "replica": "a", "outcome": "replica_died"}],
        "error": {
            "code": "upstream_decode_interrupted",
            "reason": "replica_died",
            "status": 200,
            "partial_output": True,
        },
        **changes,
    }


INTERRUPTED = stream(delta(0) + delta(1) + typed())


def test_a_journal_that_says_what_the_client_saw_is_agreed_with() -> None:
    verdict = judge_run([INTERRUPTED], [operation()], TOKENS, Policy())
    assert verdict.complaints == []
    assert verdict.ends == {StreamEnd.INTERRUPTED: 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"operation_id": "op_2"},
        {"state": "completed"},
        {"ending": "unknown"},
        {"delivered_deltas": 3},
        {"delivered_output_tokens": 3},
        {"first_delta_sent": False},
        {"error": None},
        {"attempts": []},
        {"attempts": [{"attempt": 1, "replica": "b", "outcome": "replica_died"}]},
        {"attempts": [{"attempt": 1, "replica": "a", "outcome": "completed"}]},
        {"attempts": [{"attempt": 1, "replica": "a", "outcome": "unknown"}]},
        {"request_id": "r2"},
    ],
)
def test_a_journal_that_says_anything_else_is_complained_about(changes: dict[str, object]) -> None:
    assert judge_run([INTERRUPTED], [operation(**changes)], TOKENS, Policy()).complaints


def refused(code: str, attempts: int, first_delta_sent: bool = False) -> dict[str, object]:
    return operation(
        first_delta_sent=first_delta_sent,
        delivered_deltas=0,
        attempts=[
            {"attempt": number, "replica": "abc"[number], "outcome": "replica_died"}
            for number in range(1, attempts + 1)
        ],
        error={"code": code, "reason": "replica_died", "status": 503, "partial_output": False},
    )


@pytest.mark.parametrize(
    ("code", "attempts", "sent", "budget_binds", "explained"),
    [
        ("upstream_unavailable", 2, False, False, True),
        ("upstream_unavailable", 1, False, False, False),
        ("upstream_unavailable", 1, True, False, True),
        ("retry_budget_exhausted", 1, False, True, True),
        ("retry_budget_exhausted", 1, False, False, False),
        ("replay_not_allowed", 1, False, False, False),
        ("no_ready_replica", 1, False, False, False),
    ],
)
def test_a_refusal_is_explained_by_the_policy_or_complained_about(
    code: str, attempts: int, sent: bool, budget_binds: bool, explained: bool
) -> None:
    seen = replace(refusal(code), attempts=attempts)
    verdict = judge_run([seen], [refused(code, attempts, sent)], TOKENS, Policy(budget_binds=budget_binds))
    assert (verdict.complaints == []) is explained


@pytest.mark.parametrize(
    ("code", "hint", "policy", "explained"),
    [
        pytest.param("no_ready_replica", "retry-after: 1", Policy(others_may_be_out=True), True, id="nobody"),
        pytest.param("no_ready_replica", "retry-after: 1", Policy(), False, id="nobody, and that cannot be"),
        pytest.param("no_ready_replica", "", Policy(others_may_be_out=True), False, id="nobody, and no hint"),
        pytest.param(
            "upstream_unavailable", "retry-after: 1", Policy(others_may_be_out=True), False, id="Envoy's word"
        ),
    ],
)
def test_a_refusal_without_an_operation_has_one_explanation(
    code: str, hint: str, policy: Policy, explained: bool
) -> None:
    seen = replace(refusal(code), operation_id="", hint=hint)
    verdict = judge_run([seen], [], TOKENS, policy)
    assert (verdict.complaints == []) is explained
    assert verdict.unopened == {code: 1}
    assert verdict.codes == {f"{code}/no operation": 1}


def test_an_operation_that_the_journal_lost_is_complained_about() -> None:
    policy = Policy(others_may_be_out=True)
    assert judge_run([refusal("no_ready_replica")], [], TOKENS, policy).complaints
    assert judge_run([INTERRUPTED], [], TOKENS, policy).complaints


def test_a_generation_that_the_journal_does_not_know_is_complained_about() -> None:
    asked = [{"request_id": "r1"}, {"request_id": "r1"}]
    assert check_generations(asked[:1], [operation()]) == []
    assert check_generations(asked, [operation()])
    assert check_generations([{"request_id": "r9"}], [operation()])


# --- a store that is down -------------------------------------------------------------------

OUTAGE = Policy(store_may_be_down=True)
TOLD = replace(refusal(), hint="retry-after: 2", operation_id="")
UNRECORDED = replace(stream(WHOLE), recorded=False)


def completed(**changes: object) -> dict[str, object]:
    attempts = [{"attempt": 1, "replica": "a", "outcome": "completed"}]
    whole = {"state": "completed", "ending": "finished", "delivered_deltas": 3, "error": None}
    return operation(**whole, attempts=attempts, **changes)


def test_a_refusal_while_the_store_may_be_down_says_when_to_come_back() -> None:
    assert judge_run([TOLD], [], TOKENS, OUTAGE).complaints == []
    nothing = operation(delivered_deltas=0)
    assert judge_run([TOLD], [nothing], TOKENS, OUTAGE).complaints == []
    for untrue in (replace(TOLD, hint=""), replace(refusal("no_ready_replica"), hint="retry-after: 2")):
        assert judge_run([untrue], [], TOKENS, OUTAGE).complaints


def test_a_refusal_of_what_was_delivered_is_untrue() -> None:
    assert judge_run([TOLD], [operation()], TOKENS, OUTAGE).complaints
    assert judge_run([TOLD], [completed()], TOKENS, OUTAGE).complaints


def test_an_answer_that_was_acknowledged_and_is_not_found_is_a_complaint() -> None:
    assert judge_run([stream(WHOLE)], [completed()], TOKENS, OUTAGE).complaints == []
    assert judge_run([stream(WHOLE)], [], TOKENS, OUTAGE).complaints


def test_what_went_on_unrecorded_need_not_be_found_and_may_have_no_key() -> None:
    verdict = judge_run([UNRECORDED], [], TOKENS, OUTAGE)
    assert (verdict.complaints, verdict.unrecorded) == ([], 1)
    assert judge_run([UNRECORDED], [completed()], TOKENS, OUTAGE).complaints == []
    assert judge_run([UNRECORDED], [operation()], TOKENS, OUTAGE).complaints
    assert judge_run([replace(UNRECORDED, key="k")], [], TOKENS, OUTAGE).complaints


def test_a_key_is_answered_once_and_at_last() -> None:
    refused, answered = replace(TOLD, key="k"), replace(stream(WHOLE), key="k")
    assert check_keys([stream(WHOLE), refused, answered]) == []
    for tries in ([answered, answered], [refused], [answered, refused]):
        assert len(check_keys(tries)) == 1
