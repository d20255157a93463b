# `make demo` and `make test` are all that a newcomer needs; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
# Many tests wait for real time to pass, so more of them run at once than there are cores.
SIDE_BY_SIDE := --numprocesses 4 --dist worksteal
# Tests start hundreds of processes: what they import is compiled once, also where the environment says not to.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(CURDIR)/$(VENV)/pycache" $(BIN)/pytest

.PHONY: help venv lock check unit static test test-cluster demo demo-entitlements demo-eternal demo-down prepare diagrams bench-queue bench-simulate bench-checkpoint bench-boundary
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

demo:  ## the main job, for real, on a small cluster of containers that stays up
	@deploy/prepare.sh
	@$(BIN)/python -m demo

demo-entitlements:  ## accounts that use more than their share, and give it back at once when it is claimed
	@deploy/prepare.sh
	@$(BIN)/python -m demo.entitlements

demo-eternal:  ## one job without an end that lives through thirty slices; a quarter of an hour
	@deploy/prepare.sh
	@$(BIN)/python -m demo.eternal

demo-down:  ## remove the cluster: what carries our label, and nothing else
	@deploy/cluster.sh down
	@deploy/engine.sh stop

test:  ## every test, the ones on the real cluster too (ARGS="--cluster-order reverse": those files in another order)
	@deploy/prepare.sh --tests
	@$(MAKE) --no-print-directory static
	@$(PYTEST) $(SIDE_BY_SIDE) -m "not cluster"; found=$$?; $(PYTEST) -m cluster $(ARGS) && exit $$found

test-cluster:  ## the tests on the real cluster alone (ARGS as above, or files)
	@deploy/prepare.sh --tests
	@$(PYTEST) -m cluster $(ARGS)

check: venv  ## format, lint, types, imports, dependencies and unit tests; less than two minutes
	@$(MAKE) --no-print-directory -j2 static unit PYRIGHT_READS="control agent lab"

# Three at once: beside the static checks a fourth only costs its own start, five seconds of a core.
# Only to load what draws the cases of the API's schema, and to collect these, all of them slow, takes each worker seconds.
unit: venv
	@HYPOTHESIS_PROFILE=brief $(PYTEST) -q --numprocesses 3 --dist worksteal -p no:schemathesis -m "not cluster and not postgres and not slow" --ignore tests/api/test_schema.py

# mypy reads all of it, and remembers what it has read. pyright does not: the tests are left to `make test`.
static: venv
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pyright $(PYRIGHT_READS)
	@$(BIN)/lint-imports
	@$(BIN)/deptry control agent lab

venv: $(VENV)/.done  ## the development environment, as the lock file has it

# uv, itself as the lock file has it, is ten times faster than pip. It does not read pip's settings, where a site may name
# its index: then pip finds what uv does not.
$(VENV)/.done: locks/dev.lock pyproject.toml
	@$(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' locks/dev.lock >$(VENV)/uv.lock
	@$(BIN)/pip install -qq --require-hashes -r $(VENV)/uv.lock
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r locks/dev.lock || $(BIN)/pip install -qq --require-hashes -r locks/dev.lock
	@$(BIN)/pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

lock:  ## resolve the dependencies anew, into locks/
	@for part in "dev --extra dev --extra control --extra agent --extra simulate" "control --extra control" "agent --extra agent"; do \
	    set -- $$part; name=$$1; shift; \
	    $(BIN)/uv pip compile -q pyproject.toml "$$@" --universal --python-version 3.11 --generate-hashes \
	        --no-header --no-emit-index-url --no-annotate -o locks/$$name.lock; \
	done

diagrams: venv  ## docs/diagrams.md, drawn from the tables of states and steps
	@$(BIN)/python docs/diagrams.py

bench-queue: venv  ## claims and completions a second, at up to a million waiting jobs
	@$(BIN)/python tests/benchmarks/bench_queue.py

bench-simulate: venv  ## jobs a second of the simulator, beside AccaSim (ARGS=--quick: two minutes)
	@$(BIN)/python tests/benchmarks/bench_simulate.py $(ARGS)

bench-boundary:  ## slices lost at the shared end, and time computed; two and a half hours (ARGS="--slices 8": half an hour; ARGS=--resume: what lacks)
	@deploy/setup.sh
	@$(MAKE) --no-print-directory venv
	@$(BIN)/python tests/benchmarks/bench_boundary.py $(ARGS)

bench-checkpoint:  ## seconds to save and to restore, beside what one would use instead (--full: all of it)
	@deploy/setup.sh
	@$(MAKE) --no-print-directory venv
	@deploy/engine.sh start
	@images/build.sh --only pythia
	@$(BIN)/python tests/benchmarks/bench_checkpoint.py $(ARGS)
