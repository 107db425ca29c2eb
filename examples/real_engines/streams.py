"""What any engine's replicas are put through, and what must come of it.

Wherever a text can be compared, it is compared with what a replica says when it is asked itself, without
a gateway: the requests are such that every replica gives the same answer.
"""

import json
import signal

from real_engines.client import Stream, post
from real_engines.processes import wait_for
from real_engines.stage import (
    CHAT,
    Outcome,
    Stage,
    check_interrupted,
    check_replayed,
    check_whole,
    read_outcomes,
    tell_journal,
)


def play_good_stream(stage: Stage) -> Outcome:
    body = stage.ask_stream("Name five colours.")
    alone = Stream(stage.replicas["a"].url, body).read_all()
    seen = Stream(stage.gateway.url, body).read_all()
    operation = stage.gateway.wait_ended(seen.operation_id)
    return Outcome(seen.tell(), tell_journal(operation), check_whole(seen, operation, alone, 1))


def play_kill_in_mid_answer(stage: Stage) -> Outcome:
    body = stage.ask_long()
    stream = Stream(stage.gateway.url, body)
    stream.read_deltas(20)
    victim = stage.gateway.find_asked()
    survivor = stage.other(victim)
    computed = survivor.read_metric(stage.engine.work)
    victim.kill()
    seen = stream.read_all()
    operation = stage.gateway.wait_ended(seen.operation_id)
    idle = survivor.read_metric(stage.engine.work) == computed
    stream = Stream(survivor.url, body)
    alone = stream.read_text(len(seen.text))
    stream.leave()
    replica = operation["attempts"][0]["replica"]
    checks = {
        **check_interrupted(seen, operation, alone, "replica_died"),
        "no second generation was started": idle,
        "attempts = 1": read_outcomes(operation) == ["replica_died"] and replica == victim.name,
    }
    return Outcome(seen.tell(), tell_journal(operation), checks)


def play_kill_before_headers(stage: Stage) -> Outcome:
    body = stage.ask_stream("Name five animals.")
    alone = Stream(stage.replicas["a"].url, body).read_all()
    for replica in stage.replicas.values():
        replica.send(signal.SIGSTOP)  # its kernel still accepts: the request lies there unread
    try:
        stream = Stream(stage.gateway.url, body)
        victim = stage.gateway.find_asked()
        victim.kill()
    finally:
        for replica in stage.replicas.values():
            replica.send(signal.SIGCONT)
    seen = stream.read_all()
    operation = stage.gateway.wait_ended(seen.operation_id)
    checks = check_replayed(seen, operation, alone, victim)
    checks["the first had not begun to answer"] = operation["attempts"][0]["first_byte_at"] is None
    return Outcome(seen.tell(), tell_journal(operation), checks)


def play_client_leaves(stage: Stage) -> Outcome:
    stream = Stream(stage.gateway.url, stage.ask_long())
    seen = stream.read_deltas(5)
    replica = stage.gateway.find_asked()
    computing = replica.read_metric(stage.engine.running)
    stream.leave()
    wait_for(lambda: replica.read_metric(stage.engine.running) == 0, "the replica to stop computing")
    operation = stage.gateway.wait_ended(seen.operation_id)
    checks = {
        "the replica was still computing": computing == 1,
        "the journal knows which one": operation["attempts"][0]["replica"] == replica.name,
        "the journal says client_gone": operation["ending"] == "client_gone",
        "no second attempt": read_outcomes(operation) == ["cancelled"],
    }
    told = f"{seen.tell().partition(', finish')[0]}, then it left; the replica has stopped computing"
    return Outcome(told, tell_journal(operation), checks)


def play_plain_answer(stage: Stage) -> Outcome:
    body = stage.ask("Name five fruits.")
    status, headers, answer = post(stage.gateway.url, CHAT, body)
    alone = json.loads(post(stage.replicas["a"].url, CHAT, body)[2])
    operation = stage.gateway.wait_ended(headers.get("x-operation-id", ""))
    checks = {
        "the same answer as from a replica itself": status == 200
        and json.loads(answer)["choices"] == alone["choices"],
        "the journal says completed": operation["state"] == "completed",
        "attempts = 1": read_outcomes(operation) == ["completed"],
    }
    return Outcome(f"HTTP {status}, {len(answer)} bytes of JSON", tell_journal(operation), checks)


def play_prompt_too_long(stage: Stage) -> Outcome:
    """The engine's refusal is the client's own, and passes as it is."""
    body = stage.ask_stream("word " * stage.engine.too_many_words)
    status, headers, answer = post(stage.gateway.url, CHAT, body)
    alone = post(stage.replicas["a"].url, CHAT, body)
    operation = stage.gateway.wait_ended(headers.get("x-operation-id", ""))
    kind = json.loads(answer)["error"].get("type")
    checks = {
        "HTTP 400, as from the engine": status == alone[0] == 400,
        "the engine's own words, unchanged": answer == alone[2] and kind == stage.engine.too_long_error,
        "no replay": read_outcomes(operation) == ["client_error"],
    }
    return Outcome(f"HTTP {status}, {kind}", tell_journal(operation), checks)
