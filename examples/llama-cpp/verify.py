"""Plays the main job on two real llama.cpp servers behind a real Envoy. Started by verify.sh."""

import sys
from pathlib import Path

from real_engines import readings, streams, verify
from real_engines.engine import Engine
from real_engines.worker_stage import Workers
from scenarios import play_embeddings, play_kill_in_prefill, play_without_metrics
from worker_scenarios import play_engine_dies, play_plain_answer_left, play_stream_left

LLAMA_CPP = Engine(
    model="smollm2",
    slots=2,
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
    work="llamacpp:n_decode_total",
    tokens="llamacpp:tokens_predicted_total",
    tells_kv_cache=False,
    loading_word="loading",
    long_answer_tokens=1_900,
    some_tokens=150,
    too_many_words=4_000,
    too_long_error="exceed_context_size_error",
    start_s=60.0,
    request={"cache_prompt": False},
)

SCENARIOS = {
    "both idle": readings.play_idle,
    "one of them full of others' requests": readings.play_loaded,
    "nothing fails": streams.play_good_stream,
    "SIGKILL of the answering replica in mid-answer": streams.play_kill_in_mid_answer,
    "SIGKILL of the replica before it has answered at all": streams.play_kill_before_headers,
    "SIGKILL of the replica after its 200, while it computes the prompt": play_kill_in_prefill,
    "the client leaves in mid-answer": streams.play_client_leaves,
    "the answering replica stands still for a while": readings.play_stopped,
    "a killed replica comes back and loads its model": readings.play_comes_back,
    "a replica that is started without its metrics": play_without_metrics,
    "a replica is drained in mid-answer": readings.play_drain,
    "a prompt that the engine refuses": streams.play_prompt_too_long,
    "an answer that is not streamed": streams.play_plain_answer,
    "embeddings": play_embeddings,
}

WORKERS = Workers(
    options=("--worker-python", sys.executable),
    environment={},
    abort_line="stop: cancel task",
    scenarios={
        "the client leaves a stream, with a worker": play_stream_left,
        "the client leaves an answer that is not streamed, with a worker": play_plain_answer_left,
        "SIGKILL of the engine behind its worker, while it computes the prompt": play_engine_dies,
    },
)

if __name__ == "__main__":
    sys.exit(verify.main(Path(__file__).parent, LLAMA_CPP, SCENARIOS, WORKERS))
