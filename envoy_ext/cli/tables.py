"""Operations as text for a terminal or a pipe: pure functions from the operations port's JSON."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from envoy_ext.cli.columns import (
    GAP,
    NOTHING,
    UNKNOWN,
    Json,
    build_columns,
    list_mappings,
    show,
    show_count,
)

_STATE_STYLES: Final = {"completed": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


def build_operations_text(operations: Sequence[Json]) -> Text:
    """`operations list`: one line for each operation, in the order given."""
    if not operations:
        return Text("no operations")
    header = ("OPERATION", "CREATED", "POOL", "MODEL", "STATE", "WHY", "ATTEMPTS", "DELTAS", "SECONDS")
    rows = [
        (
            show(operation.get("operation_id")),
            show(operation.get("created_at")),
            show(operation.get("pool")),
            show(operation.get("model")),
            show(operation.get("state")),
            _describe_end(operation),
            str(len(list_mappings(operation.get("attempts")))),
            show_count(operation.get("delivered_deltas")),
            _show_seconds(operation),
        )
        for operation in operations
    ]
    return build_columns(header, rows, styled={4: _STATE_STYLES})


def build_jobs_text(jobs: Sequence[Json]) -> Text:
    """`operations list --jobs`: one line for each job, in the order given."""
    if not jobs:
        return Text("no jobs")
    header = ("JOB", "SUBMITTED", "EXPIRES", "POOL", "MODEL", "STATE", "RUNS", "GATEWAY")
    rows = []
    for job in jobs:
        facts = job.get("job")
        told = facts if isinstance(facts, Mapping) else {}
        runs = told.get("runs")
        rows.append(
            (
                show(job.get("operation_id")),
                show(told.get("submitted_at")),
                show(told.get("expires_at")),
                show(job.get("pool")),
                show(job.get("model")),
                show(told.get("state")),
                str(len(runs)) if isinstance(runs, list) else UNKNOWN,
                show(job.get("owner")),
            )
        )
    return build_columns(header, rows, styled={5: {"queued": "yellow", "running": "cyan"}})


def build_operation_text(operation: Json) -> Text:
    """`operations show ID`: everything that is known of one operation."""
    state = show(operation.get("state"))
    facts = (
        ("operation", show(operation.get("operation_id"))),
        ("request", show(operation.get("request_id"))),
        ("state", state),
        ("why", _describe_end(operation)),
        ("phase", show(operation.get("phase"))),
        ("gateway", show(operation.get("owner"))),
        ("pool", show(operation.get("pool"))),
        ("path", show(operation.get("path"))),
        ("model", show(operation.get("model"))),
        ("model revision", show(operation.get("model_revision"))),
        ("stream", show(operation.get("stream"))),
        *_list_degraded(operation),
        ("first delta sent", show(operation.get("first_delta_sent"))),
        ("delivered deltas", show_count(operation.get("delivered_deltas"))),
        ("delivered tokens", show_count(operation.get("delivered_output_tokens"))),
        ("retry budget left", show_count(operation.get("retry_budget"))),
        ("error", _describe_error(operation)),
        ("created", show(operation.get("created_at"))),
        ("ended", show(operation.get("ended_at"))),
        ("seconds", _show_seconds(operation)),
    )
    width = max(len(name) for name, _ in facts)
    text = Text()
    for name, value in facts:
        text.append(name.ljust(width), style="bold").append(GAP)
        text.append(value, style=_STATE_STYLES.get(state, "") if name == "state" else "").append("\n")
    open_outcome = "running" if state == "running" else UNKNOWN
    text.append("\n").append_text(_build_attempts(list_mappings(operation.get("attempts")), open_outcome))
    calls = list_mappings(operation.get("tool_calls"))
    if calls:
        text.append("\n\n").append_text(_build_calls(calls))
    return text


def _list_degraded(operation: Json) -> tuple[tuple[str, str], ...]:
    """What was given up of it, where something was."""
    rungs = operation.get("degraded")
    return (("degraded", ", ".join(map(str, rungs))),) if isinstance(rungs, list) and rungs else ()


def _build_attempts(attempts: Sequence[Json], open_outcome: str) -> Text:
    """One line for each attempt; `open_outcome` stands for an end that nothing has told."""
    if not attempts:
        return Text("no attempts")
    header = ("ATTEMPT", "ID", "REPLICA", "OUTCOME", "FIRST BYTE", "ENDED")
    rows = [
        (
            show(attempt.get("attempt")),
            show(attempt.get("attempt_id")),
            show(attempt.get("replica")),
            open_outcome if attempt.get("outcome") is None else show(attempt.get("outcome")),
            show(attempt.get("first_byte_at")),
            show(attempt.get("ended_at")),
        )
        for attempt in attempts
    ]
    return build_columns(header, rows, styled={3: {"completed": "green", "running": "cyan"}})


def _build_calls(calls: Sequence[Json]) -> Text:
    """One line for each tool call of its ledger."""
    header = ("CALL", "TOOL", "NO", "STATE", "STATUS", "ATTEMPTS", "BEGUN", "ENDED")
    rows = [
        (
            show(call.get("call_id")),
            show(call.get("tool")),
            show(call.get("ordinal")),
            show(call.get("state")),
            show(call.get("status")),
            show(_join(call.get("attempts"))),
            show(call.get("begun_at")),
            show(call.get("ended_at")),
        )
        for call in calls
    ]
    states = {"recorded": "green", "begun": "cyan", "unknown": "red", "not_kept": "yellow"}
    return build_columns(header, rows, styled={3: states})


def _join(value: object) -> str | None:
    return " ".join(map(str, value)) if isinstance(value, list) else None


def _describe_end(operation: Json) -> str:
    """The ending, and what explains it: the reason and the error code, or how the last attempt ended."""
    error = operation.get("error")
    words = [operation.get("ending")]
    if isinstance(error, Mapping):
        words += [error.get("reason"), error.get("code")]
    elif operation.get("state") == "failed":
        # The client was given what the replica said: nothing of ours says why.
        words += [attempt.get("outcome") for attempt in list_mappings(operation.get("attempts"))[-1:]]
    return ", ".join(dict.fromkeys(show(word) for word in words if word is not None)) or NOTHING


def _describe_error(operation: Json) -> str:
    error = operation.get("error")
    if not isinstance(error, Mapping):
        return NOTHING
    call = error.get("tool_call_id")
    because = "" if call is None else f", because of {show(call)}"
    return f"{show(error.get('code'))} (HTTP status sent: {show(error.get('status'))}){because}"


def _show_seconds(operation: Json) -> str:
    """How long the operation took; nothing while it runs."""
    created, ended = operation.get("created_at"), operation.get("ended_at")
    if not isinstance(created, str) or not isinstance(ended, str):
        return NOTHING
    try:
        took = datetime.fromisoformat(ended) - datetime.fromisoformat(created)
        return f"{took.total_seconds():.3f}"
    except (ValueError, TypeError):
        return NOTHING
