"""What the sidecar says of real replicas that idle, work, stand still, die and come back, and who gets work.

Each reading is compared with what the engine's own page says, or with what was done to it.
"""

import signal

from real_engines.client import Seen, Stream
from real_engines.engine import Replica
from real_engines.gateway import Reading
from real_engines.processes import wait_for
from real_engines.stage import Outcome, Stage, check_whole, read_outcomes, tell_journal

SERVING = ("warming", "ready")
QUEUED = 5
"""Requests in an engine's own queue: one more than the config's `waiting.leave`."""
EVEN = 5
"""Weights do not move for less than this."""


def tell(name: str, reading: Reading) -> str:
    """One reading, in a few words."""
    why = f" ({', '.join(reading['reasons'])})" if reading["reasons"] else ""
    load = ", ".join(f"{word} {reading[word]}" for word in ("running", "waiting", "weight"))
    return f"{name} {reading['state']}{why}, {load}"


def have_even_weights(stage: Stage) -> bool:
    weights = [one["weight"] for one in stage.gateway.read_all().values()]
    return None not in weights and max(weights) - min(weights) < EVEN


def has_less_weight(readings: dict[str, Reading], one: Replica, other: Replica) -> bool:
    return bool(readings[one.name]["weight"] < readings[other.name]["weight"])


def ask_some(stage: Stage, count: int = 3) -> list[Seen]:
    """A few short requests through the gateway, one after the other."""
    body = stage.ask_stream("Name a colour.", max_tokens=4)
    return [Stream(stage.gateway.url, body).read_all() for _ in range(count)]


def check_untouched(stage: Stage, replica: Replica, asked: int, answers: list[Seen]) -> dict[str, bool]:
    """Every request went to the other replica, and straight there."""
    operations = stage.gateway.wait_all_ended(len(answers))
    replicas = [[attempt["replica"] for attempt in one["attempts"]] for one in operations]
    return {
        "every answer is whole": all(seen.complete for seen in answers),
        "each of them by one attempt, at the other replica": replicas
        == [[stage.other(replica).name]] * len(answers),
        f"not one request reached {replica.name}": stage.gateway.count_asked(replica) == asked,
    }


def play_idle(stage: Stage) -> Outcome:
    wait_for(lambda: have_even_weights(stage), "even weights")
    readings = {one["id"]: one for one in stage.gateway.ask("status")["replicas"]}
    both = list(readings.values())
    usages = [one["kv_cache_usage"] for one in both]
    checks = {
        "both are ready": [one["ready"] for one in both] == [True, True],
        "in service by their state too": all(one["state"] in SERVING for one in both),
        "nothing stands against them": [one["reasons"] for one in both] == [[], []],
        "running 0 and waiting 0, by number": [(one["running"], one["waiting"]) for one in both]
        == [(0, 0)] * 2,
        "no stream of our own": [one["inflight"] for one in both] == [0, 0],
        "the KV cache as the page has it: 0, or null where it has no word of it": usages
        == [0 if stage.engine.tells_kv_cache else None] * 2,
        "a page of this moment": all(0 <= one["sample_age_s"] < stage.stale_s for one in both),
    }
    told = "; ".join(tell(name, one) for name, one in readings.items())
    return Outcome("no request", told, checks)


