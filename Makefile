# `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help venv check
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

venv: $(VENV)/.done  ## the development environment, from the lock file

$(VENV)/.done: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --require-hashes -r requirements.lock
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch $@

check: venv  ## format, lint, types, imports and unit tests; under two minutes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m "not cluster and not postgres"
