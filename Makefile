# `make demo` and `make test` need only Python 3.11 to 3.13; both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo format lint check test test-slow site clean

setup: $(STAMP)

# torch first and by itself: its tested version, before anything else can ask for another.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "quintet needs Python 3.11 to 3.13, this is %s; set PYTHON=..." % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/quintet train ppo --env CartPole-v1 --run-dir runs/demo
	$(BIN)/quintet eval runs/demo --episodes 100
	$(BIN)/quintet plot runs/demo --out runs/demo/learning_curve.png
	@echo "learning curve: runs/demo/learning_curve.png"
	@echo "policy:         runs/demo/policy"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# While you work: the tests of what differs from `main`, or those of ops, models and config.
check: export PYTHONDONTWRITEBYTECODE =
check: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal $$($(BIN)/python tests/tests_of.py --changed)

# Each of two processes takes one half of the files, and what the other has left at the end: what the
# tests of a file share is made once.  Compiled modules are kept, as the tests start a hundred
# processes that import quintet.
test: export PYTHONDONTWRITEBYTECODE =
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# One at a time: exactness tests burn every core beside the run that they watch.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# The documents as pages with search and an API reference, in build/site.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist *.egg-info
