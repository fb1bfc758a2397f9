"""Advice when an engine refuses a model because of custom ops."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qdqtune.engines import registry
from qdqtune.graph.files import load_model
from qdqtune.graph.op_classes import is_standard
from qdqtune.records.errors import ModelError


def custom_ops_in(model: ir.Model) -> dict[str, str]:
    """Return the op types that neither ONNX nor the model's functions define, with domains."""
    defined = {(domain, name) for domain, name, _ in model.functions}
    return {
        node.op_type: node.domain
        for graph in model.graphs()
        for node in graph.all_nodes()
        if not is_standard(node) and (node.domain, node.op_type) not in defined
    }


def advice_on(failure: object, model: ir.Model | Path, engine: str, otherwise: str) -> str:
    """Return advice on an engine's failure.

    Args:
        failure: The engine's error.
        model: The model, or its file.
        engine: The engine's name.
        otherwise: The advice if no custom op caused the failure.
    """
    if isinstance(model, Path):
        try:
            model = load_model(model)
        except ModelError:
            return otherwise
    said = str(failure)
    blamed = [(name, domain) for name, domain in custom_ops_in(model).items() if name in said]
    if not blamed:
        return otherwise
    ops = ", ".join(f"{name} of the domain {domain!r}" for name, domain in blamed)
    entry = registry.engines().get(engine)
    title = (entry.title or engine) if entry is not None else "the engine"
    if entry is not None and entry.takes_plugins:
        how = "Load the library that has it: --plugin_libraries FILE."
    else:
        how = (
            "Export the model with standard ops instead, or with functions in it that define such "
            "ops by standard ones."
        )
    what = "the custom op" if len(blamed) == 1 else "these custom ops:"
    return f"{title[0].upper()}{title[1:]} does not know {what} {ops}. {how}"
