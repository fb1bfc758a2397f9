"""Transfers arrays between processes: one ``.npz`` file per set, never pickled.

Tensor names are not used as archive entry names, so that a tensor may have any name. Types without
a numpy file format (bfloat16, float8) are stored as raw bytes with their type name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qdqtune.graph.disk_errors import writing


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes named arrays.

    Raises:
        DiskError: The file can't be written.
        TypeError: An array has a type that is neither a number nor text.
    """
    entries: dict[str, npt.NDArray[Any]] = {
        "names": np.array(list(arrays), dtype=np.str_),
        "dtypes": np.array([_dtype_name(array) for array in arrays.values()], dtype=np.str_),
    }
    for index, (name, value) in enumerate(arrays.items()):
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = array.astype(np.str_)
        elif array.dtype.kind == "V" or (array.dtype.kind != "U" and array.dtype.isbuiltin != 1):
            if not hasattr(ml_dtypes, array.dtype.name):
                raise TypeError(f"'{name}' has type {array.dtype}, which no tensor can have")
            array = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
        entries[f"array{index}"] = array
    with writing(path), open(path, "wb") as file:
        np.savez(file, **entries)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Reads what ``write_arrays`` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for index, (name, dtype) in enumerate(
            zip(archive["names"], archive["dtypes"], strict=True)
        ):
            array = archive[f"array{index}"]
            if str(dtype) and array.dtype.name != str(dtype) and hasattr(ml_dtypes, str(dtype)):
                array = array.view(np.dtype(getattr(ml_dtypes, str(dtype))))
            arrays[str(name)] = array
        return arrays


def _dtype_name(array: npt.NDArray[Any]) -> str:
    name = np.asarray(array).dtype.name
    return name if hasattr(ml_dtypes, name) else ""
