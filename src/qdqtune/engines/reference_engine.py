"""The reference engine: it calibrates, and runs models as they are written, whatever they are for.

What is said here of options and sizes is true of the engine that `registry.REFERENCE` names.
"""

from __future__ import annotations

from pathlib import Path

from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker
from qdqtune.records.errors import EngineError

# Runs every op as it is written: a foreign dialect must not be evaluated with this CPU's kernels.
# Memory patterns would keep everything that a run needs a second time, and save no time here.
AS_WRITTEN = SessionOptions(
    engine_options={"graph_optimization_level": "disable_all", "enable_mem_pattern": "0"}
)

# From here on a session is opened as written: ONNX Runtime's optimizations take time with the
# square of the nodes. Seen with Convs: 3 s for 10,000 nodes, 47 s for 40,000; as written 0.5 and 3.
_MANY_NODES = 10_000


def opening_options(nodes: int) -> SessionOptions | None:
    """How to open a model of so many nodes that is run a few times only."""
    return AS_WRITTEN if nodes > _MANY_NODES else None


def has_reference() -> bool:
    """Whether the reference engine is installed."""
    return registry.available(registry.REFERENCE).usable


def require_reference() -> None:
    """Make sure that there is something to calibrate with.

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
    """A worker of the reference engine; see `Worker` for the arguments.

    Raises:
        EngineError: If it is not installed.
    """
    require_reference()
    return Worker(registry.REFERENCE, log_path=log_path, scratch=scratch)
