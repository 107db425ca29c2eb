"""Does the journal agree with what each client saw, and does the policy explain each refusal?

Every complaint is one line that names the request, so that one run tells all that is wrong with it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

from bench.load.seen import BodyEnd, Seen, StreamEnd, Untrue, judge, read_marks, read_refusal, read_stream

LOST: Final = frozenset({"replica_died", "network_partition", "engine_error", "overloaded", "truncated"})
"""Outcomes that a killed replica gives an attempt; `network_partition` and the rest are counted, and
the callers say which of them their load can bring about."""


_OF_ERROR: Final = frozenset({"code", "reason", "status", "partial_output"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What the run's configuration allows, as far as refusals are explained by it."""

    max_attempts: int = 2
    budget_binds: bool = False
    """Whether more attempts may be lost at once than the retry budget lets be replayed at once."""
    store_may_be_down: bool = False
    """Whether the journal's store may take nothing for a while, and requests are refused for that."""
    others_may_be_out: bool = False
    """Whether all other replicas may be known to be out when one is lost, and nobody is left to replay at."""


@dataclass(slots=True)
class Verdict:
    """What came of a run."""

    ends: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    """Refusals by code and reason, interrupted streams by reason."""
    unopened: Counter[str] = field(default_factory=Counter)
    """Refusals without an operation, by code; they are among the refused ends."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Attempts by outcome, from the journal."""
    replays: int = 0
    """Attempts that the gate let go after the first of their request, whatever became of them."""
    replayed: int = 0
    """Complete answers that took more than one attempt."""
    without_done: int = 0
    """Complete answers whose replica was killed before its `[DONE]`."""
    unrecorded: int = 0
    """Answers that went on without the journal."""
    lost_on_the_way: int = 0
    """Refused after a first delta was recorded: it was lost with its replica, inside the gateway."""
    complaints: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    median_s: float = 0.0

    def tell(self) -> str:
        """The figures, in a few lines."""
        ends = {str(end): count for end, count in self.ends.items()}
        return (
            f"ends {ends}; {self.replays} replays; after one {self.replayed} of the complete ones,"
            f" without [DONE] {self.without_done};"
            f" lost on the way {self.lost_on_the_way} of the refused ones\n"
            f"codes {dict(self.codes)}\nattempts {dict(self.outcomes)}\n"
            f"median {self.median_s:.2f} s, longest {self.longest_s:.2f} s, complaints {len(self.complaints)}"
        )


def judge_run(
    found: Sequence[Seen], operations: Iterable[dict[str, Any]], tokens: int, policy: Policy
) -> Verdict:
    """Judge every stream, and the journal's word on it."""
    verdict = Verdict()
    by_request: dict[str, list[dict[str, Any]]] = {}
    for operation in operations:
        by_request.setdefault(operation["request_id"], []).append(operation)
        verdict.replays += max(0, len(_list_started(operation)) - 1)
        for attempt in operation["attempts"]:
            verdict.outcomes[str(attempt["outcome"])] += 1
    for seen in found:
        for complaint in _judge_one(seen, by_request.pop(seen.request_id, []), tokens, policy, verdict):
            verdict.complaints.append(f"{seen.request_id}: {complaint}")
    verdict.complaints += [f"{request_id}: in the journal, and no client asked" for request_id in by_request]
    times = [seen.total_s for seen in found]
    if len(times) > 1:
        verdict.longest_s, verdict.median_s = max(times), quantiles(times, n=2)[0]
    return verdict


