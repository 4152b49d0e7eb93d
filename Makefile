# Two commands on a machine with Python 3.11 and make: `make run` runs the main job, `make test` passes the tests.
# Each sets up .venv first, and again only when pyproject.toml changed.  PYTHON names the interpreter to build it with.

VENV := .venv
BIN := $(VENV)/bin
CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
HAS_VENV := import ensurepip, venv
DEBIAN := (Debian: apt-get install python3 python3-venv), or name another: make PYTHON=/path/to/python3

# The first candidate that can make an environment, else the last that is new enough, so that the check below says what it lacks.
# It is looked for at the first use only: with .venv in place nothing asks.
PYTHON ?= $(eval PYTHON := $(shell best=python3; for p in $(CANDIDATES); do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null || continue; best=$$p; $$p -c '$(HAS_VENV)' 2>/dev/null && break; done; echo $$best))$(PYTHON)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test python clean

run: $(VENV)/ready-to-run
	@$(BIN)/rlx demo

# One process a processor, so that none of them needs BLAS threads of its own.
test: export OPENBLAS_NUM_THREADS := 1
test: $(VENV)/ready-to-test
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

define check_python
@"$(PYTHON)" -c '' 2>/dev/null || { echo '"$(PYTHON)" does not run: install Python 3.11 or newer $(DEBIAN)' >&2; exit 1; }
@"$(PYTHON)" -c '$(NEW_ENOUGH)' || \
	{ echo "\"$(PYTHON)\" is $$("$(PYTHON)" --version 2>&1), and rlxpy needs Python 3.11 or newer: install it $(DEBIAN)" >&2; exit 1; }
@"$(PYTHON)" -c '$(HAS_VENV)' 2>/dev/null || \
	{ echo '"$(PYTHON)" cannot make virtual environments: install its venv package $(DEBIAN)' >&2; exit 1; }
endef

python:
	$(check_python)

# pip is the last thing that `python -m venv` puts there, so an interrupted start is started again.
$(BIN)/pip:
	$(check_python)
	@echo 'Making $(VENV) with $(PYTHON)'
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/ready-to-run: pyproject.toml | $(BIN)/pip
	@echo 'Installing rlxpy and what it needs into $(VENV)'
	@$(BIN)/python -m pip install --quiet --editable '.[models]'
	@touch $@

$(VENV)/ready-to-test: $(VENV)/ready-to-run
	@echo 'Installing what the tests need into $(VENV)'
	@$(BIN)/python -m pip install --quiet --editable '.[models,cuda,rocm,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist
