# Every target sets up what it needs: Python >= 3.11 and make are enough.
SHELL := /bin/sh
PYTHON ?= python3
UV_VERSION := 0.13.7
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
BATON := $(VENV)/bin/baton
BENCH := .local/bench-venv
SAM := .local/sam-venv
FUZZ := .local/fuzz-venv
CHROMIUM := .local/.chromium
ARCHITECTURE ?= arm64
export ARCHITECTURE
CONFIG ?= default
export SAM_CLI_TELEMETRY := 0
# Without bytecode every process compiles all that it imports: collecting the tests took 26 s instead of 10.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up down quick test full check lint types imports format verify simulate chaos soak mutants bench fuzz screenshots kind build deploy smoke certificates shipped lock clean

SEEDS ?= 20000
SEED_BASE ?= 0
STORE ?= memory
RUNS ?= 500
DAYS ?= 120
EXAMPLES ?= 10

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create the environment in .venv (every other target does it by itself)

$(READY): requirements-dev.lock
	@test -x $(RUN) || $(PYTHON) -c 'import sys; sys.exit("Baton needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Choose another: make PYTHON=/path/to/python3.13") if sys.version_info < (3, 11) else None'
	@echo "Setting up $(VENV) from requirements-dev.lock; the first time this downloads about 100 MB."
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@test -x $(VENV)/bin/uv || $(RUN) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(VENV) $(VENV)/bin/uv pip sync --quiet --compile-bytecode --require-hashes requirements-dev.lock
	@printf '%s\n' '#!$(CURDIR)/$(RUN)' 'import sys' 'sys.path.insert(0, "$(CURDIR)")' 'from infra.cli import main' 'sys.exit(main())' > $(BATON)
	@chmod +x $(BATON)
	@touch $@

demo: $(READY) ## a minute or so: ingest a catalogue while a function is killed, and check every row
	@$(BATON) demo $(ARGS)

up: $(READY) ## start the local cloud: Postgres, AWS and the outside services on this machine (docs/local-cloud.md)
	@$(BATON) up $(ARGS)

down: $(READY) ## stop the local cloud; the database is kept
	@$(BATON) down

# Whole files go to one process each, the long ones first (tests/support/rings.py). More processes than cores: many tests wait.
PYTEST = $(RUN) -m pytest -n 3 --no-loadscope-reorder

quick: $(READY) ## under a minute, without Postgres: lint, types, unit tests, and whether every mutant still fits the code
	@$(MAKE) -s lint types
	$(RUN) -m pytest -q -n 2 --no-loadscope-reorder --ring=test tests/unit tests/mutants $(ARGS)

test: $(READY) $(CHROMIUM) ## the product in five minutes; KIND=search: one kind; ARGS="tests/races -k cancel -x" goes to pytest
	$(PYTEST) $(if $(KIND),--kind $(KIND)) $(ARGS)

full: $(READY) $(CHROMIUM) # what `make check` tests beyond `make test`
	$(PYTEST) --ring=full $(ARGS)

kind: $(READY) ## NAME=water_meter: create a kind of work from docs/example-kind and register it (docs/kinds.md)
	@$(RUN) -m infra.new_kind '$(NAME)'

# Once: without a Chromium the browser tests say what to do, and everything else is tested all the same.
$(CHROMIUM): | $(READY)
	@mkdir -p .local
	@$(RUN) -m tests.browser.chromium || true
	@touch $@

screenshots: $(READY) $(CHROMIUM) ## take pictures of every page of the console into .local/screenshots; ARGS=--docs: those of the README
	$(RUN) -m tests.browser.screenshots $(ARGS)

check: lint types imports test full ## what CI runs: lint, types, imports, `make test`, then all browser tests, schedules, kills and chaos

verify: $(READY) ## the long versions, for hours: all schedules, all mutants, soak, sam deploy; ARGS="soak mutants": some parts
	$(RUN) -m tests.verify $(ARGS)

simulate: $(READY) ## SEEDS=20000 SEED_BASE=0 STORE=memory|postgres, or one schedule: SCHEDULE=random:17
	$(RUN) -m tests.simulation.simulate --store $(STORE) --schedules $(SEEDS) --base $(SEED_BASE) $(if $(SCHEDULE),--replay $(SCHEDULE))

chaos: $(READY) ## RUNS=500: kill -9, a stopped Postgres, cut answers, purged queues, wrong clocks
	$(RUN) -m tests.chaos.chaos --runs $(RUNS)

soak: $(READY) ## DAYS=120: virtual months on Postgres with short retention: do tables and costs stay flat?
	$(RUN) -m tests.soak --days $(DAYS)

mutants: $(READY) ## break one rule at a time, and a test must notice; ARGS=search, a name, a file, strangers.toml, --part 2/5
	$(RUN) -m tests.mutants.run $(ARGS)

fuzz: $(FUZZ)/.ready ## EXAMPLES=10: schemathesis against the deployed API, as a person, as a machine and without credentials
	$(RUN) -m tests.api.fuzz $(CURDIR)/$(FUZZ)/bin/schemathesis $(EXAMPLES)

