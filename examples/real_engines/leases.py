"""What any engine's worker is put through: a lease that is lost ends the computing, and its end is told then.

The gateway's own attempts pass the desk on their way; where order must be seen to the millisecond, or an
attempt comes that no gateway sends, the desk grants the lease itself.
"""

import json
import signal
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from real_engines.client import Stream, post
from real_engines.engine import Replica
from real_engines.gateway import MARGIN_S, TTL_S
from real_engines.lease_desk import RENEW
from real_engines.processes import wait_for
from real_engines.stage import CHAT, Outcome, read_outcomes, tell_journal
from real_engines.worker_stage import (
    LogReader,
    WorkerStage,
    check_nothing_follows,
    check_stopped,
    read_page,
    tell_order,
)

STOOD_S = 4.0
"""How long a replica stands still, and twice the time of its lease."""
PAIRS = 4
"""Answers that are timed with a lease and without one, in turn."""
SAME_SECOND_TRIES = 40


Offer = Callable[[], dict[str, str]]
"""The headers of one more lease."""


@dataclass(frozen=True)
class Pace:
    tokens_per_s: float
    cpu_us_per_token: float
    """Of the engine's server, without what it started."""


def play_client_leaves(stage: WorkerStage) -> Outcome:
    stream = Stream(stage.gateway.url, stage.ask_long())
    seen = stream.read_deltas(5)
    replica = stage.gateway.find_asked()
    stage.desk.at_stop = lambda: read_page(replica)
    log = LogReader(replica)
    computing = read_page(replica).running
    left_at = time.monotonic()
    stream.leave()
    operation = stage.gateway.wait_ended(seen.operation_id)
    word = stage.desk.wait_stopped(operation["attempts"][0]["attempt_id"])
    checks = {
        "the replica was still computing": computing == 1,
        **check_stopped(stage, word, log),
        **check_nothing_follows(stage, replica, word),
        "the gateway was waiting for it": word.heard,
        "the journal says client_gone": operation["ending"] == "client_gone",
        "no second attempt": read_outcomes(operation) == ["cancelled"],
    }
    told = tell_order(stage, left_at, log, word)
    return Outcome(f"{seen.deltas} deltas, then it left", f"{told}; {tell_journal(operation)}", checks)


def play_revoked(stage: WorkerStage) -> Outcome:
    """Among others that have no lease and go on."""
    replica = stage.replicas["a"]
    others = [Stream(replica.url, stage.ask_long()) for _ in range(stage.engine.slots - 1)]
    try:
        for other in others:
            other.read_deltas(1)
        headers = stage.desk.grant("att_revoked", "op_revoked", ttl_s=1.5)
        stream = Stream(replica.url, stage.ask_long(), headers=headers)
        seen = stream.read_deltas(5)
        log = LogReader(replica)
        stage.desk.at_stop = lambda: read_page(replica)
        full = read_page(replica).running
        revoked_at = stage.desk.revoke("att_revoked")
        seen = stream.read_all()
        word = stage.desk.wait_stopped("att_revoked")
        refused = stage.desk.wait_refused("att_revoked")
        checks = {
            "all slots were taken": full == stage.engine.slots,
            "its stream is cut: no finish, no [DONE]": seen.cut and not seen.finish and not seen.done,
            "the refusal of a renewal came before it": revoked_at <= refused.at <= word.at,
            **check_stopped(stage, word, log, len(others)),
        }
    finally:
        for other in others:
            other.leave()
    wait_for(lambda: read_page(replica).running == 0, "an idle replica")
    return Outcome(seen.tell(), tell_order(stage, refused.at, log, word), checks)


def play_plain_revoked(stage: WorkerStage) -> Outcome:
    """An answer that is not streamed: what the engine makes of one that was ended is not sent."""
    replica = stage.replicas["a"]
    stage.desk.at_stop = lambda: read_page(replica)
    body = {**stage.ask_long(), "stream": False, "stream_options": None}
    log = LogReader(replica)
    with ThreadPoolExecutor() as beside:
        headers = stage.desk.grant("att_plain", "op_plain", ttl_s=1.5)
        asked = beside.submit(post, replica.url, CHAT, body, headers)
        wait_for(lambda: read_page(replica).running == 1, "the replica to compute")
        stage.desk.revoke("att_plain")
        refused = stage.desk.wait_refused("att_plain")
        status, _, answer = asked.result()
    word = stage.desk.wait_stopped("att_plain")
    code = json.loads(answer)["error"]["code"]
    checks = {
        "HTTP 503, lease_lost": (status, code) == (503, "lease_lost"),
        **check_stopped(stage, word, log),
        **check_nothing_follows(stage, replica, word),
    }
    return Outcome(f"HTTP {status}, {code}", tell_order(stage, refused.at, log, word), checks)


