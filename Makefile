# `make demo` and `make test` are all that a newcomer needs; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
# Tests start hundreds of processes: what they import is compiled once, also where the environment says not to.
PYTEST := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(CURDIR)/$(VENV)/pycache" $(BIN)/pytest

.PHONY: help venv lock check unit static measure test test-all test-install demo demo-entitlements demo-eternal demo-own-image demo-campaign demo-down prepare packages diagrams bench-campaign bench-queue bench-simulate bench-checkpoint bench-boundary bench-image bench-page bench-doors
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

demo-own-image:  ## a user brings an image, as a Docker archive and as a SIF file, and inputs; six minutes
	@deploy/prepare.sh --own-image
	@$(BIN)/python -m demo.own_image

demo-campaign:  ## a scan of sixty runs: submitted, looked at, what failed run again, fetched; five minutes
	@deploy/prepare.sh
	@$(BIN)/python -m demo.scan

demo-down:  ## remove the cluster: what carries our label, and nothing else
	@deploy/cluster.sh down
	@deploy/engine.sh stop

test:  ## what proves a change: sets up what is missing, runs the tests, says what they cost, leaves nothing behind
	@$(PYTHON) -m tests.suite.run $(ARGS)

test-all:  ## every test (ARGS="--only cluster -- --cluster-order reverse": those files in another order)
	@$(PYTHON) -m tests.suite.run --all --limit-min 0 $(ARGS)

test-install:  ## set up, used, started anew and taken back on a whole emulated machine with systemd; an hour (ARGS=helper, ARGS=docker)
	@deploy/setup.sh --machine
	@$(MAKE) --no-print-directory venv
	@for way in $(or $(ARGS),helper docker); do tests/install/run.sh $$way || exit; done

# pyright needs a minute for everything and caches nothing. Here it reads what differs from the last commit, and in
# `make test-all` everything. mypy reads everything each time.
check: venv  ## format, lint, types, imports, dependencies, fast tests and docstrings' examples, for each commit
	@changed=$$(git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files --others --exclude-standard -- '*.py'); \
	    $(MAKE) --no-print-directory -j2 static unit PYRIGHT_READS="$$(echo $${changed:-nothing})"

# Three at once: beside the static checks a fourth only costs its own start, five seconds of a core.
# Only to load what draws the cases of the API's schema, and to collect these, all of them slow, takes each worker seconds.
unit: venv
	@HYPOTHESIS_PROFILE=brief $(PYTEST) -q --numprocesses 3 --dist worksteal -p no:schemathesis \
	    -m "not cluster and not nodes and not postgres and not slow and not extended" --ignore tests/api/test_schema.py

measure:  ## code lines of each room beside its limit, classes and functions, what is too long
	@$(PYTHON) -m tests.suite.measure

static: venv
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@[ "$(PYRIGHT_READS)" = nothing ] || $(BIN)/pyright $(PYRIGHT_READS)
	@$(BIN)/lint-imports
	@$(BIN)/deptry control client agent

venv: $(VENV)/.done  ## the development environment, as the lock file has it

# uv, itself as the lock file has it, is ten times faster than pip. It does not read pip's settings, where a site may name
# its index: then pip finds what uv does not.
$(VENV)/.done: locks/dev.lock pyproject.toml hatch_build.py agent/gleaner/agent/privileged/init/init.c
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
	@echo "cyclonedx-bom>=7" | $(BIN)/uv pip compile -q - --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-emit-index-url --no-annotate -o locks/sbom.lock

packages: venv  ## Debian packages for control, node and client, the wheel, and lists of their parts (SBOM), in dist/
	@packaging/build.sh

diagrams: venv  ## the pages and pictures of docs/ that are drawn from the code
	@$(BIN)/python docs/diagrams.py
	@$(BIN)/python docs/figures.py
	@$(BIN)/python docs/settings.py

bench-doors: venv  ## an agent's heartbeats beside attacks on both doors
	@$(BIN)/python tests/benchmarks/bench_doors.py

bench-campaign: venv  ## 100,000 jobs submitted, 1 GB and 5,000 small results fetched; five minutes
	@$(BIN)/python tests/benchmarks/bench_campaign.py $(ARGS)

bench-queue: venv  ## claims and completions a second, at up to a million waiting jobs
	@$(BIN)/python tests/benchmarks/bench_queue.py

bench-page: venv  ## the web page with 100,000 jobs and 1,000 nodes: first paint, memory, heartbeats; two minutes
	@$(BIN)/python tests/benchmarks/bench_page.py

bench-simulate: venv  ## jobs a second of the simulator, beside AccaSim (ARGS=--quick: two minutes)
	@$(BIN)/python tests/benchmarks/bench_simulate.py $(ARGS)

bench-boundary:  ## slices lost at the shared end, and time computed; two and a half hours (ARGS="--slices 8": half an hour)
	@deploy/setup.sh
	@$(MAKE) --no-print-directory venv
	@$(BIN)/python tests/benchmarks/bench_boundary.py $(ARGS)

bench-image:  ## the agent's memory while it stages 5 GB, and the start of a 2 GB SIF file; ten minutes (ARGS="--image-mb 200 ...")
	@deploy/setup.sh --own-image
	@$(MAKE) --no-print-directory venv
	@deploy/engine.sh start
	@images/build.sh --only pi
	@$(BIN)/python tests/benchmarks/bench_image.py $(ARGS)

bench-checkpoint:  ## seconds to save and to restore, beside what one would use instead (--full: all of it)
	@deploy/setup.sh
	@$(MAKE) --no-print-directory venv
	@deploy/engine.sh start
	@images/build.sh --only pythia
	@$(BIN)/python tests/benchmarks/bench_checkpoint.py $(ARGS)
