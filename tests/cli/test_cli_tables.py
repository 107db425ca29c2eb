"""Operations as people read them, in a terminal or through a pipe."""

import io
from dataclasses import replace
from typing import Literal

from rich.console import Console
from rich.text import Text

from envoy_ext.adapters.operation_codec import build_job_operator_json, build_operator_json
from envoy_ext.cli.columns import print_text
from envoy_ext.cli.tables import build_jobs_text, build_operation_text, build_operations_text
from envoy_ext.domain.ids import OperationId, SeatId
from envoy_ext.domain.job import JobState
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.outcomes import AttemptOutcome, OperationState, Phase, RungName
from envoy_ext.domain.records import Record
from envoy_ext.domain.tool_calls import CallState
from tests.support.jobs import queued_job
from tests.support.records import (
    attempt_ended,
    attempt_started,
    begun,
    ended,
    first_delta_sent,
    interrupted,
    owned,
    whole_life,
)
from tests.support.tool_builders import made

LONG_ID = "op_" + "0" * 26


def as_json(records: list[Record]) -> dict[str, object]:
    operation = build_operation(records)
    assert operation is not None
    return build_operator_json(operation, ())


def show(text: Text, *, terminal: bool = False) -> str:
    """What a window of forty columns is sent."""
    out = io.StringIO()
    colours: Literal["standard", "auto"] = "standard" if terminal else "auto"
    console = Console(file=out, width=40, force_terminal=terminal, color_system=colours, no_color=False)
    print_text(console, text)
    return out.getvalue()


def cut_off(operation: str = "op_2") -> list[Record]:
    return [
        begun(operation),
        attempt_started(operation),
        first_delta_sent(operation),
        attempt_ended(operation),
        interrupted(operation),
    ]


def test_the_list_has_one_line_for_each_operation_in_the_order_given() -> None:
    operations = [as_json(cut_off("op_2")), as_json(whole_life("op_1")), as_json([begun("op_3")])]
    assert show(build_operations_text(operations)).splitlines() == [
        "OPERATION  CREATED                   POOL  MODEL         STATE      "
        "WHY                                                        ATTEMPTS  DELTAS  SECONDS",
        "op_2       2025-06-15T15:06:40.000Z  chat  llama-3.1-8b  failed     "
        "upstream_broke, replica_died, upstream_decode_interrupted  1         37      1.000",
        "op_1       2025-06-15T15:06:40.000Z  chat  llama-3.1-8b  completed  "
        "finished                                                   1         37      1.000",
        "op_3       2025-06-15T15:06:40.000Z  chat  llama-3.1-8b  running    "
        "-                                                          0         0       -",
    ]


def test_a_replicas_own_refusal_is_told_from_an_answer() -> None:
    refused = ended("op_1", state=OperationState.FAILED, phase=Phase.PREFILL, status=400)
    mistaken = attempt_ended("op_1", outcome=AttemptOutcome.CLIENT_ERROR)
    operation = as_json([begun("op_1"), attempt_started("op_1"), mistaken, refused])
    assert "failed  finished, client_error  1 " in show(build_operations_text([operation]))


def test_jobs_have_one_line_each_with_how_far_they_are() -> None:
    runs = replace(
        queued_job("op_1"), state=JobState.RUNNING, run_ids=(OperationId("op_1"),), owner=SeatId("gw/1")
    )
    lines = show(
        build_jobs_text([build_job_operator_json(one) for one in (runs, queued_job("op_2"))])
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["JOB", "SUBMITTED", "EXPIRES", "POOL", "MODEL", "STATE", "RUNS", "GATEWAY"],
        ["op_1", *TIMES, "chat", "llama-3.1-8b", "running", "1", "gw/1"],
        ["op_2", *TIMES, "chat", "llama-3.1-8b", "queued", "0", "-"],
    ]
    assert show(build_jobs_text([])) == "no jobs\n"


TIMES = ("2025-06-15T15:06:40.000Z", "2025-06-15T16:06:40.000Z")


def test_an_empty_journal_says_so() -> None:
    assert show(build_operations_text([])) == "no operations\n"


