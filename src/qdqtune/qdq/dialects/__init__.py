"""Every dialect there is, one file per engine family."""

from __future__ import annotations

import difflib

from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq.dialects._onnxruntime import ONNXRUNTIME, ONNXRUNTIME_NO_VNNI
from qdqtune.qdq.dialects._openvino import OPENVINO, OPENVINO_NO_VNNI
from qdqtune.qdq.dialects._tensorrt import TENSORRT, TENSORRT_8
from qdqtune.records._errors import UsageError

DIALECTS = {
    dialect.name: dialect
    for dialect in (
        ONNXRUNTIME,
        ONNXRUNTIME_NO_VNNI,
        OPENVINO,
        OPENVINO_NO_VNNI,
        TENSORRT,
        TENSORRT_8,
    )
}


def dialect_named(name: str) -> Dialect:
    """A dialect by its name.

    Raises:
        UsageError: If there is none of that name.
    """
    if name not in DIALECTS:
        near = difflib.get_close_matches(name, DIALECTS, n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"There is no dialect {name!r}.{guess}", f"Known: {', '.join(DIALECTS)}.")
    return DIALECTS[name]


__all__ = [
    "DIALECTS",
    "ONNXRUNTIME",
    "ONNXRUNTIME_NO_VNNI",
    "OPENVINO",
    "OPENVINO_NO_VNNI",
    "TENSORRT",
    "TENSORRT_8",
    "dialect_named",
]