def play_superseded(stage: WorkerStage) -> Outcome:
    """A newer attempt of the same operation comes to the same replica; then older ones."""
    replica = stage.replicas["a"]
    stage.desk.at_stop = lambda: read_page(replica)
    older = Stream(replica.url, stage.ask_long(), headers=stage.desk.grant("att_one", "op_two_attempts", 1))
    older.read_deltas(5)
    log = LogReader(replica)
    begun_at = time.monotonic()
    refused_body = stage.ask_stream("Name five rivers.")
    newer = Stream(replica.url, refused_body, headers=stage.desk.grant("att_two", "op_two_attempts", 2))
    newer.read_all()
    seen = older.read_all()
    word = stage.desk.wait_stopped("att_one")
    stage.desk.wait_stopped("att_two")
    late = [
        post(replica.url, CHAT, refused_body, stage.desk.grant(f"att_late_{token}", "op_two_attempts", token))
        for token in (1, 2)
    ]
    codes = [(status, json.loads(body)["error"]["code"]) for status, _, body in late]
    aborted_at = log.read_time(stage.abort_line)
    checks = {
        "the newer one is answered whole": newer.seen.complete,
        "the older one is cut": seen.cut and not seen.finish and not seen.done,
        "its lease was not refused: the newer one is enough": all(
            renewal.granted for renewal in stage.desk.read_words("att_one", RENEW)
        ),
        "the engine's server had ended it before it was said to have stopped": aborted_at <= word.at,
        "one older, and one as old, are refused with 409": codes == [(409, "attempt_superseded")] * 2,
        "without a question about their lease": not stage.desk.read_words("att_late_1", RENEW),
    }
    return Outcome(seen.tell(), f"{tell_order(stage, begun_at, log, word)}; then {codes}", checks)


def play_way_cut(stage: WorkerStage) -> Outcome:
    """Nobody answers the worker any more: its answer ends with its lease."""
    stream = Stream(stage.gateway.url, stage.ask_long())
    seen = stream.read_deltas(5)
    replica = stage.gateway.find_asked()
    log = LogReader(replica)
    attempt_id = stage.gateway.show(seen.operation_id)["attempts"][0]["attempt_id"]
    wait_for(lambda: stage.desk.read_words(attempt_id, RENEW), "a renewal")
    with stage.desk.away() as cut_at:
        last = stage.desk.read_words(attempt_id, RENEW)[-1]
        seen = stream.read_all()
        ended_at = time.monotonic()
        wait_for(lambda: read_page(replica).running == 0, "the replica to stop computing")
        stopped_at = log.read_time(stage.abort_line)
    operation = stage.gateway.wait_ended(seen.operation_id)
    error = seen.errors[0] if seen.errors else {}
    checks = {
        "part of the answer came": seen.deltas >= 5 and not seen.finish,
        "then one error event, and nothing after it": len(seen.errors) == 1 and seen.after_error == 0,
        "code upstream_decode_interrupted": error.get("code") == "upstream_decode_interrupted",
        "it computed on for a while: one lost renewal is no end": ended_at > cut_at + TTL_S / 3,
        "the engine had ended it before the gateway would call the lease over": stopped_at
        < last.at + TTL_S + MARGIN_S,
        "no second attempt": len(operation["attempts"]) == 1,
    }
    told = (
        f"the engine ended it {stopped_at - last.at:.2f} s after the last renewal, of {TTL_S:.0f} s, had come"
    )
    return Outcome(seen.tell(), f"{told}; {tell_journal(operation)}", checks)


def play_stands_still(stage: WorkerStage) -> Outcome:
    """The whole replica, for longer than its lease. Its clock goes on, and the desk would grant more time."""
    replica = stage.replicas["a"]
    stage.desk.at_stop = lambda: read_page(replica)
    headers = stage.desk.grant("att_stood", "op_stood", ttl_s=STOOD_S / 2)
    stream = Stream(replica.url, stage.ask_long(), headers=headers)
    stream.read_deltas(5)
    log = LogReader(replica)
    with ThreadPoolExecutor() as beside:
        reading = beside.submit(stream.read_all)
        replica.send(signal.SIGSTOP)
        try:
            time.sleep(STOOD_S)
        finally:
            went_on_at = time.monotonic()
            replica.send(signal.SIGCONT)
        seen = reading.result()
    word = stage.desk.wait_stopped("att_stood")
    checks = {
        "not one chunk after it had gone on": 0 < seen.last_delta_at < went_on_at,
        "the stream is cut": seen.cut and not seen.finish,
        **check_stopped(stage, word, log),
    }
    return Outcome(seen.tell(), tell_order(stage, went_on_at, log, word), checks)