def play_loaded(stage: Stage) -> Outcome:
    loaded, other = stage.replicas["a"], stage.replicas["b"]
    gateway, slots = stage.gateway, stage.engine.slots
    work: list[Stream] = []  # asked of the replica itself: the gateway knows of it by its page only
    try:
        work += [Stream(loaded.url, stage.ask_long()) for _ in range(slots // 2)]
        gateway.wait_reading(loaded, running=slots // 2)
        wait_for(
            lambda: has_less_weight(gateway.read_all(), loaded, other),
            "a smaller weight than that of the idle one",
        )
        half = gateway.read(loaded)
        work += [Stream(loaded.url, stage.ask_long()) for _ in range(slots - slots // 2 + QUEUED)]
        full = gateway.wait_reading(loaded, state="saturated", running=slots, waiting=QUEUED)
        own = tuple(loaded.read_metric(name) for name in (stage.engine.running, stage.engine.waiting))
        gateway.wait_heard(loaded, healthy=False)
        asked = gateway.count_asked(loaded)
        answers = ask_some(stage)
        untouched = check_untouched(stage, loaded, asked, answers)
    finally:
        for stream in work:
            stream.leave()
    back = gateway.wait_reading(loaded, ready=True, running=0, waiting=0, reasons=[])
    gateway.wait_heard(loaded, healthy=True)
    wait_for(lambda: gateway.read(loaded)["weight"] > half["weight"], "more weight than half full")
    usages = (half["kv_cache_usage"], full["kv_cache_usage"])
    checks = {
        "half full: ready, nothing against it": half["ready"] and half["reasons"] == [],
        "full: not ready, because of its queue and nothing else": not full["ready"]
        and full["reasons"] == ["waiting"],
        "the engine's own numbers": own == (slots, QUEUED),
        "none of it counted as ours": full["inflight"] == 0,
        "its KV cache fills, or null where its page has no word of it": (0 < usages[0] < usages[1] < 1)
        if stage.engine.tells_kv_cache
        else usages == (None, None),
        **untouched,
        "the same process all along": half["incarnation"] == back["incarnation"],
    }
    return Outcome(
        f"{len(answers)} requests while it was full, {sum(one.complete for one in answers)} complete answers",
        "; ".join(tell("a", one) for one in (half, full, back)),
        checks,
    )


def play_stopped(stage: Stage) -> Outcome:
    """Stands still in mid-answer for longer than its pages may be old: slow is not dead."""
    gateway = stage.gateway
    body = stage.ask_some()
    stream = Stream(gateway.url, body)
    stream.read_deltas(5)
    victim = gateway.find_asked()
    victim.send(signal.SIGSTOP)
    try:
        gateway.wait_reading(victim, reasons=["metrics_stale"])
        both = gateway.read_all()
    finally:
        victim.send(signal.SIGCONT)
    seen = stream.read_all()
    operation = gateway.wait_ended(seen.operation_id)
    back = gateway.wait_reading(victim, reasons=[], running=0)
    still, other = both[victim.name], both[stage.other(victim).name]
    checks = {
        **check_whole(seen, operation, Stream(victim.url, body).read_all(), 1),
        "it stays ready: no page is no death": still["ready"] is True,
        "what is not known is null": (still["running"], still["waiting"], still["kv_cache_usage"])
        == (None, None, None),
        "the age of the last page is told": still["sample_age_s"] >= stage.stale_s,
        "our own stream there is counted": still["inflight"] == 1,
        "it has no more weight than the one that is seen": still["weight"] <= other["weight"],
        "the same process after it": still["incarnation"] == back["incarnation"] and back["ready"],
    }
    return Outcome(seen.tell(), f"{tell(victim.name, still)}; {tell_journal(operation)}", checks)


def find_loading(stage: Stage, replica: Replica) -> Reading | None:
    reading = stage.gateway.read(replica)
    return reading if stage.engine.loading_word in reading["reasons"] else None


def play_comes_back(stage: Stage) -> Outcome:
    gateway, returning = stage.gateway, stage.replicas["b"]
    before = gateway.read(returning)
    returning.kill()
    early = ask_some(stage)
    lost = [outcome for one in gateway.wait_all_ended(len(early)) for outcome in read_outcomes(one)[:-1]]
    gone = gateway.wait_reading(returning, ready=False)
    gateway.wait_heard(returning, healthy=False)
    asked = gateway.count_asked(returning)
    with returning.slowed():
        returning.launch()
        loading = wait_for(lambda: find_loading(stage, returning), f"{returning.name} to be seen loading")
    returning.send(signal.SIGSTOP)  # and stays there, until enough was asked
    try:
        answers = ask_some(stage)
        untouched = check_untouched(stage, returning, asked, answers)
        still = gateway.read(returning)
    finally:
        returning.send(signal.SIGCONT)
    returning.wait_ready()
    gateway.wait_reading(returning, ready=True)
    both = gateway.read_all()
    back = both[returning.name]
    tokens = returning.read_metric(stage.engine.tokens)
    gateway.wait_heard(returning, healthy=True)
    checks = {
        "whoever asked as it died got a whole answer": all(seen.complete for seen in early),
        "and met nothing but a replica that had died": {*lost} <= {"replica_died"},
        "dead: unready, because nothing listens there": gone["state"] == "unready"
        and {*gone["reasons"]} - {"metrics_stale"} == {"refused"},
        "no weight while it is dead or loads": gone["weight"] is loading["weight"] is None,
        "not ready while it loads": not loading["ready"] and not still["ready"],
        **untouched,
        "back in service": back["state"] in SERVING and back["reasons"] == [],
        "as another process": int(back["incarnation"]) > int(before["incarnation"]),
        "after a control call of one token, and before any request": tokens == 1
        and gateway.count_asked(returning) == asked,
        "with less work at first": back["weight"] <= both[stage.other(returning).name]["weight"],
    }
    return Outcome(
        f"{len(early + answers)} requests, {sum(seen.complete for seen in early + answers)} complete answers",
        "; ".join(tell("b", one) for one in (gone, loading, back)),
        checks,
    )


def play_drain(stage: Stage) -> Outcome:
    gateway = stage.gateway
    body = stage.ask_some()
    stream = Stream(gateway.url, body)
    stream.read_deltas(5)
    leaving = gateway.find_asked()
    gateway.order(leaving, "drain")
    draining = gateway.wait_reading(leaving, state="draining")
    gateway.wait_heard(leaving, healthy=False)
    asked = gateway.count_asked(leaving)
    seen = stream.read_all()
    operation = gateway.wait_ended(seen.operation_id)
    drained = gateway.wait_reading(leaving, inflight=0)
    untouched = check_untouched(stage, leaving, asked, ask_some(stage))
    gateway.order(leaving, "undrain")
    back = gateway.wait_reading(leaving, ready=True, reasons=[])
    checks = {
        "its stream ends whole": seen.complete and read_outcomes(operation) == ["completed"],
        "taken out by order, its stream still counted": draining["reasons"] == ["draining"]
        and (draining["ready"], draining["inflight"]) == (False, 1),
        "and when that stream is over, still out": (drained["state"], drained["ready"])
        == ("draining", False),
        **untouched,
        "back by order, the same process": back["incarnation"] == draining["incarnation"],
    }
    return Outcome(seen.tell(), f"{tell(leaving.name, draining)}; {tell_journal(operation)}", checks)
