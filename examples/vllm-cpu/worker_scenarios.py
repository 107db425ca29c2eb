"""What only vLLM's worker is put through: it speaks for a process that is not its own."""

import signal
import time

from real_engines.client import Stream, get
from real_engines.engine import Replica
from real_engines.lease_desk import RENEW, STOPPED
from real_engines.processes import wait_for
from real_engines.stage import Outcome, check_whole, read_outcomes, tell_journal
from real_engines.worker_stage import (
    STOPPED_LINE,
    LogReader,
    WorkerStage,
    check_stopped,
    read_page,
    tell_order,
)
from scenarios import CORE, signal_core


def play_core_stands_still(stage: WorkerStage) -> Outcome:
    """The server has ended the request at once; the engine behind it has not heard of it."""
    replica, desk = stage.replicas["a"], stage.desk
    desk.at_stop = lambda: read_page(replica)
    stream = Stream(replica.url, stage.ask_long(), headers=desk.grant("att_still", "op_still", ttl_s=1.5))
    stream.read_deltas(5)
    log = LogReader(replica)
    signal_core(replica, signal.SIGSTOP)
    try:
        revoked_at = desk.revoke("att_still")
        desk.wait_refused("att_still")
        log.read_time(stage.abort_line)
        stage.gateway.wait_reading(replica, reasons=["hang"])  # some seconds in which nothing moves
        early = desk.read_words("att_still", STOPPED) or log.has(STOPPED_LINE)
        running = read_page(replica).running
    finally:
        went_on_at = time.monotonic()
        signal_core(replica, signal.SIGCONT)
    word = desk.wait_stopped("att_still")
    seen = stream.read_all()
    checks = {
        "while it stands still the slot is taken, by its own page": running == 1,
        "and not a word of a stop": not early,
        "the word comes when it goes on": word.at > went_on_at,
        **check_stopped(stage, word, log),
        "the stream is cut": seen.cut and not seen.finish,
    }
    told = (
        f"it stood still for {went_on_at - revoked_at:.1f} s after the revocation; from its going on, "
        f"{tell_order(stage, went_on_at, log, word)}"
    )
    return Outcome(seen.tell(), told, checks)


def play_core_dies(stage: WorkerStage) -> Outcome:
    """In the prefill: the replay waits for the word, and the word is that of the server that lives on."""
    gateway, desk = stage.gateway, stage.desk
    body = stage.ask_stream("Name five rivers.")
    received = gateway.count_received_bytes()
    for replica in stage.replicas.values():
        signal_core(replica, signal.SIGSTOP)
    try:
        stream = Stream(gateway.url, body)
        victim = gateway.find_asked()
        wait_for(lambda: gateway.count_received_bytes() > received, "the replica's headers")
        desk.at_stop = lambda: _list_computing(victim)
        signal_core(victim, signal.SIGKILL)
        killed_at = time.monotonic()
    finally:
        signal_core(stage.other(victim), signal.SIGCONT)
    seen = stream.read_all()
    operation = gateway.wait_ended(seen.operation_id)
    first, second = (attempt["attempt_id"] for attempt in operation["attempts"])
    word = desk.wait_stopped(first)
    begun_at = desk.read_words(second, RENEW)[0].at
    left = word.saw
    health = get(victim.url, "/health")[0]
    alone = Stream(stage.other(victim).url, body).read_all()
    checks = {
        **check_whole(seen, operation, alone, 2),
        "one failed, one answered": read_outcomes(operation) == ["engine_error", "completed"],
        "its server lives and says so": (victim.alive, health) == (True, 503),
        "the replay began after the word, and not before": word.at < begun_at,
        "as the word came, there was no engine any more": CORE not in " ".join(left),
    }
    wait_for(lambda: not _list_computing(victim), "the end of all that computes")
    ended_at = time.monotonic()
    victim.kill()
    told = (
        f"after the kill: the word at {(word.at - killed_at) * 1000:.0f} ms, "
        f"the replay at {(begun_at - killed_at) * 1000:.0f} ms; left then: {left or 'nothing'}, "
        f"the last of it gone by {(ended_at - killed_at) * 1000:.0f} ms"
    )
    return Outcome(seen.tell(), f"{told}; {tell_journal(operation)}", checks)


def _list_computing(replica: Replica) -> list[str]:
    """The processes behind its server, by their titles."""
    return [title for title in replica.list_parts().values() if title.startswith("VLLM::")]
