"""The result of a run: files that belong together, and are handed over at once.

They are staged in a folder of their own and committed by renaming that folder. Then each goes into
place, the summary last. What a kill left on the way is put into place by the next run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path

import onnx

from qdqtune.graph.atomic_files import kind_at, remove, sha256_of, sync, writing
from qdqtune.graph.external_data import check_external_data
from qdqtune.graph.parsing import parse_model
from qdqtune.graph.proto_walk import contents
from qdqtune.records.untrusted_files import parse_json, read_text

FINAL = "optimized_final.onnx"
PLACEMENT = "placement.json"
RANGES = "ranges.json"
SUMMARY = "summary.json"
COMMITTED = ".handover"

_DATA = FINAL + ".data"
RESULT = (_DATA, FINAL, RANGES, PLACEMENT, SUMMARY)
"""What a run comes to, in the order in which it goes into place."""

_logger = logging.getLogger(__name__)


def hand_over(folder: Path, staged: Path) -> None:
    """Make what is staged the result of a run, all of it or nothing.

    Args:
        folder: The run's folder.
        staged: A folder in it, which is gone afterwards.

    Raises:
        OutputError: If it can't be written.
    """
    with writing(folder / FINAL):
        names = {file.name for file in staged.iterdir()}
        for name in names:
            sync(staged / name)
        os.rename(staged, folder / COMMITTED)
        sync(folder)
        _put_into_place(folder, names)


def finish_handover(folder: Path) -> None:
    """Put into place what was committed before a kill; what is damaged is not trusted.

    Args:
        folder: The run's folder, in whatever state.

    Raises:
        OutputError: If it can't be written.
    """
    committed = folder / COMMITTED
    if not os.path.lexists(committed):
        return
    with writing(folder / FINAL):
        # The summary is the last to go: without it, all is in place but the empty folder.
        is_under_way = kind_at(committed) == "a folder" and os.path.lexists(committed / SUMMARY)
        names = _whole_result(folder) if is_under_way else None
        if names:
            _put_into_place(folder, names)
        elif is_under_way:
            _logger.warning(
                "%s holds a result that is damaged and left out: it is made again", committed
            )
        remove(committed)


def _put_into_place(folder: Path, names: Collection[str]) -> None:
    committed = folder / COMMITTED
    for name in RESULT:
        if name not in names:
            (folder / name).unlink(missing_ok=True)
        elif os.path.lexists(committed / name):
            os.replace(committed / name, folder / name)
    remove(committed)


def _whole_result(folder: Path) -> set[str] | None:
    """Names of the files of a result on its way into place, if they are what its summary says."""
    committed = folder / COMMITTED
    where = {name: committed if _is_plain(committed / name) else folder for name in RESULT}
    try:
        summary = parse_json(read_text(committed / SUMMARY), SUMMARY)
        names = {FINAL, PLACEMENT, SUMMARY, *summary["files"].values()}.intersection(RESULT)
        wanted, model = summary["final_sha256"], where[FINAL] / FINAL
        if wanted != sha256_of(model):
            if wanted != sha256_of(model, where[_DATA] / _DATA):
                return None
            names.add(_DATA)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    # They go in this order: behind one that waits, all do.
    is_waiting = [where[name] == committed for name in RESULT if name in names]
    is_complete = all(_is_plain(where[name] / name) for name in names)
    return names if is_complete and is_waiting == sorted(is_waiting) else None


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def sha256_of_model(model: Path) -> str:
    """The hash of a model's file, and of the weights that may lie beside it under its name."""
    weights = model.with_name(model.name + ".data")
    return sha256_of(model, weights) if weights.is_file() else sha256_of(model)


def sha256_with_weights(model: Path) -> str:
    """The hash of a model's file and of all files that its weights lie in, by their names.

    Raises:
        ModelError: If it is no model, or weights are missing or not plain files in its folder.
    """
    tensors = contents(parse_model(model)).tensors
    check_external_data(tensors, model)
    locations = {
        entry.value
        for tensor in tensors
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sha256_of(model, *(model.absolute().parent / each for each in sorted(locations)))
