"""The folder that a run writes to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qdqtune.graph.external import external_files
from qdqtune.graph.files import write_text
from qdqtune.records.errors import OutputError

BASELINE = "baseline.onnx"
FINAL = "optimized_final.onnx"
PLACEMENT = "placement.json"
RANGES = "ranges.json"
JOURNAL = "measurements.jsonl"
SUMMARY = "summary.json"
CANDIDATES = "region_models"
LOGS = "logs"

_STAGING = ".staged"
_OURS = (BASELINE, FINAL, PLACEMENT, RANGES, JOURNAL, SUMMARY)


class RunFolder:
    """Where the files of one run lie.

    Args:
        path: The folder; it is made if there is none.
        model: The model that is tuned; the folder must not be a place where writing harms it.
        others: Other files that are read.
        force: Whether an earlier run in it may be replaced.

    Raises:
        OutputError: If it can't be written to, or holds files that are not of a run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: Path,
        others: Sequence[Path] = (),
        *,
        force: bool,
    ) -> None:
        self.path = Path(path)
        self._protect(model, others)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"The folder {self.path} can't be made: {error.strerror}.", "Choose another one."
            ) from None
        if not os.access(self.path, os.W_OK):
            raise OutputError(f"The folder {self.path} can't be written to.", "Choose another one.")
        if force:
            self._clear()
        elif not (self.path / JOURNAL).exists():
            copies = [self._copy_of(file, model) for file in external_files(model)]
            for file in (*self._written(), self.path / CANDIDATES, *copies):
                if file.exists():
                    raise OutputError(
                        f"{file} is there already, without the {JOURNAL} of a run.",
                        "Choose another --output_dir, or pass --force to replace it.",
                    )
        try:
            for name in (CANDIDATES, LOGS):
                (self.path / name).mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"The folder {self.path / name} can't be made: {error.strerror}.",
                "Choose another --output_dir.",
            ) from None

    def _written(self) -> set[Path]:
        """Every file that a run may write but for candidates and copies of weights."""
        files = {(self.path / name).resolve() for name in _OURS}
        return files | {file.with_name(file.name + ".data") for file in files}

    def _copy_of(self, weights: Path, model: Path) -> Path:
        return (self.path / weights.relative_to(model.absolute().parent.resolve())).resolve()

    def _protect(self, model: Path, others: Sequence[Path]) -> None:
        """Refuse to write over what is read, or over one copy with another."""
        written = self._written()
        inside = [(self.path / name).resolve() for name in (CANDIDATES, LOGS, _STAGING)]
        for source in (model, *others):
            for file in {source.resolve(), *external_files(source)}:
                if file in written or any(folder in file.parents for folder in inside):
                    raise OutputError(
                        f"{source} lies in the output folder, where the run would replace "
                        f"{file.name}.",
                        "Choose another --output_dir.",
                    )
        for file in external_files(model):
            if self._copy_of(file, model) in written:
                raise OutputError(
                    f"The weights of {model} lie in {file.name}, the name of a file that the run "
                    "writes.",
                    "Save the model under another name first.",
                )

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def write(self, name: str, text: str) -> Path:
        """Write one of the run's text files, whole or not at all."""
        write_text(self.path / name, text, force=True)
        return self.path / name

    def write_json(self, name: str, value: Any) -> Path:
        """Write one of the run's JSON files."""
        return self.write(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def staging(self) -> Path:
        """An empty folder for what is not finished."""
        self.clear_staging()
        staged = self.path / _STAGING
        staged.mkdir()
        return staged

    def clear_staging(self) -> None:
        """Remove what was not finished."""
        shutil.rmtree(self.path / _STAGING, ignore_errors=True)

    def put_in_place(self, staged: Path) -> None:
        """Move a finished model, with the weights beside it, to where it belongs."""
        for file in sorted(staged.parent.iterdir(), reverse=True):  # weights before the model
            os.replace(file, self.path / file.name)
        self.clear_staging()

    def copy_model(self, model: Path, name: str) -> Path:
        """Copy a model byte for byte, with the files that its weights lie in.

        Raises:
            OutputError: If there is no room.
        """
        target = self.path / name
        try:
            for file in sorted(external_files(model)):
                beside = self._copy_of(file, model)
                beside.parent.mkdir(parents=True, exist_ok=True)
                if not beside.exists() or not beside.samefile(file):
                    _copy(file, beside)
            _copy(model, target)
        except OSError as error:
            raise OutputError(
                f"{target} could not be written: {error.strerror}.",
                "Check that the disk has room.",
            ) from None
        return target

    def _clear(self) -> None:
        for name in _OURS:
            for file in (self.path / name, self.path / f"{name}.data"):
                file.unlink(missing_ok=True)
        shutil.rmtree(self.path / CANDIDATES, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(source, staged)
        os.replace(staged, target)
    finally:
        staged.unlink(missing_ok=True)
