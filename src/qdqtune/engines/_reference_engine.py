"""The reference engine runs models exactly as written; advice if an engine refuses custom ops."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._op_classes import is_standard
from qdqtune.records._errors import EngineError, ModelError

# Runs every op as written: a foreign dialect must not be evaluated with this CPU's kernels. Memory
# patterns would double the memory of a run, and save no time here.
AS_WRITTEN = SessionOptions(
    engine_options={"graph_optimization_level": "disable_all", "enable_mem_pattern": "0"}
)

# Larger models are opened without optimization: ONNX Runtime's optimizations take time quadratic in
# the number of nodes. For Convs: 3 s for 10,000 nodes, 47 s for 40,000; as written 0.5 and 3 s.
_MANY_NODES = 10_000


def opening_options(nodes: int) -> SessionOptions | None:
    """Return how to open a model with this many nodes that is run only a few times."""
    return AS_WRITTEN if nodes > _MANY_NODES else None


def has_reference() -> bool:
    """Whether the reference engine is installed."""
    return registry.available(registry.REFERENCE).usable


def require_reference() -> None:
    """Make sure that the engine for calibration is installed.

    Raises:
        EngineError: If the reference engine is not installed.
    """
    if not has_reference():
        raise EngineError(
            f"Calibration runs the float model with {registry.title(registry.REFERENCE)}, whatever "
            "engine the result is for, and it is not installed.",
            f"Install it as well: {registry.entry(registry.REFERENCE).install}",
        )


def reference_worker(*, log_path: Path | None = None, scratch: Path | None = None) -> Worker:
    """Create a worker of the reference engine; see `Worker` for the arguments.

    Raises:
        EngineError: If it is not installed.
    """
    require_reference()
    return Worker(registry.REFERENCE, log_path=log_path, scratch=scratch)


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
