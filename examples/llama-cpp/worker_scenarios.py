"""What llama.cpp is put through with a worker before it: it hears late that a client has left."""

import json
import os
import signal
import time
from typing import Any

from real_engines.client import Stream, get
from real_engines.engine import Replica
from real_engines.gateway import TTL_S
from real_engines.lease_desk import RENEW
from real_engines.processes import wait_for
from real_engines.stage import Outcome, check_replayed, read_outcomes, tell_journal
from real_engines.worker_stage import WorkerStage

PLAIN_TOKENS = 80
"""An answer of a second or two."""
WORDS = 80
"""A prompt of as much."""


def play_stream_left(stage: WorkerStage) -> Outcome:
    return _play_left(stage, stage.ask_long())


def play_plain_answer_left(stage: WorkerStage) -> Outcome:
    """It is computed on, to its end as a rule; whenever that is, the word comes after it."""
    body = stage.ask("Tell me a story.", max_tokens=PLAIN_TOKENS, ignore_eos=True)
    return _play_left(stage, body)


def _play_left(stage: WorkerStage, body: dict[str, Any]) -> Outcome:
    """A client that leaves in mid-generation."""
    gateway, desk = stage.gateway, stage.desk
    stream = Stream(gateway.url, body)
    replica = gateway.find_asked()
    wait_for(lambda: _count_decoded(replica) > 5, "some tokens in a slot")
    desk.at_stop = lambda: (_count_working(replica), replica.read_metric(stage.engine.work))
    left_at = time.monotonic()
    stream.leave()
    operation = wait_for(lambda: _find_newest_ended(stage), "the end of the operation in the journal")
    (attempt,) = operation["attempts"]
    word = desk.wait_stopped(attempt["attempt_id"])
    working, steps = word.saw
    checks = {
        "as the word came, no slot worked on it": working == 0,
        "and from then on not one step": replica.read_metric(stage.engine.work) == steps,
        "the journal says client_gone": operation["ending"] == "client_gone",
        "no second attempt": read_outcomes(operation) == ["cancelled"],
    }
    told = f"it left in mid-generation; the word of the stop came {(word.at - left_at) * 1000:.0f} ms later"
    return Outcome(told, tell_journal(operation), checks)


def play_engine_dies(stage: WorkerStage) -> Outcome:
    """In the prefill. Its worker lives, and the replay waits for no lease to run out."""
    gateway, desk = stage.gateway, stage.desk
    desk.at_stop = lambda: None
    body = stage.ask_stream("Which word is this? " + "truth " * WORDS, return_progress=True)
    received = gateway.count_received_bytes()
    stream = Stream(gateway.url, body)
    victim = gateway.find_asked()
    wait_for(lambda: gateway.count_received_bytes() > received, "the replica's headers")
    os.kill(victim.find_part("engine.py"), signal.SIGKILL)
    killed_at = time.monotonic()
    seen = stream.read_all()
    operation = gateway.wait_ended(seen.operation_id)
    first, second = (attempt["attempt_id"] for attempt in operation["attempts"])
    word = desk.wait_stopped(first)
    granted_at = [renewal.at for renewal in desk.read_words(first, RENEW) if renewal.granted]
    begun_at = desk.read_words(second, RENEW)[0].at
    alone = Stream(stage.other(victim).url, body).read_all()
    checks = {
        **check_replayed(seen, operation, alone, victim),
        "its worker lives": victim.alive,
        "it refuses as the engine does": _refuses(victim),
        "it said that the attempt had stopped": word.heard,
        "the replay began before the lease could run out": begun_at < granted_at[-1] + TTL_S,
    }
    victim.kill()
    told = (
        f"after the kill: the word at {(word.at - killed_at) * 1000:.0f} ms, "
        f"the replay at {(begun_at - killed_at) * 1000:.0f} ms"
    )
    return Outcome(seen.tell(), f"{told}; {tell_journal(operation)}", checks)


def _find_newest_ended(stage: WorkerStage) -> dict[str, Any] | None:
    """Of a request that its client did not stay for, the id is only in the journal."""
    (newest,) = stage.gateway.list_newest(1)
    ended = newest["ended_at"] and all(attempt["ended_at"] for attempt in newest["attempts"])
    return newest if ended else None


def _read_slots(replica: Replica) -> list[dict[str, Any]]:
    """Its own page, through the worker."""
    return list(json.loads(get(replica.url, "/slots")[2]))


def _count_working(replica: Replica) -> int:
    return sum(bool(slot["is_processing"]) for slot in _read_slots(replica))


def _count_decoded(replica: Replica) -> int:
    """The tokens that its slots have written so far, of what they work on."""
    working = [slot for slot in _read_slots(replica) if slot["is_processing"]]
    return sum(part["n_decoded"] for slot in working for part in slot["next_token"])


def _refuses(replica: Replica) -> bool:
    try:
        get(replica.url, "/health")
    except ConnectionRefusedError:
        return True
    return False
