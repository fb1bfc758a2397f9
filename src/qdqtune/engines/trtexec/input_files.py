"""Inputs as files that trtexec loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qdqtune.engines.trtexec.version import Version
from qdqtune.graph.disk_errors import writing

if TYPE_CHECKING:
    from qdqtune.engines.interface import Feeds

# The parser makes these of types that TensorRT doesn't have; int64 is one since version 10.
_NARROWED = {"float64": np.dtype(np.float32)}
_NARROWED_BEFORE_10 = {**_NARROWED, "int64": np.dtype(np.int32)}
_FIRST_WITH_INT64 = Version(10)


def write_feeds(feeds: Feeds, folder: Path, name: str, version: Version) -> dict[str, Path]:
    """Writes the bytes of each input to a file of its own.

    Args:
        feeds: The inputs.
        folder: Where the files go.
        name: What their names begin with.
        version: Of TensorRT.

    Returns:
        Files by input.
    """
    narrowed = _NARROWED if version >= _FIRST_WITH_INT64 else _NARROWED_BEFORE_10
    files = {}
    for number, (key, array) in enumerate(feeds.items()):
        path = folder / f"{name}{number}.bin"
        dtype = narrowed.get(array.dtype.name, array.dtype)
        with writing(path):
            path.write_bytes(array.astype(dtype).tobytes())
        files[key] = path
    return files