def test_one_operation_shows_its_facts_and_its_attempts() -> None:
    assert show(build_operation_text(as_json([*cut_off(), owned(operation="op_2")]))).splitlines() == [
        "operation          op_2",
        "request            req-1",
        "state              failed",
        "why                upstream_broke, replica_died, upstream_decode_interrupted",
        "phase              decode",
        "gateway            gw/1",
        "pool               chat",
        "path               /v1/chat/completions",
        "model              llama-3.1-8b",
        "model revision     -",
        "stream             yes",
        "first delta sent   yes",
        "delivered deltas   37",
        "delivered tokens   37",
        "retry budget left  1",
        "error              upstream_decode_interrupted (HTTP status sent: 200)",
        "created            2025-06-15T15:06:40.000Z",
        "ended              2025-06-15T15:06:41.000Z",
        "seconds            1.000",
        "",
        "ATTEMPT  ID     REPLICA  OUTCOME    FIRST BYTE                ENDED",
        "1        att_1  a        completed  2025-06-15T15:06:40.150Z  2025-06-15T15:06:40.900Z",
    ]


def test_an_attempt_that_has_not_ended_runs_as_long_as_its_operation_does() -> None:
    running = [begun(), attempt_started()]
    assert "running" in show(build_operation_text(as_json(running))).splitlines()[-1]
    assert "unknown" in show(build_operation_text(as_json([*running, ended()]))).splitlines()[-1]


def test_a_count_that_nobody_knows_is_not_shown_as_none() -> None:
    lost = as_json([begun(), attempt_started(), first_delta_sent()])
    assert lost["delivered_deltas"] is None
    assert "delivered deltas   unknown" in show(build_operation_text(lost))
    assert "unknown" in show(build_operations_text([lost]))


def test_an_operation_without_attempts_says_so() -> None:
    assert show(build_operation_text(as_json([begun()]))).endswith("\n\nno attempts\n")


def test_a_narrow_window_wraps_and_cuts_nothing() -> None:
    shown = show(build_operations_text([as_json(whole_life(LONG_ID))]), terminal=True)
    assert LONG_ID in shown
    assert len(shown.splitlines()) == 2


def test_a_pipe_gets_no_colour_and_a_terminal_does() -> None:
    text = build_operations_text([as_json(whole_life())])
    assert "\x1b[" not in show(text)
    assert "\x1b[32mcompleted\x1b[0m" in show(text, terminal=True)


def test_a_name_from_a_client_cannot_steer_the_terminal_or_pass_for_markup() -> None:
    hostile = "a\x1b[2J\r\n[red]b[/red]\u202e\udce9"
    operation = as_json(whole_life(model=hostile, path="/v1/\x07"))
    for text in (build_operations_text([operation]), build_operation_text(operation)):
        shown = show(text)
        assert r"a\x1b[2J\r\n[red]b[/red]\u202e\udce9" in shown
        assert all(one.isprintable() or one == "\n" for one in shown)


def test_columns_stand_under_their_heads_when_a_name_is_wide() -> None:
    lines = build_operations_text([as_json(whole_life(model="日本語"))]).split("\n")
    head, line = (one.plain for one in lines)
    # Each of the three characters takes two cells.
    assert line.index("completed") == head.index("STATE") - 3


def test_an_answer_of_another_release_with_fields_missing_is_still_shown() -> None:
    shown = show(build_operation_text({"operation_id": "op_9", "attempts": None, "created_at": "soon"}))
    assert shown.startswith("operation          op_9\n")
    assert show(build_operations_text([{}])).splitlines()[1].startswith("-")


def test_an_operation_shows_the_calls_of_its_tools_and_which_one_stood_in_its_way() -> None:
    call = made(CallState.UNKNOWN, attempts=("att_1", "att_2"))
    blocked = ended(error_code="tool_outcome_unknown", tool_call_id=call.call_id, status=409)
    operation = build_operation([begun(), attempt_started(), blocked])
    assert operation is not None
    lines = show(build_operation_text(build_operator_json(operation, [call]))).splitlines()
    (error,) = [line for line in lines if line.startswith("error")]
    assert error.endswith(f"tool_outcome_unknown (HTTP status sent: 409), because of {call.call_id}")
    assert lines[-2].split() == ["CALL", "TOOL", "NO", "STATE", "STATUS", "ATTEMPTS", "BEGUN", "ENDED"]
    assert lines[-1].split()[:4] == [call.call_id, "mail", "1", "unknown"]
    assert "att_1 att_2" in lines[-1]


def test_what_was_given_up_of_an_operation_is_shown_where_something_was() -> None:
    plain = show(build_operation_text(as_json([begun()])))
    assert "degraded" not in plain
    stepped = show(build_operation_text(as_json([begun(degraded=(RungName.SHORTEN_CONTEXT, RungName.POOL))])))
    assert "degraded           shorten_context, pool" in stepped
