# The two commands of a newcomer: `make demo` and `make test`. Each makes .venv first if it must.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DEMO   := work/demo

PYTEST := $(BIN)/pytest -n auto --dist worksteal

# The parts of lint run two at a time.
MAKEFLAGS += --jobs=2

.PHONY: install demo test test_slow test_docs test_exhaustive bench docs clean
.PHONY: lint lint_types lint_tests lint_layers lint_style

install: $(READY)

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python -m benchmarks.demo --output_dir $(DEMO)

lint: lint_types lint_tests lint_layers lint_style

lint_style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/lint_engine_names.py
	$(BIN)/python tools/lint_vocabulary.py

lint_types: $(READY)
	$(BIN)/mypy

lint_layers: $(READY)
	$(BIN)/lint-imports

# Tests of every tier can be imported; pytest-xdist would tell it only after all others have run.
lint_tests: $(READY)
	@found=$$($(BIN)/pytest --collect-only -m '' 2>&1) || { echo "$$found" | tail -n 40; exit 1; }

test: lint
	$(PYTEST) $(ARGS)

test_slow: $(READY)
	$(PYTEST) -m slow --timeout 1200 $(ARGS)

test_docs: $(READY)
	$(PYTEST) -m docs $(ARGS)

test_exhaustive: $(READY)  # hours
	$(PYTEST) -m exhaustive --timeout 3600 $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build work
