"""Conformance kits for engines and dialects: a test class to inherit, a fixture to override.

Outside the layers, like the zoo: nothing in qdqtune imports it. See docs/extend/engine.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.testing._bench import Bench as Bench
    from qdqtune.testing._bench import EngineUnderTest as EngineUnderTest
    from qdqtune.testing._conformance import EngineConformance as EngineConformance
    from qdqtune.testing._dialects import DialectConformance as DialectConformance

_import_name, __dir__, __all__ = lazy_names(
    __name__,
    {
        "qdqtune.testing._bench": "Bench EngineUnderTest",
        "qdqtune.testing._conformance": "EngineConformance",
        "qdqtune.testing._dialects": "DialectConformance",
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _import_name(name)
    except ModuleNotFoundError as error:
        if error.name not in ("psutil", "pytest"):
            raise
        raise ImportError(
            f"qdqtune.testing needs {error.name}, which is not installed.\n"
            "Install it: pip install 'qdqtune[testing]'"
        ) from error
