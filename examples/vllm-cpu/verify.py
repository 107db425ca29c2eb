"""Plays the main job on two real vLLM servers behind a real Envoy. Started by verify.sh."""

import sys
from pathlib import Path

import worker_scenarios
from real_engines import leases, readings, streams, verify
from real_engines.engine import Engine
from real_engines.worker_stage import Workers
from scenarios import play_core_dies, play_core_stands_still, play_kill_in_prefill

VLLM = Engine(
    model="tiny",
    slots=8,
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    work="vllm:iteration_tokens_total_count",
    tokens="vllm:generation_tokens_total",
    tells_kv_cache=True,
    loading_word="refused",
    long_answer_tokens=15_000,
    some_tokens=4_000,
    too_many_words=17_000,
    too_long_error="BadRequestError",
    start_s=300.0,
)

SCENARIOS = {
    "both idle": readings.play_idle,
    "one of them full of others' requests": readings.play_loaded,
    "nothing fails": streams.play_good_stream,
    "the client leaves in mid-answer": streams.play_client_leaves,
    "the answering replica stands still for a while": readings.play_stopped,
    "its engine stands still, its server does not": play_core_stands_still,
    "a replica is drained in mid-answer": readings.play_drain,
    "a prompt that the engine refuses": streams.play_prompt_too_long,
    "an answer that is not streamed": streams.play_plain_answer,
    "SIGKILL of the answering replica in mid-answer": streams.play_kill_in_mid_answer,
    "SIGKILL of the replica before it has answered at all": streams.play_kill_before_headers,
    "SIGKILL of the replica after its 200, before its first token": play_kill_in_prefill,
    "SIGKILL of the engine behind the answering server": play_core_dies,
    "a killed replica comes back and loads its model": readings.play_comes_back,
}

WORKERS = Workers(
    options=("--middleware", "envoy_ext.worker.LeaseMiddleware", "--enable-log-requests"),
    environment={"VLLM_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("logging.json"))},
    abort_line="Aborted request(s)",
    scenarios={
        "answers with a lease and without one": leases.play_same_answers,
        "the client leaves, and the worker says when it has stopped": leases.play_client_leaves,
        "a lease is revoked in mid-answer, in a full engine": leases.play_revoked,
        "a lease is revoked, and the answer is not streamed": leases.play_plain_revoked,
        "a newer attempt comes, and older ones after it": leases.play_superseded,
        "a replica stands still for longer than its lease": leases.play_stands_still,
        "the way to the lease's port is cut": leases.play_way_cut,
        "a lease is revoked while the engine stands still": worker_scenarios.play_core_stands_still,
        "SIGKILL of the engine before the first token, with a worker": worker_scenarios.play_core_dies,
    },
)

if __name__ == "__main__":
    sys.exit(verify.main(Path(__file__).parent, VLLM, SCENARIOS, WORKERS))