$(FUZZ)/.ready: requirements-fuzz.lock $(READY)
	@mkdir -p .local
	@$(VENV)/bin/uv venv --quiet --clear --python $(RUN) $(FUZZ)
	@VIRTUAL_ENV=$(FUZZ) $(VENV)/bin/uv pip sync --quiet --compile-bytecode --require-hashes requirements-fuzz.lock
	@touch $@

bench: $(BENCH)/.ready ## every hot path against its bare limit and a peer, and at six million lanes; ARGS="--only job": a part
	$(BENCH)/bin/python -m tests.bench $(ARGS)

$(BENCH)/.ready: requirements-bench.lock $(READY)
	@mkdir -p .local
	@$(VENV)/bin/uv venv --quiet --clear --python $(RUN) $(BENCH)
	@VIRTUAL_ENV=$(BENCH) $(VENV)/bin/uv pip sync --quiet --compile-bytecode --require-hashes requirements-bench.lock
	@touch $@

build: $(SAM)/.ready ## build the artifact for AWS, without Docker; ARCHITECTURE=arm64|x86_64|here
	$(SAM)/bin/sam build
	@$(RUN) -m infra.sam.architecture stamp

deploy: build ## deploy to AWS; CONFIG=prod is the stage of samconfig.toml, CANARY=Canary10Percent10Minutes how it is replaced (docs/deploy.md)
	@$(RUN) -m infra.sam.architecture check --config $(CONFIG) --arguments='$(ARGS)'
	@$(RUN) -m infra.sam.settings --config $(CONFIG) --arguments='$(ARGS)'
	@$(RUN) -m infra.sam.quota --config $(CONFIG) --arguments='$(ARGS)'
	@$(if $(CANARY),$(RUN) -m infra.sam.canary $(CANARY),:)
	$(SAM)/bin/sam deploy --config-env $(CONFIG) $(ARGS)

smoke: $(READY) ## URL=https://…: a deployment, or without it the local cloud: health, console, login, and one job to its end
	@$(BATON) smoke $(if $(URL),--url $(URL)) $(ARGS)

certificates: ## download the certificates of RDS for the next build, so that TLS to RDS is verified
	@mkdir -p .local/certificates
	$(PYTHON) -c 'import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=60).read())' \
		https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem > .local/certificates/rds.pem.new
	@grep -q 'BEGIN CERTIFICATE' .local/certificates/rds.pem.new && mv .local/certificates/rds.pem.new .local/certificates/rds.pem

# `sam build` calls build-<LogicalId> once per function. All get the same files, so one upload serves them all.
ARTIFACT := .local/artifact/$(ARCHITECTURE)
# Folders too: one that lost a file is newer than the artifact.
SHIPPED := $(shell find functions shared sources infra/migrations infra/sam/artifact.py .local/certificates ! -path '*/__pycache__*' ! -name '*.pyc' 2>/dev/null)
$(ARTIFACT)/functions: requirements.lock $(SHIPPED) | $(READY)
	@$(RUN) -m infra.sam.artifact --architecture $(ARCHITECTURE) $(ARTIFACT)
	@touch $@

shipped: ; @printf '%s\n' $(SHIPPED)

build-%: $(ARTIFACT)/functions
	@cp -al $(ARTIFACT)/. "$(ARTIFACTS_DIR)/" 2>/dev/null || cp -R $(ARTIFACT)/. "$(ARTIFACTS_DIR)/"

$(SAM)/.ready: requirements-sam.lock $(READY)
	@mkdir -p .local
	@$(VENV)/bin/uv venv --quiet --clear --python $(RUN) $(SAM)
	@VIRTUAL_ENV=$(SAM) $(VENV)/bin/uv pip sync --quiet --compile-bytecode --require-hashes requirements-sam.lock
	@touch $@

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(READY)
	$(VENV)/bin/mypy

imports: $(READY)
	$(VENV)/bin/lint-imports

format: $(READY) ## format, and fix what can be fixed
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

lock: $(READY) ## resolve the dependencies again (the lock files name no host)
	@# --no-config: the overrides in pyproject.toml are for MiniStack, neither for what is shipped nor for sam.
	$(VENV)/bin/uv pip compile -q --no-config --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links pyproject.toml -o requirements.lock
	$(VENV)/bin/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links -c requirements.lock pyproject.toml --group dev -o requirements-dev.lock
	$(VENV)/bin/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links -c requirements-dev.lock pyproject.toml --group dev --group bench -o requirements-bench.lock
	$(VENV)/bin/uv pip compile -q --no-config --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --group sam -o requirements-sam.lock
	$(VENV)/bin/uv pip compile -q --no-config --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --group fuzz -o requirements-fuzz.lock

clean: ## remove everything that was created here
	rm -rf $(VENV) .local .aws-sam .mypy_cache .ruff_cache .pytest_cache .hypothesis
