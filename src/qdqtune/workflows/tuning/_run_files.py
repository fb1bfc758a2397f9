"""Guards of a run's folder: one run at a time, no newer files, a result handed over at once."""

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
COMMITTED = ".handover"
_DATA = FINAL + ".data"
RESULT = (_DATA, FINAL, RANGES, PLACEMENT, SUMMARY)
"""What a run comes to, in the order in which it goes into place."""


def lock_folder(folder: Path) -> BinaryIO:
    """Hold a folder until what is returned is closed, or the process ends in whatever way.

    The lock is the kernel's: that of a process that is gone is free. The file stays where it is
    and says who had it last.

    Args:
        folder: The folder; it exists.

    Raises:
        UsageError: If another run holds it.
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
    # With another name it is another file as well, which is not ours to write to.
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
        except OSError as error:  # a full disk: the lock holds, it only says nothing
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

    What can't be read at all is damaged; that is for those to say who need the file.

    Args:
        kinds: The kind of each file; it need not be there.

    Raises:
        NewerSchemaError: If one is of a schema that this version does not know.
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
    """A look that costs little, since most files are of this version."""
    return any(
        int(in_yaml or in_json) > newest for in_yaml, in_json in _SCHEMA.findall(read_bytes(path))
    )


def _check_json(path: Path, kind: str) -> None:
    body = parse_json(read_text(path), path.name)
    if isinstance(body, dict) and body.get("kind") == kind:
        check_schema(kind, body.get("schema"), str(path))


def holds_subgraphs(folder: Path) -> bool:
    """Whether a run has written subgraphs there."""
    return any(folder.glob(_SUBGRAPHS))


def is_empty(folder: Path) -> bool:
    """Whether there is nothing: no such folder, or none with anything in it."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def remove_subgraphs(folder: Path) -> None:
    """Remove what runs write there, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    for file in (file for pattern in _OF_SUBGRAPHS for file in folder.glob(pattern)):
        file.unlink(missing_ok=True)
    if is_empty(folder) and not folder.is_symlink():
        folder.rmdir()


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
        ModelError: If it is not a model, or weights are missing or not plain files in its folder.
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
