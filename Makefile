# `make demo` and `make test` need Python 3.11 or newer and nothing else; everything else is set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test chaos lint bench screenshots format env clean

env:
	@$(PYTHON) tools/make_env.py $(VENV)

demo: env
	@$(BIN)/hypha-tui demo $(ARGS)

# All tests: those that need no cluster side by side, those with real ones one after the other. With ARGS, just what they say.
test: env
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal tests/unit tests/sim tests/terminal
	$(BIN)/python -m pytest tests/integration tests/chaos
endif

# Kills, stops, cuts off and slows the nodes of real clusters: make chaos ARGS="--seeds 200". Linux.
chaos: env
	$(BIN)/python -m tests.chaos $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: env
	$(BIN)/python -m benchmarks.slices
	$(BIN)/python -m benchmarks.crowd
	$(BIN)/python -m benchmarks.loader
	$(BIN)/python -m benchmarks.resume
	$(BIN)/python -m benchmarks.kills
	$(BIN)/python -m benchmarks.fuzz_data
	$(BIN)/python -m benchmarks.terminal
	$(BIN)/python -m benchmarks.replay
	$(BIN)/python -m benchmarks.placement
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.exchange
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.quality
	$(BIN)/python -m benchmarks.bytes
	$(BIN)/python -m benchmarks.utilisation
	$(BIN)/python -m benchmarks.uneven
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.aggregate
	$(BIN)/python -m benchmarks.codec
	$(BIN)/python -m benchmarks.scale

# docs/screens/*.svg, from the recording in tests/terminal.
screenshots: env
	$(BIN)/python -m tests.terminal.screenshots

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .demo dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
