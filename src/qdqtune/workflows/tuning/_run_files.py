"""Protection of a run's folder: one run at a time, no newer files, results replaced at once."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import BinaryIO

from qdqtune.graph._atomic_files import kind_at, remove, sha256_of, sync, writing
from qdqtune.graph._external_data import check_external_data
from qdqtune.graph._files import parse_model
from qdqtune.graph._protobuf import contents
from qdqtune.graph._weights import WEIGHTS_FILE, WEIGHTS_INDEX
from qdqtune.records._errors import (
    NewerSchemaError,
    NewerVersionError,
    OutputError,
    QdqtuneError,
    UsageError,
)
from qdqtune.records._untrusted_files import (
    SCHEMAS,
    check_schema,
    parse_json,
    read_bytes,
    read_text,
)
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._state_file import read_state
from qdqtune.workflows.tuning._journal_format import read_journal

LOCK = ".lock"

_logger = logging.getLogger(__name__)

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_SCHEMA = re.compile(rb'^schema: *(\d{1,9}) *$|"schema": *(\d{1,9})\b', re.MULTILINE)
_READERS: Mapping[str, Callable[[Path], object]] = {
    "autotuner_state": read_state,
    "journal": read_journal,
    "pattern_cache": PatternCache.load,
}
_SUBGRAPHS = "subgraph_*.onnx"
_OF_SUBGRAPHS = (_SUBGRAPHS, "conversion_*.onnx", WEIGHTS_FILE, WEIGHTS_INDEX)
FINAL = "optimized_final.onnx"
PLACEMENT = "placement.json"
RANGES = "ranges.json"
SUMMARY = "summary.json"
PARETO = "pareto.json"
COMMITTED = ".handover"
_DATA = FINAL + ".data"
RESULT = (_DATA, FINAL, RANGES, PLACEMENT, PARETO, SUMMARY)
"""The files of a result, in the order in which they are put in place."""


def lock_folder(folder: Path) -> BinaryIO:
    """Lock a folder until the returned file is closed, or the process ends in any way.

    The kernel releases the lock of a process that ended. The file stays, and names the last owner.

    Args:
        folder: The folder, which must exist.

    Raises:
        UsageError: If another run has locked it.
        OutputError: If the folder can't be written to.
    """
    path, flags = folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    if kind := kind_at(path):
        raise OutputError(
            f"{path} is {kind}, where the run would write its lock.",
            "Remove it, or choose another --output_dir.",
        )
    try:
        file = os.fdopen(os.open(path, flags, 0o644), "r+b", 0)
    except OSError as error:
        raise OutputError(
            f"The folder {folder} can't be written to: {error.strerror}.", "Choose another one."
        ) from None
    # With several hard links it is also another file, which we must not write to.
    is_own = os.fstat(file.fileno()).st_nlink == 1
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            _logger.warning(
                "%s lies on a file system without locks: make sure that no other run uses it",
                folder,
            )
            return file
        owner = _owner(file) if is_own else ""
        file.close()
        raise UsageError(
            f"Another run is using {folder}{owner}.",
            "Wait until it is over, stop it, or choose another --output_dir.",
        ) from None
    if is_own:
        try:
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        except OSError as error:  # a full disk: the lock holds, but doesn't name its owner
            _logger.info("the lock can't be signed: %s", error.strerror)
    return file


def _owner(lock: BinaryIO) -> str:
    try:
        found = json.loads(lock.read(4096))
        return f" (process {int(found['pid'])} on {str(found['host'])[:100]})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def refuse_newer_files(kinds: Mapping[Path, str]) -> None:
    """Refuse files that only a newer version can read.

    Files that can't be read at all are damaged, which their readers report.

    Args:
        kinds: The kind of each file, which need not exist.

    Raises:
        NewerSchemaError: If one has a schema that this version does not know.
    """
    for path, kind in kinds.items():
        try:
            if _may_be_newer(path, SCHEMAS[kind]):
                _READERS.get(kind, lambda path, kind=kind: _check_json(path, kind))(path)
        except (NewerSchemaError, NewerVersionError):
            raise
        except (OSError, ValueError, QdqtuneError):
            continue


def _may_be_newer(path: Path, newest: int) -> bool:
    """A cheap check, since most files are from this version."""
    return any(
        int(in_yaml or in_json) > newest for in_yaml, in_json in _SCHEMA.findall(read_bytes(path))
    )


def _check_json(path: Path, kind: str) -> None:
    body = parse_json(read_text(path), path.name)
    if isinstance(body, dict) and body.get("kind") == kind:
        check_schema(kind, body.get("schema"), str(path))


def holds_subgraphs(folder: Path) -> bool:
    """Whether a run wrote subgraphs there."""
    return any(folder.glob(_SUBGRAPHS))


def is_empty(folder: Path) -> bool:
    """Whether a folder is missing or empty."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def remove_subgraphs(folder: Path) -> None:
    """Remove the files that runs write there, and the folder if it is then empty."""
    if not folder.is_dir():
        return
    for file in (file for pattern in _OF_SUBGRAPHS for file in folder.glob(pattern)):
        file.unlink(missing_ok=True)
    if is_empty(folder) and not folder.is_symlink():
        folder.rmdir()


def hand_over(folder: Path, staged: Path) -> None:
    """Make staged files the result of a run, all or none.

    Args:
        folder: The run's folder.
        staged: A folder in it, which is removed.

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
    """Put files in place that were committed before a kill; damaged ones are not trusted.

    Args:
        folder: The run's folder, in any state.

    Raises:
        OutputError: If it can't be written.
    """
    committed = folder / COMMITTED
    if not os.path.lexists(committed):
        return
    with writing(folder / FINAL):
        # The summary is moved last: without it, everything is in place except for the empty folder.
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
    """Return the files of a result that is being put in place, if they match its summary."""
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
    # They are moved in this order: if one is still waiting, so are all after it.
    is_waiting = [where[name] == committed for name in RESULT if name in names]
    is_complete = all(_is_plain(where[name] / name) for name in names)
    return names if is_complete and is_waiting == sorted(is_waiting) else None


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def sha256_of_model(model: Path) -> str:
    """Return the hash of a model's file, and of its weights file if there is one."""
    weights = model.with_name(model.name + ".data")
    return sha256_of(model, weights) if weights.is_file() else sha256_of(model)


def sha256_with_weights(model: Path) -> str:
    """Return the hash of a model's file and of all its weights files, by their names.

    Raises:
        ModelError: If it is not a model, or weights are missing or not regular files in its folder.
    """
    tensors = contents(parse_model(model)).external
    check_external_data(tensors, model)
    locations = {
        entry.value
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sha256_of(model, *(model.absolute().parent / each for each in sorted(locations)))
