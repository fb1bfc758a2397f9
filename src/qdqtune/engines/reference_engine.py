"""The reference engine: it calibrates, and runs models exactly as written, for any target engine.

Options and sizes here apply to the engine that `registry.REFERENCE` names.
"""

from __future__ import annotations

from pathlib import Path

from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker
from qdqtune.records.errors import EngineError

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
