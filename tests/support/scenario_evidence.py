"""Evidence made by hand: what good runs leave, for a judge to be shown them and their spoiled forms."""

import json
from dataclasses import replace
from typing import Any

from envoy_ext.drills.scenarios.evidence import Client, ClientEvent, EngineLine, Evidence
from envoy_ext.drills.scenarios.model import Expected, ExpectedAttempt

REVISION = "weights-1"
BEGIN = 100.0
"""When everything has begun, monotonic seconds."""


def build_event(generation: str, content: str = "", finish: str | None = None, **more: Any) -> str:
    """The data of one chat event."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    head = {"id": f"chatcmpl-{generation}", "created": 1, "system_fingerprint": REVISION}
    return json.dumps({**head, "choices": [choice], **more})


def build_answer(generation: str, deltas: int, *, whole: bool = True) -> list[str]:
    """The events of an answer, from its role chunk on."""
    words = [build_event(generation, f"word{number} ") for number in range(deltas)]
    end = [build_event(generation, finish="stop"), "[DONE]"] if whole else []
    return [build_event(generation), *words, *end]


def build_error(**more: Any) -> str:
    """The data of the event that ends a broken stream."""
    error = {"code": "upstream_decode_interrupted", "reason": "replica_died", **more}
    return json.dumps({"error": error})


def build_run(
    attempt_id: str, replica: str, at: float, events: list[str], tokens: int, ended: str
) -> list[EngineLine]:
    """An engine's lines of one attempt: a millisecond after the other."""
    lines = [EngineLine(at, replica, attempt_id, "start")]
    lines += [EngineLine(at, replica, attempt_id, "token") for _ in range(tokens)]
    lines += [EngineLine(at, replica, attempt_id, "chunk", f"data: {event}\n\n") for event in events]
    lines += [EngineLine(at, replica, attempt_id, "end", ended=ended)]
    return [replace(line, time=at + number / 1000) for number, line in enumerate(lines)]


def build_attempt(number: int, replica: str, outcome: str) -> dict[str, Any]:
    """One attempt, as the operations API tells it."""
    return {
        "attempt": number,
        "attempt_id": f"att_0000000{number}",
        "replica": replica,
        "outcome": outcome,
        "lease_expires_at": "2026-01-01T00:00:00.000Z",
        "first_byte_at": None,
        "ended_at": "2026-01-01T00:00:00.000Z",
    }


def build_trace(attempts: int, first_delta: float | None) -> list[dict[str, Any]]:
    """What the sidecar records and sends, each attempt a second after the one before."""
    lines: list[dict[str, Any]] = []
    for number in range(1, attempts + 1):
        at, attempt_id = BEGIN + number - 0.5, f"att_0000000{number}"
        lines.append({"time": at, "kind": "recorded", "is": "AttemptStarted", "attempt_id": attempt_id})
        lines.append({"time": at, "kind": "reply", "is": "StartAttempt", "attempt_id": attempt_id})
    if first_delta is not None:
        lines.append({"kind": "recorded", "is": "FirstDeltaSent", "attempt_id": attempt_id})
        lines.append({"kind": "reply", "is": "ReleaseAttempt", "attempt_id": attempt_id})
        lines[-2]["time"] = lines[-1]["time"] = first_delta
    return lines


def build_client(status: int, events: list[str], at: float, attempts: int) -> Client:
    headers = {"x-attempt-count": str(attempts), "x-operation-id": "op_00000001"}
    seen = tuple(ClientEvent(at + number / 1000, event) for number, event in enumerate(events))
    return Client(status, headers, seen)


def build_operation(attempts: list[dict[str, Any]], deltas: int, **more: Any) -> dict[str, Any]:
    return {
        "operation_id": "op_00000001",
        "created_at": "2026-01-01T00:00:00.000Z",
        "delivered_deltas": deltas,
        "first_delta_sent": deltas > 0,
        "attempts": attempts,
        "model_revision": REVISION,
        "error": None,
        "tool_calls": [],
        **more,
    }


def build_replayed() -> tuple[Expected, Evidence]:
    """One replica was lost with two deltas of nobody's; the other one answered."""
    lost = build_answer("left-1", 2, whole=False)
    answer = build_answer("right-1", 3)
    attempts = [build_attempt(1, "left", "replica_died"), build_attempt(2, "right", "completed")]
    expected = Expected(
        answer="whole",
        delivered=3,
        attempts=(
            ExpectedAttempt(outcome="replica_died", computed=2, published=2),
            ExpectedAttempt(outcome="completed", replica="right", computed=3, published=3),
        ),
        state="completed",
        ending="finished",
    )
    engines = [
        *build_run("att_00000001", "left", BEGIN + 1, lost, 2, "killed"),
        *build_run("att_00000002", "right", BEGIN + 2, answer, 3, "done"),
    ]
    evidence = Evidence(
        client=build_client(200, answer, BEGIN + 3, 2),
        engines=tuple(engines),
        operation=build_operation(attempts, 3, state="completed", ending="finished"),
        trace=tuple(build_trace(2, BEGIN + 2.5)),
    )
    return expected, evidence


def build_interrupted() -> tuple[Expected, Evidence]:
    """A replica was lost when its client had two of its three deltas."""
    written = build_answer("left-1", 3, whole=False)
    expected = Expected(
        answer="interrupted",
        delivered=2,
        code="upstream_decode_interrupted",
        reason="replica_died",
        attempts=(ExpectedAttempt(outcome="replica_died", computed=3, published=3),),
        state="failed",
        ending="upstream_broke",
    )
    told = {"code": "upstream_decode_interrupted", "reason": "replica_died"}
    attempts = [build_attempt(1, "left", "replica_died")]
    evidence = Evidence(
        client=build_client(200, [*written[:3], build_error()], BEGIN + 2, 1),
        engines=tuple(build_run("att_00000001", "left", BEGIN + 1, written, 3, "killed")),
        operation=build_operation(attempts, 2, state="failed", ending="upstream_broke", error=told),
        trace=tuple(build_trace(1, BEGIN + 1.5)),
    )
    return expected, evidence


def build_refused() -> tuple[Expected, Evidence]:
    """A replica was lost before its first delta, and a second attempt was not allowed."""
    expected = Expected(
        answer="refused",
        delivered=0,
        status=503,
        code="replay_not_allowed",
        attempts=(ExpectedAttempt(outcome="replica_died", computed=0, published=0),),
        state="failed",
        ending="upstream_broke",
        replays_refused=("replay_not_allowed",),
    )
    attempts = [build_attempt(1, "left", "replica_died")]
    error = {"code": "replay_not_allowed", "reason": None}
    refused = {"time": BEGIN + 2, "kind": "note", "is": "ReplayRefused", "code": "replay_not_allowed"}
    client = build_client(503, [], BEGIN + 3, 1)
    evidence = Evidence(
        client=replace(client, refusal=error),
        engines=tuple(build_run("att_00000001", "left", BEGIN + 1, [], 0, "killed")),
        operation=build_operation(
            attempts, 0, state="failed", ending="upstream_broke", error=error, model_revision=None
        ),
        trace=(*build_trace(1, None), refused),
    )
    return expected, evidence