def _judge_one(
    seen: Seen, operations: list[dict[str, Any]], tokens: int, policy: Policy, verdict: Verdict
) -> list[str]:
    try:
        end = judge(seen, tokens)
    except Untrue as untrue:
        verdict.ends["hung" if seen.body_end is BodyEnd.HUNG else "untrue"] += 1
        return [f"{untrue}; journal: {[_shorten(one) for one in operations]}"]
    verdict.ends[end] += 1
    if policy.store_may_be_down and end is StreamEnd.REFUSED:
        return _judge_outage(seen, operations, verdict)
    if not seen.recorded:
        return _judge_unrecorded(seen, operations, verdict)
    if end is StreamEnd.REFUSED and not operations and not seen.operation_id:
        return _judge_unopened(seen, policy, verdict)
    if len(operations) != 1:
        return [f"{end}, and {len(operations)} operations in the journal"]
    operation = operations[0]
    expected, delivered = _expect(seen, end, verdict)
    actual = {name: _read_field(operation, name) for name in expected}
    complaints = [
        f"{end} with {name} {expected[name]!r}, the journal says {actual[name]!r}: {_shorten(operation)}"
        for name in expected
        if expected[name] != actual[name]
    ]
    complaints += _check_attempts(seen, operation, end)
    if end is StreamEnd.REFUSED:
        complaints += explain_refusal(operation, policy)
    elif delivered and operation["attempts"]:
        replica = operation["attempts"][-1]["replica"]
        if replica != delivered:
            complaints.append(f"text of {delivered}, the journal says {replica}")
    verdict.replayed += end is StreamEnd.COMPLETE and seen.attempts > 1
    verdict.without_done += end is StreamEnd.COMPLETE and not read_stream(seen.body).done
    verdict.lost_on_the_way += end is StreamEnd.REFUSED and operation["first_delta_sent"]
    return complaints


OUTAGE: Final = frozenset({"upstream_unavailable", "operation_in_progress"})
"""How a gateway refuses whose store is down, or was when an earlier try under the same key ran."""


def _judge_outage(seen: Seen, operations: list[dict[str, Any]], verdict: Verdict) -> list[str]:
    """A refusal while the store may be down: it says when to come back. Where the operation has begun all the
    same, the journal says that nothing was delivered."""
    code = read_refusal(seen)["code"]
    verdict.codes[f"{code}/store"] += 1
    complaints = []
    if code not in OUTAGE or "retry-after" not in seen.hint:
        complaints.append(f"refused with {code}, hint {seen.hint!r}, and nobody was killed but the store")
    complaints += [
        f"refused, and the journal says that a part was delivered: {_shorten(one)}"
        for one in operations
        if one["state"] != "failed" or one["delivered_deltas"] or len(operations) > 1
    ]
    return complaints


def _judge_unrecorded(seen: Seen, operations: list[dict[str, Any]], verdict: Verdict) -> list[str]:
    """It went on without the journal, which says nothing of it, or the truth: it may have been told later."""
    verdict.unrecorded += 1
    deltas = read_stream(seen.body).deltas
    complaints = [
        f"went on unrecorded, and the journal says otherwise: {_shorten(one)}"
        for one in operations
        if one["state"] != "completed" or one["delivered_deltas"] != deltas
    ]
    if seen.key:
        complaints.append("went on unrecorded, and has a key")
    return complaints


def check_keys(found: Sequence[Seen]) -> list[str]:
    """No key was answered twice, or refused for good."""
    by_key: dict[str, list[Seen]] = {}
    for seen in found:
        if seen.key:
            by_key.setdefault(seen.key, []).append(seen)
    return [
        f"{key}: {[(one.request_id, one.status, one.hint) for one in tries]}"
        for key, tries in by_key.items()
        if [one.status for one in tries if one.status == 200] != [200] or tries[-1].status != 200
    ]


def _judge_unopened(seen: Seen, policy: Policy, verdict: Verdict) -> list[str]:
    """A refusal of which client and journal both say that no operation was opened for it.

    Before an operation is opened the sidecar refuses by one name, when a pool has nobody. By any other it was
    Envoy that answered in its place: the sidecar was away, or had no time.
    """
    code = read_refusal(seen)["code"]
    verdict.unopened[code] += 1
    verdict.codes[f"{code}/no operation"] += 1
    if code == "no_ready_replica" and policy.others_may_be_out and "retry-after" in seen.hint:
        return []
    return [
        f"refused with {code} after {seen.total_s:.2f} s, hint {seen.hint!r}, and no operation was opened"
    ]


