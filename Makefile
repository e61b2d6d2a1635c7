# `make` alone lists what one can do here. Every target makes the environment it needs
# (tools/env/environments.py: pinned, kept in the user's cache folder, 0.1 s when it is there).

.DEFAULT_GOAL := help
.SHELLFLAGS := -eu -c
.DELETE_ON_ERROR:

# Without bytecode every process compiles every import again, and two spinning threads of torch
# beside one busy core turn a step of half a second into ten.
unexport PYTHONDONTWRITEBYTECODE
export OMP_NUM_THREADS := 1

ENVIRONMENTS := python3 tools/env/environments.py
SERVERS := python3 -m tools.stack.build
RESULTS := .build/results

# The Pythons to test on: all that are installed, or `make test PYTHONS="3.10 3.13"`.
ifndef PYTHONS
PYTHONS := $(shell $(ENVIRONMENTS) pythons)
endif
export PYTHONS
ifeq ($(strip $(PYTHONS)),)
$(error No Python 3.10, 3.11, 3.12 or 3.13 was found on this machine)
endif
# TRL needs Python 3.11, and Ray's tests have its torch: where there is none they say so and are left out.
TRL_PYTHON := $(filter-out 3.10,$(PYTHONS))
TWINKLE_PYTHON := $(filter 3.11 3.12,$(PYTHONS))

# The oldest one checks, so that nothing newer slips into the package.
DEV := .venv/dev-$(firstword $(PYTHONS))
BIN := $(DEV)/bin

# Tests that need more than the package; the others run on every Python.
APART := $(addprefix --ignore=tests/,live ray reference swift trl twinkle)
QUICK_CHECKS := check-format lint types contracts check-schema check-metrics check-package
# The longest first: two run at a time. The first build of the servers takes half an hour; it gives
# way to the tests beside it.
CHECKS := test-live test-reference test-swift test-twinkle test-trl test-trl-oldest test-trl-deepspeed test-ray $(addprefix test-core-,$(PYTHONS)) $(QUICK_CHECKS)

# Each check leaves word that it passed; pytest leaves a report beside it. tools/summary.py reads both.
passed = mkdir -p $(RESULTS) && touch $(RESULTS)/$@.ok
pytest = bin/pytest --quiet --junit-xml=$(RESULTS)/$@.xml

##@ What a user does

ifndef RUN_DIR
RUN_DIR := runs/demo-$(shell date -u +%Y%m%dT%H%M%SZ)
endif
demo: .venv/trl ## Train a tiny model with TRL, observed; show where the time went; audit the files
	@.venv/trl/bin/otel-grpo run --run-dir $(RUN_DIR) -- .venv/trl/bin/python demo/train_trl.py
	@.venv/trl/bin/otel-grpo show $(RUN_DIR)
	@.venv/trl/bin/otel-grpo audit $(RUN_DIR)
	@.venv/trl/bin/otel-grpo export --perfetto $(RUN_DIR)

demo-swift: .venv/swift ## The same with ms-swift, by its own command
	@.venv/swift/bin/otel-grpo run --run-dir $(RUN_DIR) -- .venv/swift/bin/python demo/train_swift.py
	@.venv/swift/bin/otel-grpo show $(RUN_DIR)
	@.venv/swift/bin/otel-grpo audit $(RUN_DIR)
	@.venv/swift/bin/otel-grpo export --perfetto $(RUN_DIR)

demo-twinkle: .venv/twinkle ## The same with Twinkle, whose loop is the user's own script
	@.venv/twinkle/bin/otel-grpo run --run-dir $(RUN_DIR) -- .venv/twinkle/bin/python demo/train_twinkle.py
	@.venv/twinkle/bin/otel-grpo show $(RUN_DIR)
	@.venv/twinkle/bin/otel-grpo audit $(RUN_DIR)

demo-ray: MODE := colocated
demo-ray: ## The same with the reference trainer on Ray: 8 policy workers, colocated
demo-ray-async: MODE := async
demo-ray-async: ## The same, with generation beside the training
demo-ray demo-ray-async: .venv/ray
	@.venv/ray/bin/python demo/train_ray.py --run-dir $(RUN_DIR) --mode $(MODE)
	@.venv/ray/bin/otel-grpo show $(RUN_DIR)
	@.venv/ray/bin/otel-grpo audit $(RUN_DIR)

stack: .venv/live .servers ## Collector, Jaeger and Prometheus on loopback, without Docker; Ctrl-C stops them
	@.venv/live/bin/python -m tools.stack.up

demo-live: .venv/live .venv/trl .venv/ray .servers ## The demos into that stack; what it answers about them
	@.venv/live/bin/python -m tools.stack.up sh -c '$(MAKE) --no-print-directory demo && $(MAKE) --no-print-directory demo-ray'

test: ## Run every check, as CI does
	@rm -rf $(RESULTS)
	@status=0; \
	$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target $(CHECKS) || status=$$?; \
	$(BIN)/python tools/summary.py $(RESULTS) $(CHECKS) || status=1; \
	exit $$status

##@ One at a time

quick: $(QUICK_CHECKS) ## All checks but the tests

test-core: $(addprefix test-core-,$(PYTHONS)) ## The tests without a trainer, on every installed Python

$(addprefix test-core-,$(PYTHONS)): test-core-%: .venv/dev-%
	@echo "== tests on Python $*"
	@.venv/dev-$*/$(pytest) $(APART) tests
	@$(passed)

