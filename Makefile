# Every target sets up what it needs: Python >= 3.11 and make are enough.
SHELL := /bin/sh
PYTHON ?= python3
UV_VERSION := 0.13.7
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
BATON := $(VENV)/bin/baton
BENCH := .local/bench-venv
export SAM_CLI_TELEMETRY := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo up down test check lint types imports format verify simulate chaos mutants bench lock clean

SEEDS ?= 20000
SEED_BASE ?= 0
STORE ?= memory
RUNS ?= 500

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## the environment in .venv (every other target calls it)

$(READY): requirements-dev.lock
	@test -x $(RUN) || $(PYTHON) -c 'import sys; sys.exit("Baton needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Say which: make PYTHON=/path/to/python3.13") if sys.version_info < (3, 11) else None'
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@test -x $(VENV)/bin/uv || $(RUN) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(VENV) $(VENV)/bin/uv pip sync --quiet --require-hashes requirements-dev.lock
	@printf '%s\n' '#!$(CURDIR)/$(RUN)' 'import sys' 'sys.path.insert(0, "$(CURDIR)")' 'from infra.local.cli import main' 'sys.exit(main())' > $(BATON)
	@chmod +x $(BATON)
	@touch $@

demo: $(READY) ## a catalogue through the local cloud while a function is killed: every row is compared
	@$(BATON) demo $(ARGS)

up: $(READY) ## the local cloud: Postgres, AWS and the outside on this machine; then `.venv/bin/baton`
	@$(BATON) up $(ARGS)

down: $(READY) ## end the local cloud
	@$(BATON) down

test: $(READY) ## the tests; ARGS="-k gate -x" goes to pytest
	$(RUN) -m pytest -n 2 $(ARGS)

check: lint types imports test ## lint, types, import contracts, tests: what CI runs

verify: check ## the long versions: simulation, kill matrix, chaos, mutants; no time limit
	$(RUN) -m tests.simulation.simulate --store memory --schedules 200000
	$(RUN) -m tests.simulation.simulate --store postgres --schedules 10000
	$(RUN) -m pytest -m long $(ARGS)
	$(RUN) -m tests.mutants.run

simulate: $(READY) ## SEEDS=20000 SEED_BASE=0 STORE=memory|postgres, or one schedule: SCHEDULE=random:17
	$(RUN) -m tests.simulation.simulate --store $(STORE) --schedules $(SEEDS) --base $(SEED_BASE) $(if $(SCHEDULE),--replay $(SCHEDULE))

chaos: $(READY) ## RUNS=500: kill -9, a stopped Postgres, cut answers, purged queues, wrong clocks
	$(RUN) -m tests.chaos.chaos --runs $(RUNS)

mutants: $(READY) ## break one rule of the relay at a time: the proof must notice each
	$(RUN) -m tests.mutants.run $(MUTANTS)

bench: $(BENCH)/.ready ## every hot path against its bare limit and a peer, and at six million lanes
	$(BENCH)/bin/python -m tests.bench --flatness $(ARGS)

$(BENCH)/.ready: requirements-bench.lock $(READY)
	@mkdir -p .local
	@$(VENV)/bin/uv venv --quiet --clear --python $(RUN) $(BENCH)
	@VIRTUAL_ENV=$(BENCH) $(VENV)/bin/uv pip sync --quiet --require-hashes requirements-bench.lock
	@touch $@

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(READY)
	$(VENV)/bin/mypy

imports: $(READY)
	$(VENV)/bin/lint-imports

format: $(READY) ## format and mend what can be mended
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

lock: $(READY) ## resolve the dependencies again (the lock files name no host)
	$(VENV)/bin/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock
	$(VENV)/bin/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links -c requirements.lock pyproject.toml --group dev -o requirements-dev.lock
	$(VENV)/bin/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links -c requirements-dev.lock pyproject.toml --group dev --group bench -o requirements-bench.lock

clean: ## remove what was made here
	rm -rf $(VENV) .local .mypy_cache .ruff_cache .pytest_cache .hypothesis
