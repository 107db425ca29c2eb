#!/usr/bin/env bash
# Two real vLLM servers on the CPU behind envoy-ext and a real Envoy: breaks them and checks what comes of it.
# Does all of its own set-up, in this folder. `--keep` leaves it running; other options go to engine.py.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$here/../.."

# The Python that has envoy-ext: the checkout's own, unless another one is named.
python="${ENVOY_EXT_PYTHON:-$root/.venv/bin/python}"
if [ -z "${ENVOY_EXT_PYTHON:-}" ]; then
  make --no-print-directory -C "$root" setup
fi

# vLLM, in a venv of its own: 3.4 GB that nothing else here needs.
venv="$here/.venv"
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
  echo "installing vLLM: some minutes, 3.4 GB"
  "$python" -m venv --clear "$venv"
  "$venv/bin/python" "$here/install.py"
  cp "$here/requirements.txt" "$venv/installed.txt"
fi

# The worker, as docs/leases.md has a user install it: vLLM has what it needs, and nothing of vLLM's changes.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$root"

# The model, made anew when its recipe is.
if ! cmp -s "$here/make_model.py" "$here/.model/recipe.txt"; then
  rm -rf "$here/.model"
  "$venv/bin/python" "$here/make_model.py" "$here/.model"
  cp "$here/make_model.py" "$here/.model/recipe.txt"
fi

# What vLLM keeps on disk stays in this folder too.
export VLLM_CACHE_ROOT="$here/.cache/vllm" XDG_CACHE_HOME="$here/.cache" HF_HOME="$here/.cache/huggingface"
PYTHONPATH="$root/examples" exec "$python" "$here/verify.py" --engine-python "$venv/bin/python" "$@"