def _expect(seen: Seen, end: StreamEnd, verdict: Verdict) -> tuple[dict[str, object], str | None]:
    """What the journal must say, and which replica's text the client has."""
    if end is StreamEnd.REFUSED:
        error = read_refusal(seen)
        verdict.codes[f"{error['code']}/{error.get('reason')}"] += 1
        return {
            "operation_id": seen.operation_id,
            "state": "failed",
            "ending": "upstream_broke",
            "partial_output": False,
            "delivered_deltas": 0,
            "code": error["code"],
            "reason": error.get("reason"),
            "status": seen.status,
        }, None
    reading = read_stream(seen.body)
    delivered = read_marks(reading.text)[0].replica if reading.text else None
    expected: dict[str, object] = {
        "operation_id": seen.operation_id,
        "first_delta_sent": True,
        "delivered_deltas": reading.deltas,
    }
    if end is StreamEnd.COMPLETE:
        return expected | {"state": "completed", "ending": "finished", "error": None}, delivered
    error = reading.errors[0]
    verdict.codes[f"{error['code']}/{error.get('reason')}"] += 1
    return expected | {
        "state": "failed",
        "ending": "upstream_broke",
        "code": error["code"],
        "reason": error.get("reason"),
        "delivered_output_tokens": error["delivered_output_tokens"],
        "partial_output": True,
        "status": 200,
    }, delivered


def _read_field(operation: dict[str, Any], name: str) -> object:
    return (operation["error"] or {}).get(name) if name in _OF_ERROR else operation[name]


def _check_attempts(seen: Seen, operation: dict[str, Any], end: StreamEnd) -> list[str]:
    attempts = _list_started(operation)
    complaints = []
    if len(attempts) < max(seen.attempts, 1):
        complaints.append(f"x-attempt-count {seen.attempts}, the journal has {_shorten(operation)}")
    if len({one["replica"] for one in attempts}) != len(attempts):
        complaints.append(f"two attempts at one replica: {_shorten(operation)}")
    *earlier, last = [one["outcome"] for one in attempts] or [None]
    if end is StreamEnd.COMPLETE and last != "completed":
        complaints.append(f"complete, and the last attempt is {last}")
    if not LOST.issuperset(earlier if end is StreamEnd.COMPLETE else [*earlier, last]):
        complaints.append(f"{end}, and an attempt that was not lost: {_shorten(operation)}")
    return complaints


def check_generations(records: Iterable[dict[str, Any]], operations: Iterable[dict[str, Any]]) -> list[str]:
    """No engine was asked for a generation that the journal does not know as an attempt.

    `records` are what engines told of; those who were killed first told nothing. Whatever comes through
    the gateway has a request id; without one are the control calls of the sidecar itself.
    """
    asked = Counter(record["request_id"] for record in records if record["request_id"] is not None)
    started = {one["request_id"]: len(_list_started(one)) for one in operations}
    return [
        f"{request_id}: engines were asked {count} times, the journal has {started.get(request_id)} attempts"
        for request_id, count in asked.items()
        if count > started.get(request_id, 0)
    ]


def _list_started(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts that the gate let go; a refused one has no number."""
    return [one for one in operation["attempts"] if one["attempt"] is not None]


def explain_refusal(operation: dict[str, Any], policy: Policy) -> list[str]:
    """Nothing when the policy explains why this operation was answered with an error."""
    started = len(_list_started(operation))
    match (operation["error"] or {}).get("code"):
        case "upstream_unavailable" if started == policy.max_attempts:
            return []
        case "upstream_unavailable" if operation["first_delta_sent"] and not operation["delivered_deltas"]:
            # Recorded before it was sent, and lost with its replica on the way: no replay after that.
            return []
        case "upstream_unavailable" if policy.others_may_be_out and started:
            return []
        case "retry_budget_exhausted" if policy.budget_binds and started < policy.max_attempts:
            return []
        case _:
            return [f"a refusal that the policy does not explain: {_shorten(operation)}"]


def _shorten(operation: dict[str, Any]) -> str:
    attempts = [f"{one['attempt']}@{one['replica']}:{one['outcome']}" for one in operation["attempts"]]
    return (
        f"<{operation['operation_id']} {operation['state']} {operation['ending']} {operation['error']}"
        f" deltas {operation['delivered_deltas']} {' '.join(attempts)}>"
    )
