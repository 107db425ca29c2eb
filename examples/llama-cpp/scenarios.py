"""What only llama.cpp's servers are put through, and what must come of it."""

import json

from real_engines.client import Stream, get, post
from real_engines.processes import wait_for
from real_engines.readings import tell
from real_engines.stage import Outcome, Stage, check_replayed, read_outcomes, tell_journal

LONG_PROMPT = 300
"""Words: seconds of computing before the first token."""


def play_kill_in_prefill(stage: Stage) -> Outcome:
    # llama.cpp sends its headers before it computes, and with return_progress events of that as well.
    body = stage.ask_stream("Which word is this? " + "truth " * LONG_PROMPT, return_progress=True)
    received = stage.gateway.count_received_bytes()
    stream = Stream(stage.gateway.url, body)
    victim = stage.gateway.find_asked()
    wait_for(lambda: stage.gateway.count_received_bytes() > received, "the replica's headers")
    victim.kill()
    seen = stream.read_all()
    operation = stage.gateway.wait_ended(seen.operation_id)
    alone = Stream(stage.other(victim).url, body).read_all()
    checks = check_replayed(seen, operation, alone, victim)
    checks["the first had begun to answer"] = operation["attempts"][0]["first_byte_at"] is not None
    return Outcome(seen.tell(), tell_journal(operation), checks)


def play_without_metrics(stage: Stage) -> Outcome:
    """A matter of how it was started, and nothing is wrong with it: a control call proves it."""
    replica, spared = stage.replicas["b"], stage.replicas["a"]
    before = stage.gateway.read(replica)
    replica.kill()
    replica.start("--no-metrics")
    stage.gateway.wait_reading(replica, ready=True)
    both = stage.gateway.read_all()
    reading, other = both[replica.name], both[spared.name]
    status, _, page = get(replica.url, "/metrics")
    stage.gateway.order(spared, "drain")  # so that the next request is its own
    stage.gateway.wait_heard(spared, healthy=False)
    seen = Stream(stage.gateway.url, stage.ask_stream("Name five colours.")).read_all()
    operation = stage.gateway.wait_ended(seen.operation_id)
    stage.gateway.order(spared, "undrain")
    replica.kill()
    figures = ("running", "waiting", "kv_cache_usage", "sample_age_s")
    checks = {
        "the engine answers 501": status == 501
        and json.loads(page)["error"]["type"] == "not_supported_error",
        "the one thing to say is that it has no metrics": reading["reasons"] == ["metrics_unsupported"],
        "no figure is made up": [reading[figure] for figure in figures] == [None] * len(figures),
        "it has no more weight than the one that is seen": reading["weight"] <= other["weight"],
        "known to be another process": int(reading["incarnation"]) > int(before["incarnation"]),
        "it answers": seen.complete,
        "attempts = 1, at this replica": [one["replica"] for one in operation["attempts"]] == ["b"],
    }
    return Outcome(seen.tell(), f"{tell('b', reading)}; {tell_journal(operation)}", checks)


def play_embeddings(stage: Stage) -> Outcome:
    body = {"model": "smollm2", "input": "The truth, and nothing else."}
    status, headers, answer = post(stage.gateway.url, "/v1/embeddings", body)
    alone = json.loads(post(stage.replicas["a"].url, "/v1/embeddings", body)[2])
    operation = stage.gateway.wait_ended(headers.get("x-operation-id", ""))
    checks = {
        "the same vector as from a replica itself": status == 200
        and json.loads(answer)["data"] == alone["data"],
        "the journal says completed": operation["state"] == "completed",
        "attempts = 1": read_outcomes(operation) == ["completed"],
    }
    return Outcome(f"HTTP {status}, {len(answer)} bytes of JSON", tell_journal(operation), checks)
