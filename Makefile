# The two commands of a newcomer: `make demo` and `make test`. Each makes .venv first if it must.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
DEMO   := work/demo
,      := ,

.PHONY: install demo test lint bench clean

install: $(READY)

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	@mkdir -p $(DEMO)
	$(call tune_and_compare,resnet18,Conv$(,)Gemm$(,)Add$(,)MaxPool$(,)GlobalAveragePool$(,)Flatten)
	$(call tune_and_compare,efficientnet,Conv$(,)Gemm$(,)Add$(,)Mul$(,)Sigmoid$(,)GlobalAveragePool$(,)Flatten)

# A zoo model, float, blanket and tuned. Blanket is every op (the second argument) that ONNX
# Runtime's quantize_static would quantize by default.
define tune_and_compare
	$(BIN)/python -m qdqtune.zoo $(1) -o $(DEMO)/$(1).onnx --force
	$(BIN)/qdqtune tune $(DEMO)/$(1).onnx --preset quick --threads 1 --budget 45 -o $(DEMO)/$(1) --force
	$(BIN)/qdqtune insert $(DEMO)/$(1).onnx --ops $(2) -o $(DEMO)/$(1)_blanket.onnx --force -q
	$(BIN)/qdqtune bench $(DEMO)/$(1).onnx $(DEMO)/$(1)_blanket.onnx $(DEMO)/$(1)/optimized_final.onnx --threads 1

endef

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/lint_engine_names.py

test: lint
	$(BIN)/pytest -n auto --dist worksteal $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build work
