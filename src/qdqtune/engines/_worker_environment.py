"""What passes between a parent and its worker besides requests: variables, folders, arrays."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qdqtune.graph._atomic_files import TemporaryFolder, writing

SCRATCH = "QDQTUNE_SCRATCH"
"""Variable that names the folder that goes with the worker."""
LOGS = "QDQTUNE_LOGS"
"""Variable that names the folder for logs; unset if nobody wants to keep them."""
OPENING = "QDQTUNE_OPENING"
"""Variable with the number of the process, where one comparison is made in several."""

_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


def scratch_folder() -> Path:
    """Where an engine may leave files that nobody needs after it; outside a worker, our own."""
    return Path(os.environ.get(SCRATCH) or _own_scratch().path)


@functools.cache
def _own_scratch() -> TemporaryFolder:
    return TemporaryFolder()


def log_of(model: str | os.PathLike[str], engine: str) -> Path | None:
    """The file for what an engine says about one model; None if it isn't kept.

    Args:
        model: The model file; a second one of the same name has the same log.
        engine: The engine's name.
    """
    folder = os.environ.get(LOGS)
    if not folder:
        return None
    path = Path(folder, engine)
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{_NOT_IN_NAMES.sub('_', Path(model).stem)}.log"


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
