# The two commands of a newcomer: `make demo` and `make test`. Each makes .venv first if it must.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DEMO   := work/demo

.PHONY: install demo test lint bench clean

install: $(READY)

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	@mkdir -p $(DEMO)
	$(BIN)/python -m qdqtune.zoo resnet18 -o $(DEMO)/resnet18.onnx --force
	$(BIN)/qdqtune insert $(DEMO)/resnet18.onnx --ops Conv,Gemm -o $(DEMO)/resnet18_int8.onnx --force
	$(BIN)/qdqtune bench $(DEMO)/resnet18.onnx $(DEMO)/resnet18_int8.onnx --threads 1

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n auto $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build work
