#!/usr/bin/env bash
# Two real llama.cpp servers behind envoy-ext and a real Envoy: kills replicas and checks what comes of it.
# Does all of its own set-up. `--keep` leaves it running; other options go to engine.py.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$here/../.."

# The Python that has envoy-ext: the checkout's own, unless another one is named.
python="${ENVOY_EXT_PYTHON:-$root/.venv/bin/python}"
if [ -z "${ENVOY_EXT_PYTHON:-}" ]; then
  make --no-print-directory -C "$root" setup
fi

# The engine and the model, in a venv of their own: 132 MB that nothing else here needs.
venv="$here/.venv"
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
  "$python" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$venv/installed.txt"
fi

PYTHONPATH="$root/examples" exec "$python" "$here/verify.py" --engine-python "$venv/bin/python" "$@"
