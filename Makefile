# Two commands to start with: `make train` and `make test`. Nothing else needs to be installed first but Python 3.11+.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
PRESET ?= cartpole/ppo
ARGS ?=
BENCH ?= benchmarks/startup.py
# What looks further when GANGLION_SOAK=1.
SOAK ?= tests/nn/test_nets.py tests/equal/test_resume.py tests/record/test_crash.py tests/record/test_damage.py tests/cli/test_broken.py tests/envs/test_pool_ends.py tests/distributed/test_hosts.py tests/distributed/test_slurm.py tests/distributed/test_restarts.py tests/distributed/test_learner_processes.py tests/distributed/test_ray.py tests/record/test_forged.py tests/record/test_links.py tests/cli/test_folders.py tests/cli/test_numbers.py tests/envs/test_generated.py tests/envs/test_interface.py tests/distributed/test_hostile_items.py tests/cli/test_working_folder.py tests/distributed/test_ray_lost.py
SOAK_REPORT ?= docs/results/soak.txt

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --no-input --disable-pip-version-check
PINNED := -c requirements.lock
PROJECT := requirements.lock pyproject.toml
# One thread each for torch (small networks are slower on two), two processes for pytest.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help train test check format lint types budgets fast soak bench lock clean

help: ## shows this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

train: $(VENV)/stamp-run ## installs and trains CartPole (PRESET=..., ARGS="algo.lr=3e-4 ...")
	@status=0; $(BIN)/ganglion train $(PRESET) $(ARGS) || status=$$?; \
		echo "These commands need:  source $(VENV)/bin/activate"; exit $$status

test: $(VENV)/stamp-dev ## installs what tests need and runs everything; a slip of style does not hide the tests
	@status=0; \
		$(BIN)/ruff check . || status=1; \
		$(BIN)/ruff format --check . || status=1; \
		$(BIN)/mypy || status=1; \
		$(PYTEST) -n 2 --dist worksteal || status=1; \
		exit $$status

check: $(VENV)/stamp-dev lint types budgets fast ## format, lint, types, budgets, fast tests: what pre-commit runs

format: $(VENV)/stamp-dev ## formats and repairs what ruff can
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: $(VENV)/stamp-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/stamp-dev
	@$(BIN)/mypy

budgets: $(VENV)/stamp-dev
	@$(PYTEST) -q tests/budgets

fast: $(VENV)/stamp-dev
	@$(PYTEST) -q -n 2 --dist worksteal -m "not learning and not soak" --ignore tests/budgets

soak: $(VENV)/stamp-dev ## many kill points, flipped bytes, broken configs; the output is committed
	@mkdir -p $(dir $(SOAK_REPORT))
	@GANGLION_SOAK=1 $(PYTEST) -q -n 2 --dist worksteal --no-header --disable-warnings -rpfEs \
		-o faulthandler_timeout=0 $(SOAK) 2>&1 | tee $(SOAK_REPORT)

bench: $(VENV)/stamp-run ## start-up times
	@for script in $(BENCH); do $(BIN)/python $$script; done

lock: ## resolves the newest versions that fit pyproject.toml into requirements.lock
	@.ci/lock $(PYTHON)

clean: ## removes the virtual environment and caches, never runs/
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info

# ---------------------------------------------------------------- the virtual environment

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Ganglion needs Python 3.11 or newer; found $$($(PYTHON) --version). Try: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch first and pinned: left to the resolver, an unpinned torch may pull several gigabytes that are not wanted.
$(VENV)/stamp-torch: requirements.lock | $(BIN)/python
	@echo "Installing PyTorch, the large part"
	@$(PIP) install $(PINNED) setuptools torch
	@touch $@

$(VENV)/stamp-run: $(PROJECT) | $(VENV)/stamp-torch
	@echo "Installing Ganglion and its pinned dependencies"
	@$(PIP) install -q $(PINNED) --no-build-isolation -e .
	@touch $@

$(VENV)/stamp-dev: $(PROJECT) | $(VENV)/stamp-torch
	@echo "Installing Ganglion and what its tests need"
	@$(PIP) install -q $(PINNED) --no-build-isolation -e ".[dev]"
	@touch $@ $(VENV)/stamp-run
