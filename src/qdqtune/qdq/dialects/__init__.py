"""Every dialect there is: one file per engine family, and those of other packages."""

from __future__ import annotations

import difflib
import functools

from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq.dialects._onnxruntime import ONNXRUNTIME, ONNXRUNTIME_NO_VNNI
from qdqtune.qdq.dialects._openvino import OPENVINO, OPENVINO_NO_VNNI
from qdqtune.qdq.dialects._tensorrt import TENSORRT, TENSORRT_8
from qdqtune.records._errors import UsageError
from qdqtune.records._health import Plugins, find_plugins

GROUP = "qdqtune.dialects"
"""The entry points by which other packages announce theirs."""

_BUILTIN = (ONNXRUNTIME, ONNXRUNTIME_NO_VNNI, OPENVINO, OPENVINO_NO_VNNI, TENSORRT, TENSORRT_8)
DIALECTS = {dialect.name: dialect for dialect in _BUILTIN}
"""The built-in dialects; `dialects` also has those of other packages."""


@functools.cache
def plugins() -> Plugins[Dialect]:
    """Return the dialects of other packages, cached."""
    return find_plugins(GROUP, Dialect, DIALECTS, _fault)


def dialects() -> dict[str, Dialect]:
    """Return every dialect by name."""
    return {**DIALECTS, **plugins().entries}


def dialect_named(name: str) -> Dialect:
    """Return a dialect by its name.

    Raises:
        UsageError: If there is none of that name, or it can't be used.
    """
    if name in DIALECTS:  # without looking for plugins
        return DIALECTS[name]
    known = dialects()
    if name in known:
        return known[name]
    for broken in plugins().broken:
        if broken.name == name:
            raise UsageError(
                f"The dialect {name} can't be used: {broken.reason}.",
                f"It is part of the package {broken.package}: mend or remove that.",
            )
    near = difflib.get_close_matches(name, known, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    raise UsageError(f"There is no dialect {name!r}.{guess}", f"Known: {', '.join(known)}.")


def _fault(dialect: Dialect, name: str) -> str:
    if dialect.name != name:
        return f"it is announced as '{name}', but is called '{dialect.name}'"
    return "" if dialect.formats and dialect.rules else "it quantizes no op, or to no type"


__all__ = [
    "DIALECTS",
    "ONNXRUNTIME",
    "ONNXRUNTIME_NO_VNNI",
    "OPENVINO",
    "OPENVINO_NO_VNNI",
    "TENSORRT",
    "TENSORRT_8",
    "dialect_named",
    "dialects",
]
