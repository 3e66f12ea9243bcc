# `make demo` and `make test` need Python 3.11 or newer and nothing else; everything else is set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench format env clean

env:
	@$(PYTHON) tools/make_env.py $(VENV)

demo: env
	@$(BIN)/hypha-tui demo $(ARGS)

test: env
	$(BIN)/python -m pytest $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: env
	$(BIN)/python -m benchmarks.slices
	$(BIN)/python -m benchmarks.placement
	$(BIN)/python -m benchmarks.startup

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .demo dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