def play_same_answers(stage: WorkerStage) -> Outcome:
    """With a lease and without one, at the same replica: the bytes are the same, and the speed is told."""
    replica = stage.replicas["a"]
    stage.desk.at_stop = lambda: None
    numbers = iter(range(1_000))

    def offer() -> dict[str, str]:
        number = next(numbers)
        return stage.desk.grant(f"att_same_{number}", f"op_same_{number}")

    plain = _ask_twice_in_one_second(stage, replica, offer())
    body = stage.ask_stream("Name five fruits.")
    with_lease = Stream(replica.url, body, headers=offer()).read_all()
    without = Stream(replica.url, body).read_all()
    checks = {
        "an answer in one piece is the same byte for byte, and its headers too": plain is not None
        and plain[0] == plain[1],
        "a stream is the same text, finish and usage": with_lease.complete
        and (with_lease.text, with_lease.finish, with_lease.usage)
        == (without.text, without.finish, without.usage),
        "with the same headers": {*with_lease.headers} == {*without.headers},
    }
    speeds = _time_pairs(stage, replica, offer)
    return Outcome(
        f"HTTP {with_lease.status}, {len(plain[0][2]) if plain else 0} bytes of JSON", speeds, checks
    )


def _ask_twice_in_one_second(stage: WorkerStage, replica: Replica, offer: dict[str, str]) -> Any:
    """Two answers that may be equal to the last byte: an engine writes the second of its answer into it."""
    body = stage.ask("Name five fruits.")
    name = {"x-request-id": "the-same"}
    for number in range(SAME_SECOND_TRIES):
        lease = {**offer, "x-envoy-ext-operation": f"op_second_{number}"}
        answers = [post(replica.url, CHAT, body, {**name, **more}) for more in (lease, {})]
        if len({json.loads(answer)["created"] for _, _, answer in answers}) == 1:
            return [
                (status, {name: value for name, value in headers.items() if name != "date"}, answer)
                for status, headers, answer in answers
            ]
    return None


def _time_pairs(stage: WorkerStage, replica: Replica, offer: Offer) -> str:
    """Speeds in turn, and the server's own processor time, which other work on the machine moves less."""
    told = []
    for count in (1, stage.engine.slots):
        pairs: list[dict[bool, Pace]] = []
        for number in range(PAIRS):
            order = (True, False) if number % 2 else (False, True)
            pairs.append({leased: _measure(stage, replica, offer, count, leased=leased) for leased in order})
        parts = []
        for what in ("tokens_per_s", "cpu_us_per_token"):
            with_lease, without = (
                statistics.median(getattr(pair[leased], what) for pair in pairs) for leased in (True, False)
            )
            ratios = [getattr(pair[True], what) / getattr(pair[False], what) for pair in pairs]
            each = " ".join(f"{ratio:.2f}" for ratio in ratios)
            parts.append(
                f"{what} {with_lease:.0f} with a lease, {without:.0f} without, "
                f"ratio {statistics.median(ratios):.2f} ({each})"
            )
        told.append(f"{count} at once: {', '.join(parts)}")
    return "; ".join(told)


def _measure(stage: WorkerStage, replica: Replica, offer: Offer, count: int, *, leased: bool) -> Pace:
    """So many streams at once, to their ends."""
    tokens = stage.engine.some_tokens // (4 if count == 1 else count)
    body = stage.ask_stream("Tell me a story.", max_tokens=tokens, ignore_eos=True)
    cpu_s, begun = replica.read_cpu_s(), time.monotonic()
    streams = [Stream(replica.url, body, headers=offer() if leased else {}) for _ in range(count)]
    threads = [threading.Thread(target=stream.read_all) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s, cpu_s = time.monotonic() - begun, replica.read_cpu_s() - cpu_s
    tokens = sum(int((stream.seen.usage or {})["completion_tokens"]) for stream in streams)
    return Pace(tokens / took_s, cpu_s / tokens * 1e6)
