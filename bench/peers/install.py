"""The peers, each in a virtual environment of its own under build/: no dependencies of this project."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

LITELLM: Final = "LiteLLM proxy"
SMG: Final = "smg"
BUILT: Final = Path(__file__).parent.parent.parent / "build" / "peers"
VERSIONS: Final = {LITELLM: "1.106.12", SMG: "1.13.0"}
_PACKAGES: Final = {LITELLM: ("litellm", "litellm[proxy]"), SMG: ("smg", "smg")}


def install(peer: str) -> Path:
    """Its command, installed if it is not there; a pip that fails is an error with pip's last words."""
    name, package = _PACKAGES[peer]
    command, done = BUILT / name / "bin" / name, BUILT / f"{name}-{VERSIONS[peer]}.installed"
    if done.exists() and command.exists():
        return command
    subprocess.run([sys.executable, "-m", "venv", str(BUILT / name)], check=True)
    pip = [str(BUILT / name / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    ran = subprocess.run([*pip, f"{package}=={VERSIONS[peer]}"], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{peer} cannot be installed: {ran.stderr.strip()[-400:]}")
    done.touch()
    return command


def environment(key: str) -> dict[str, str]:
    """What both are started with: none of this machine's own settings, and nothing asked of the network."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    return kept | {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MASTER_KEY": key,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TOKIO_WORKER_THREADS": "1",
    }
