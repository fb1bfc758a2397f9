# The two commands of a newcomer: `make demo` and `make test`. Each makes .venv first if it must.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DEMO   := work/demo

.PHONY: install demo test test_slow lint bench clean

install: $(READY)

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python -m benchmarks.demo --output_dir $(DEMO)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/lint_engine_names.py
	$(BIN)/python tools/lint_vocabulary.py

test: lint
	$(BIN)/pytest -n auto --dist worksteal $(ARGS)

test_slow: $(READY)
	$(BIN)/pytest -n auto --dist worksteal --slow -m slow --timeout 3600 $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build work
