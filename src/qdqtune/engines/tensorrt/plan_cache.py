"""Built engines that are kept by what they were built from: a build takes minutes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from qdqtune.graph.proto_walk import contents
from qdqtune.graph.temporary_files import TemporaryFolder

PLAN, LAYERS = ".plan", ".layers.json"
"""Endings of what is kept: the engine, and what is known of its layers."""

_MOST_BYTES = 4 << 30
_CHUNK = 1 << 20


class PlanCache:
    """A folder with built engines, which several processes may use at once.

    Args:
        folder: Where they lie; made when the first one is kept.
        most_bytes: How large all of them may be together; those that nobody asked for go first.
    """

    def __init__(self, folder: str | os.PathLike[str], most_bytes: int = _MOST_BYTES) -> None:
        self.folder = Path(folder)
        self._most_bytes = most_bytes

    def path_for(self, key: str, ending: str = PLAN) -> Path:
        """Where something is kept, whether it is there or not."""
        return self.folder / f"{key}{ending}"

    def find(self, key: str, ending: str = PLAN) -> Path | None:
        """What is kept; None if it isn't. It may go at any time: `take` it if it has to stay."""
        path = self.path_for(key, ending)
        try:
            if path.stat().st_size == 0:
                return None
            os.utime(path)  # whatever is used last goes last
        except OSError:
            return None
        return path

    def take(self, key: str, target: Path, ending: str = PLAN) -> bool:
        """Puts what is kept at another place, where it stays; False if it isn't there any more."""
        found = self.find(key, ending)
        if found is None:
            return False
        target.unlink(missing_ok=True)
        try:
            _link_or_copy(found, target)
        except FileNotFoundError:  # another process dropped it just now
            return False
        return True

    def keep(self, key: str, content: bytes | Path, ending: str = PLAN) -> Path:
        """Keeps an engine: whoever looks for it finds all of it, or nothing.

        Args:
            key: What `plan_key` made of what it was built from.
            content: The engine; nobody may write into that file later.
            ending: What it is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path_for(key, ending)
        with TemporaryFolder(self.folder) as folder:
            new = folder / path.name
            if isinstance(content, bytes):
                new.write_bytes(content)
            else:
                _link_or_copy(content, new)
            os.replace(new, path)
        self._drop_oldest(path)
        return path

    def _drop_oldest(self, newest: Path) -> None:
        files = []
        for path in self.folder.glob("[!.]*"):
            with contextlib.suppress(OSError):  # another process dropped it
                seen = path.stat()
                files.append((path == newest, seen.st_mtime_ns, seen.st_size, path))
        size = sum(each[2] for each in files)
        for is_newest, _, bytes_, path in sorted(files):
            if size <= self._most_bytes or is_newest:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            size -= bytes_


def plan_key(model: str | os.PathLike[str], parts: Iterable[str]) -> str:
    """A name for what a build makes: equal for equal models, wherever they lie.

    Args:
        model: The model file; of files beside it, those bytes count that it refers to.
        parts: What the result depends on beside the model: version, device, options.

    Raises:
        OSError: If a file is missing or too short.
    """
    digest = hashlib.sha256()
    content = Path(model).read_bytes()
    for part in (*parts, str(len(content))):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    digest.update(content)
    folder = Path(model).absolute().parent
    for location, offset, length in sorted(_ranges(onnx.load_from_string(content))):
        for chunk in _read(folder / location, offset, length):
            digest.update(chunk)
    return digest.hexdigest()[:40]


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk, or on one without links
        shutil.copyfile(source, target)


def _ranges(proto: onnx.ModelProto) -> set[tuple[str, int, int]]:
    """Files, and where in them weights lie; a length of -1 is all the rest."""
    found = set()
    for tensor in contents(proto).tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            said = {entry.key: entry.value for entry in tensor.external_data}
            place = int(said.get("offset") or 0), int(said.get("length") or -1)
            found.add((said.get("location", ""), *place))
    return found


def _read(path: Path, offset: int, length: int) -> Iterator[bytes]:
    if not path.is_file():  # a device could go on for ever
        raise FileNotFoundError(f"{path}, which has weights of the model, is no file")
    left = length if length >= 0 else path.stat().st_size - offset
    with path.open("rb") as file:
        file.seek(offset)
        while left > 0:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise OSError(f"{path} ends before the weights that a model has in it")
            left -= len(chunk)
            yield chunk
