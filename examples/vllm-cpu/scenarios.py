"""What only vLLM is put through: its server and its engine are processes of their own, and break singly."""

import os
import signal

from real_engines.client import Stream, get
from real_engines.engine import Replica
from real_engines.processes import wait_for
from real_engines.readings import ask_some, check_untouched, tell
from real_engines.stage import (
    Outcome,
    Stage,
    check_replayed,
    check_whole,
    read_outcomes,
    tell_journal,
)

CORE = "VLLM::EngineCore"


def signal_core(replica: Replica, number: signal.Signals) -> None:
    """Send a signal to the process that computes, behind the one that answers."""
    os.kill(replica.find_part(CORE), number)


def play_kill_in_prefill(stage: Stage) -> Outcome:
    """vLLM sends its 200 at once; with engines that stand still, nothing follows."""
    gateway = stage.gateway
    body = stage.ask_stream("Name five rivers.")
    received = gateway.count_received_bytes()
    for replica in stage.replicas.values():
        signal_core(replica, signal.SIGSTOP)
    try:
        stream = Stream(gateway.url, body)
        victim = gateway.find_asked()
        wait_for(lambda: gateway.count_received_bytes() > received, "the replica's headers")
        victim.kill()
    finally:
        for replica in stage.replicas.values():
            if replica.alive:
                signal_core(replica, signal.SIGCONT)
    seen = stream.read_all()
    operation = gateway.wait_ended(seen.operation_id)
    alone = Stream(stage.other(victim).url, body).read_all()
    checks = check_replayed(seen, operation, alone, victim)
    checks["the first had begun to answer"] = operation["attempts"][0]["first_byte_at"] is not None
    return Outcome(seen.tell(), tell_journal(operation), checks)


def play_core_stands_still(stage: Stage) -> Outcome:
    """Its server answers to everything, with the figures of a moment that does not end."""
    gateway = stage.gateway
    body = stage.ask_some()
    stream = Stream(gateway.url, body)
    stream.read_deltas(5)
    victim = gateway.find_asked()
    signal_core(victim, signal.SIGSTOP)
    try:
        still = gateway.wait_reading(victim, reasons=["hang"])
        health = get(victim.url, "/health")[0]
        own = (victim.read_metric(stage.engine.running), victim.read_metric(stage.engine.waiting))
        gateway.wait_heard(victim, healthy=False)
        asked = gateway.count_asked(victim)
        untouched = check_untouched(stage, victim, asked, ask_some(stage))
    finally:
        signal_core(victim, signal.SIGCONT)
    seen = stream.read_all()
    operation = gateway.wait_ended(seen.operation_id)
    back = gateway.wait_reading(victim, 60, ready=True, reasons=[], running=0)
    checks = {
        "by its own word it is well, and works": (health, own) == (200, (1, 0)),
        "its pages come, and are read as they are": (still["running"], still["waiting"]) == own
        and still["sample_age_s"] < stage.stale_s,
        "no work for it while nothing moves": not still["ready"] and still["state"] == "unready",
        **untouched,
        **check_whole(seen, operation, Stream(victim.url, body).read_all(), 1),
        "the same process after it": still["incarnation"] == back["incarnation"],
    }
    return Outcome(seen.tell(), f"{tell(victim.name, still)}; {tell_journal(operation)}", checks)


def play_core_dies(stage: Stage) -> Outcome:
    """Its server answers on, for good with the setting that engine.py gives it, and its pages look idle."""
    gateway = stage.gateway
    body = stage.ask_long()
    stream = Stream(gateway.url, body)
    stream.read_deltas(20)
    victim = gateway.find_asked()
    signal_core(victim, signal.SIGKILL)
    seen = stream.read_all()
    dead = gateway.wait_reading(victim, reasons=["engine_dead"])
    page = get(victim.url, "/metrics")[0]
    health = get(victim.url, "/health")[0]
    gateway.wait_heard(victim, healthy=False)
    asked = gateway.count_asked(victim)
    untouched = check_untouched(stage, victim, asked, ask_some(stage))
    victim.kill()
    operation = gateway.wait_ended(seen.operation_id)
    stream = Stream(stage.other(victim).url, body)
    alone = stream.read_text(len(seen.text))
    stream.leave()
    error = seen.errors[0] if seen.errors else {}
    checks = {
        "part of the answer came": seen.deltas >= 20 and not seen.finish,
        "the begin of the answer that a replica itself gives": alone.text.startswith(seen.text),
        "then vLLM's own error event, once and as it is": len(seen.errors) == 1
        and (error.get("type"), error.get("code")) == ("InternalServerError", 500),
        "an orderly end of the body": not seen.cut,
        "the journal says failed, by the engine": operation["state"] == "failed"
        and (operation["ending"], read_outcomes(operation)) == ("upstream_broke", ["engine_error"]),
        "client and journal count the same deltas": seen.deltas == operation["delivered_deltas"],
        "its page is there, its health is not": (page, health) == (200, 503),
        "unready, whatever the page shows": dead["state"] == "unready" and not dead["ready"],
        **untouched,
    }
    return Outcome(seen.tell(), f"{tell(victim.name, dead)}; {tell_journal(operation)}", checks)
