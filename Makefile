# People and CI use the same targets. Each of them makes the environment first, where it is missing.
.PHONY: help demo test unit e2e lint type bench clean
.NOTPARALLEL:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
UNFINISHED := $(VENV)/unfinished
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
TORCH := $(shell grep ^torch== requirements.lock)
export PIP_ROOT_USER_ACTION := ignore

help: # the targets
	@echo "make demo    train a small GPT under trainctl, in ./runs/demo"
	@echo "make test    lint, type, unit, e2e"
	@echo "make unit    the fast tests        make e2e     real processes, real faults"
	@echo "make lint    format and lint       make type    mypy"
	@echo "make bench   measurements          make clean   remove what was built, not ./runs"

demo: $(READY)
	$(BIN)/trainctl launch docs/examples/demo.toml --fresh --verbose

test: lint type unit e2e

unit: $(READY)
	$(BIN)/python -m pytest -q --ignore=tests/e2e

e2e: $(READY)
	$(BIN)/python -m pytest -q tests/e2e

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that was begun and not finished is thrown away: half of a package can look whole.
# torch goes first and alone, at the exact version: then pip takes a CPU build where it finds one.
# The rest is complete in the lock, so nothing is resolved and nothing else comes in.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "trainctl needs python >= 3.10, this is " + sys.version.split()[0])'
	@if test -e $(UNFINISHED); then rm -rf $(VENV); fi
	@echo "making $(VENV): $(TORCH), then the rest of requirements.lock"
	@mkdir -p $(VENV) && touch $(UNFINISHED) && rm -f $(READY)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint requirements.lock $(TORCH)
	@$(PIP) install --no-deps --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@rm $(UNFINISHED)
	@touch $(READY)
