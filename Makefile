# `make demo` and `make test` do all of their own set-up on a fresh Debian machine with Python 3.11.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup redis demo scenarios test lint unit with-envoy storm survival overload loss-under-load llama-cpp test-vllm bench performance peers memory soak fuzz simulation protos render clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(STAMP)

# What the tests of the Redis journal run; starts nothing.
redis:
	@tests/support/install_redis.sh

demo: setup
	$(BIN)/envoy-ext demo

# The failure policy, played on every store and kept: docs/scenarios.md.
SEED ?= 1
scenarios: setup redis
	$(BIN)/python -m envoy_ext.drills.scenarios --seed $(SEED) --report build/scenarios

# Everything CI runs.
test: lint unit with-envoy storm

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two at a time, by file: unit tests compute, those with Envoy mostly wait.
unit: setup redis
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not with_envoy and not storm"

with-envoy: setup redis
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "with_envoy and not storm"

storm: setup redis
	$(BIN)/python -m pytest -q -m storm

# The long load runs over all Envoy versions that the docs name; not part of `test`.
survival: setup
	$(BIN)/python bench/survival.py

# Ten times too much work for 60 s, and a verdict on each promise of admission; not part of `test`.
SECONDS ?= 60
overload: setup
	$(BIN)/python bench/overload.py --seconds $(SECONDS)

# A replica lost under 70 % load, by a kill, by a cut (root), and behind plain Envoy; 6 min, not part of `test`.
loss-under-load: setup
	$(BIN)/python bench/loss_under_load.py

# A real llama.cpp server and model behind Envoy (132 MB, installed by the script); `storm` runs it too.
llama-cpp: setup
	examples/llama-cpp/verify.sh

# Two real vLLM servers on the CPU behind Envoy (3.4 GB, installed by the script); not part of `test`.
test-vllm: setup
	examples/vllm-cpu/verify.sh

bench: setup
	$(BIN)/python bench/stream_cost.py

# Bytes that nobody would send, for MINUTES, on two cores; exit 1 and build/fuzz/*/finding-* when one breaks something.
MINUTES ?= 10
fuzz: setup
	$(BIN)/python -m pip install --quiet --editable '.[dev,fuzz]'
	$(BIN)/python -m tests.fuzz.run --minutes $(MINUTES)

# What a stream, a request in line, a job and an operation hold of the sidecar's memory: docs/memory.md.
memory: setup
	$(BIN)/python bench/memory.py

# Everything that goes wrong, for half an hour (or MINUTES), and a verdict: nothing may have grown; not in `test`.
soak: setup
	$(BIN)/python bench/soak.py --minutes $(if $(filter file,$(origin MINUTES)),30,$(MINUTES))

# Every figure of the hot path against its baseline, and whether its target was reached; 10 min: docs/performance.md.
# Needs g++, pkg-config and libgrpc++-dev. `make performance ARGS=--keep` writes the page.
performance: setup
	$(BIN)/python -m bench.performance $(ARGS)

# The product beside LiteLLM proxy and smg, which it installs (1 GB) under build/; 7 min, not part of `test`.
ROUNDS ?= 5
peers: setup
	$(BIN)/python bench/peers.py --rounds $(ROUNDS) --page

# A thousand replicas on a simulated clock; runs what has no result yet: docs/simulation.md.
simulation: setup
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench]'
	$(BIN)/python -m bench.simulation

# Our own messages, generated from protos/; a test keeps them equal.
protos: setup
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=envoy_ext/_pb --pyi_out=envoy_ext/_pb protos/*.proto

# The checked-in bootstraps are renderings; a test keeps them equal.
render: setup
	$(BIN)/envoy-ext bootstrap -c envoy/config.yaml -o envoy/bootstrap.yaml
	$(BIN)/envoy-ext bootstrap -c envoy/config-xds.yaml -o envoy/bootstrap-xds.yaml

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
