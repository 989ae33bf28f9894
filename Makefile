# The words of this project; `make` alone lists them. Needs GNU make >= 3.81 and Python >= 3.11, nothing else.

BIN := .venv/bin
PIP := -m pip install --disable-pip-version-check
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-long test-faults check lint types imports contract drift generate bench soak sim mutants lock clean

help: ## list the words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  ARGS='...' is passed on by serve, test, test-long, test-faults, bench, soak, sim and mutants; PYTHON=... chooses the Python of setup"

setup: .venv/.ready ## make .venv with everything (nothing to do: milliseconds)

# The stamp says that .venv holds what requirements.txt and pyproject.toml ask for.
.venv/.ready: requirements.txt pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  python=$$(.ci/python) && echo "making .venv with $$($$python --version) ($$python)" && $$python -m venv --clear .venv; }
	@echo "installing requirements.txt into .venv (the first time: a minute or two)"
	$(BIN)/python $(PIP) -r requirements.txt
	$(BIN)/python $(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

serve: setup ## serve the demo model on 127.0.0.1:50051 (the first time: prepare it in .demo)
	@export INFERD_DEMO_DIR=$${INFERD_DEMO_DIR:-.demo}; exec $(BIN)/inferd serve --demo $(ARGS)

test: setup ## the tests, without those marked long
	$(BIN)/python -m pytest -m "not long" --numprocesses=3 --dist=loadfile $(ARGS)

test-long: setup ## the tests marked long
	$(BIN)/python -m pytest -m long --numprocesses=2 --dist=loadfile $(ARGS)

test-faults: setup ## what breaks, dies or is hostile: the fault suite, a few minutes (test-long runs it too)
	$(BIN)/python -m pytest -m faults --numprocesses=2 --dist=loadfile $(ARGS)

check: lint types imports contract drift test ## everything that CI wants, but the long tests

lint: setup ## ruff: format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup ## mypy, strict
	$(BIN)/mypy

imports: setup ## import contracts: which room may import which
	$(BIN)/lint-imports

contract: setup ## buf: lint, format, breaking changes
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	.ci/breaking

# The generator's own tools: the oldest supported ones, apart from the runtime's.
.tools/.ready: .ci/generate-requirements.txt
	@.tools/bin/python -m pip --version >/dev/null 2>&1 || { python=$$(.ci/python) && $$python -m venv --clear .tools; }
	.tools/bin/python $(PIP) --quiet -r .ci/generate-requirements.txt
	@touch $@

generate: .tools/.ready ## write generated/ anew from protos/
	.ci/generate

drift: .tools/.ready ## fail if generated/ is not what protos/ say
	.ci/generate --check

bench: setup ## measure against the bare mlx-lm loop; results in benchmarks/results
	$(BIN)/python benchmarks/run.py $(ARGS)

soak: setup ## random traffic for ten minutes: nothing may leak, hang or be lost
	$(BIN)/python benchmarks/soak.py $(ARGS)

sim: setup ## simulate an hour of each contention strategy; measure the planner
	cd benchmarks && ../$(BIN)/python -m registry_sim $(ARGS)

mutants: setup ## plant each bug of tests/mutations; the tests of the registry catch them all
	PYTHONPATH=tests $(BIN)/python -m mutations.run $(ARGS)

lock: ## compile requirements.txt anew from pyproject.toml (needs uv, for this alone)
	uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url --no-emit-find-links \
	  --all-extras --output-file requirements.txt pyproject.toml

clean: ## remove caches and build outputs (keeps .venv, .tools and .demo)
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage benchmarks/results
	find service clients generated tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