ifneq ($(TRL_PYTHON),)
test-trl: .venv/trl ## The tests with TRL's real GRPOTrainer
	@echo "== tests with TRL"
	@.venv/trl/$(pytest) --ignore=tests/trl/test_deepspeed.py tests/trl tests/devices
	@$(passed)

test-trl-oldest: .venv/trl-oldest ## The same trainings with the oldest TRL that is claimed
	@echo "== tests with the oldest TRL"
	@.venv/trl-oldest/$(pytest) $(addprefix tests/trl/test_,release.py counts.py vllm.py)
	@$(passed)

test-trl-deepspeed: .venv/trl-deepspeed ## The same with DeepSpeed
	@echo "== tests with TRL and DeepSpeed"
	@.venv/trl-deepspeed/$(pytest) tests/trl/test_deepspeed.py
	@$(passed)
else
test-trl test-trl-oldest test-trl-deepspeed:
	@echo "== tests with TRL: left out, TRL 1.16 needs Python 3.11 or later and this machine has none"
	@$(passed)
endif

ifneq ($(TRL_PYTHON),)
test-swift: .venv/swift ## The tests with ms-swift's real GRPOTrainer
	@echo "== tests with ms-swift"
	@.venv/swift/$(pytest) tests/swift
	@$(passed)
else
test-swift:
	@echo "== tests with ms-swift: left out, their torch needs Python 3.11 or later and this machine has none"
	@$(passed)
endif

ifneq ($(TWINKLE_PYTHON),)
test-twinkle: .venv/twinkle ## The tests with the real Twinkle, in one process and over Ray
	@echo "== tests with Twinkle"
	@.venv/twinkle/$(pytest) tests/twinkle
	@$(passed)
else
test-twinkle:
	@echo "== tests with Twinkle: left out, it needs Python 3.11 or 3.12 and this machine has neither"
	@$(passed)
endif

ifneq ($(TRL_PYTHON),)
test-ray: .venv/ray ## The tests with Ray's real actors
	@echo "== tests with Ray"
	@.venv/ray/$(pytest) tests/ray
	@$(passed)

test-reference: .venv/ray ## The tests of the reference trainer, whole trainings on Ray
	@echo "== tests of the reference trainer"
	@.venv/ray/$(pytest) tests/reference
	@$(passed)
else
test-ray test-reference:
	@echo "== tests with Ray: left out, their torch needs Python 3.11 or later and this machine has none"
	@$(passed)
endif

ifneq ($(TRL_PYTHON),)
test-live: .servers .venv/live .venv/trl .venv/ray ## The tests of the live view, with the real servers
	@echo "== tests of the live view"
	@.venv/live/$(pytest) tests/live
	@$(passed)
else
test-live:
	@echo "== tests of the live view: left out, they need Python 3.11 or later and this machine has none"
	@$(passed)
endif

lint: $(DEV) ## Lint
	@echo "== lint"
	@$(BIN)/ruff check --quiet --output-format concise
	@$(passed)

check-format: $(DEV)
	@echo "== format"
	@$(BIN)/ruff format --check --quiet --output-format concise || { echo "run: make format"; exit 1; }
	@$(passed)

types: $(DEV) ## Check the types, and that the public ones are what tests/typing says
	@echo "== types"
	@$(BIN)/mypy
	@$(passed)

contracts: $(DEV) ## Check which room imports which
	@echo "== import contracts"
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(passed)

check-schema: $(DEV)
	@echo "== JSON Schema"
	@$(BIN)/python -m otel_grpo.records.schema --check
	@$(passed)

check-metrics: $(DEV)
	@echo "== table of metrics"
	@$(BIN)/python -m otel_grpo.metrics.table --check
	@$(passed)

check-package: $(DEV)
	@echo "== pyproject.toml"
	@$(BIN)/validate-pyproject pyproject.toml
	@$(passed)

##@ Long ones

bench: .venv/bench $(if $(TRL_PYTHON),.venv/trl .venv/ray) ## Measure what observing costs, against the bare SDK and others
	@.venv/bench/bin/python -m benchmarks

soak: $(DEV) $(if $(TRL_PYTHON),.venv/ray) ## Kill, stop and starve runs for a long time
	@$(BIN)/pytest -m soak $(APART) tests
	@$(if $(TRL_PYTHON),.venv/ray/bin/pytest -m soak tests/ray)

##@ Upkeep

setup: $(addprefix .venv/dev-,$(PYTHONS)) $(if $(TRL_PYTHON),.venv/trl .venv/trl-oldest .venv/trl-deepspeed .venv/swift .venv/ray) $(if $(TWINKLE_PYTHON),.venv/twinkle) ## Make the environments of the tests

format: $(DEV) ## Format, and mend what the linter can
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

schema: $(DEV) ## Write the JSON Schema of the files from the record types
	@$(BIN)/python -m otel_grpo.records.schema

dashboards: .venv/live ## Write the dashboards from dashboards/*.py
	@.venv/live/bin/python -m dashboards

lock: ## Resolve the requirements afresh into tools/env/constraints
	@$(ENVIRONMENTS) lock

changelog: $(DEV) ## Show the next entry of CHANGELOG.md, made from changelog.d
	@$(BIN)/towncrier build --draft --version next

clean: ## Remove what is made here; the cached environments stay
	rm -rf .build .venv dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@awk 'BEGIN { FS = ":.*## " } \
	/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

.servers: FORCE
	@$(SERVERS)

.venv/%: FORCE
	@$(ENVIRONMENTS) make $*

FORCE:
.PHONY: FORCE help demo demo-swift demo-twinkle demo-ray demo-ray-async demo-live stack test quick test-core $(CHECKS) bench soak setup format schema dashboards lock changelog clean
