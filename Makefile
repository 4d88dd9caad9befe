# `make demo` and `make test` need only Python 3.11 to 3.14; both make .venv first.
# UV=1 installs with uv, which must be on the path, and takes PyTorch's build for CPUs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
STAMP := $(VENV)/.installed
ifdef UV
installs_into = uv pip install --quiet --torch-backend cpu --python $(1)/bin/python
else
installs_into = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
endif

# Compiled on all cores, which pip does on one; what is hardly ever imported is compiled when it is.
RARE := '/(IPython|OpenGL|_inductor|alembic|backrefs|debugpy|lexers|mujoco|mypyc?|onnxruntime|opentelemetry|pip|prompt_toolkit|pygame|pymdownx|ray|setuptools|sqlalchemy|testing|tests?|wandb)/'
compile = $(BIN)/python -m compileall -qq -x $(RARE)

.PHONY: setup demo format lint check test test-slow test-exports test-lowest test-newest test-refused site clean

setup: $(STAMP)

# A pip that finds versions in half the time of those that older Pythons bring.
# torch first and by itself: its tested version, before anything else can ask for another.
# setuptools with it, which builds quintet here and not in an environment of its own.
# What is there by then is compiled while pip installs the rest on another core.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 14) else "quintet needs Python 3.11 to 3.14, this is %s; set PYTHON=..." % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call installs_into,$(VENV)) 'pip>=26'
	$(call installs_into,$(VENV)) -c constraints.txt torch setuptools
	$(compile) $(VENV)/lib/*/site-packages/* & \
	$(call installs_into,$(VENV)) -c constraints.txt --no-build-isolation -e '.[dev]' && wait
	$(compile) -j 0 $(VENV)/lib || true
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
	$(BIN)/lint-imports
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

# While you work: the tests of what differs from `main`, or those of ops, models and config.
check: export PYTHONDONTWRITEBYTECODE =
check: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $$($(BIN)/python tests/tests_of.py --changed)

# Each of JOBS processes takes its part of the files, and what others have left at the end: what the
# tests of a file share is made once.  Compiled modules are kept, as the tests start a hundred
# processes that import quintet.
test: export PYTHONDONTWRITEBYTECODE =
test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# One at a time: exactness tests burn every core beside the run that they watch.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# Every kind of policy as an export in every format.
test-exports: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow tests/export/test_whole.py \
		tests/export/test_verification.py

# The documents as pages with search and an API reference, in build/site.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The fast tests with the oldest versions that pyproject.toml admits, and with the newest ones of
# today, each in a virtual environment of its own: hours on few cores, and gigabytes without UV=1.
test-lowest:
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(call installs_into,$(VENV)-lowest) -c constraints-lowest.txt torch
	$(call installs_into,$(VENV)-lowest) -c constraints-lowest.txt -e '.[dev]'
	$(VENV)-lowest/bin/python -m pytest -n $(JOBS) --dist worksteal

test-newest:
	$(PYTHON) -m venv --clear $(VENV)-newest
	$(call installs_into,$(VENV)-newest) torch
	$(call installs_into,$(VENV)-newest) -e '.[dev]'
	$(VENV)-newest/bin/python -m pytest -n $(JOBS) --dist worksteal

# On Windows: one sentence, also where nothing else is installed.
test-refused:
	$(PYTHON) -m quintet --help 2>&1 | grep '^error: quintet must run on Linux or macOS, got Windows:'

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest build dist *.egg-info
