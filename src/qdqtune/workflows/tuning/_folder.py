"""The folder that a run writes to."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from qdqtune.graph._atomic_files import (
    check_folder,
    copy_file,
    kind_at,
    make_folder,
    remove,
    remove_abandoned,
    writing,
)
from qdqtune.graph._external_data import external_files
from qdqtune.graph._weights import WEIGHTS_FILE, WEIGHTS_INDEX
from qdqtune.records._errors import OutputError, QdqtuneError, UsageError
from qdqtune.records._untrusted_files import real_path
from qdqtune.workflows.tuning._journal_format import QUARANTINE
from qdqtune.workflows.tuning._run_files import (
    COMMITTED,
    LOCK,
    finish_handover,
    hand_over,
    holds_subgraphs,
    is_empty,
    lock_folder,
    refuse_newer_files,
    remove_subgraphs,
)
from qdqtune.workflows.tuning._run_files import FINAL as FINAL
from qdqtune.workflows.tuning._run_files import PARETO as PARETO
from qdqtune.workflows.tuning._run_files import PLACEMENT as PLACEMENT
from qdqtune.workflows.tuning._run_files import RANGES as RANGES
from qdqtune.workflows.tuning._run_files import RESULT as RESULT
from qdqtune.workflows.tuning._run_files import SUMMARY as SUMMARY

BASELINE = "baseline.onnx"
RAW = "optimized_raw.onnx"
JOURNAL = "measurements.jsonl"
REPORT = "report.html"
DETAILS = "report.json"
STATE = "autotuner_state.yaml"
PATTERN_CACHE = "autotuner_state_pattern_cache.yaml"
CANDIDATES = "region_models"
FLOAT_CANDIDATE = "float"
REGION_MODELS = "region_{}_level_{}.onnx"
SUBGRAPHS = "subgraphs"
SUBGRAPH_CACHE = "autotune_cache.json"
DAMAGED_CACHE = "autotune_cache.damaged.json"
LAYER_FILE = "{}.{}.graph.json"
BUILD_LOG = "{}.{}.build.log"
_CONVERTED = "converted"
LOGS = "logs"
PLANS = "plans"
ENGINE_LOG = "engine.log"
ASIDE = "earlier"

# Endings of the files that engines keep in the folder for built models.
_BUILT = (".plan", ".layers.json")
_STAGING = ".staged"
_SCRATCH = ".scratch"
_PARTIAL_RUN, _PARTIAL_RESULT = ".partial-run", ".partial-result"
_OURS = (
    BASELINE, FINAL, RAW, PLACEMENT, RANGES, PARETO, SUMMARY, STATE, PATTERN_CACHE, SUBGRAPH_CACHE,
    DAMAGED_CACHE, QUARANTINE, REPORT, DETAILS, JOURNAL,
)  # fmt: skip
# With the weights that may be next to them. The journal is removed last, so that remaining files
# can be recognized as those of a run.
_NAMES = tuple(name for ours in _OURS for name in (f"{ours}.data", ours))
_LAYERS = (LAYER_FILE.format("*", "*"), BUILD_LOG.format("*", "*"))
_FOLDERS = (
    LOGS, CANDIDATES, SUBGRAPHS, PLANS, ASIDE, f"{ASIDE}/{_PARTIAL_RUN}",
    f"{ASIDE}/{_PARTIAL_RESULT}",
)  # fmt: skip
# Files that are appended to, and can't be replaced without losing their content.
_ADDED_TO = (
    JOURNAL, QUARANTINE, f"{CANDIDATES}/{WEIGHTS_FILE}", f"{CANDIDATES}/{WEIGHTS_INDEX}",
    f"{SUBGRAPHS}/{WEIGHTS_FILE}", f"{SUBGRAPHS}/{WEIGHTS_INDEX}",
)  # fmt: skip

READ_AGAIN = {
    JOURNAL: "journal",
    SUMMARY: "summary",
    PLACEMENT: "placement",
    PARETO: "pareto",
    RANGES: "ranges",
    STATE: "autotuner_state",
    PATTERN_CACHE: "pattern_cache",
    SUBGRAPH_CACHE: "autotune_cache",
    DETAILS: "report",
}
"""The kinds of files that a later run reads."""


class RunFolder:
    """The folder with the files of one run. It is locked while this object is open.

    Args:
        path: The folder; created if missing.
        model: The tuned model; writing to the folder must not damage it.
        others: Other files that are read.
        force: Whether existing files may be replaced, including an earlier run.
        restart: Whether to set an earlier run aside and start again.
        resume: Whether to resume an earlier run; otherwise it is an error.
        folders: Additional folders besides those of every run.

    Raises:
        OutputError: If it can't be written to, or contains files that no run wrote.
        UsageError: If another run is using it, or it has a run that may not be resumed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: Path,
        others: Sequence[Path] = (),
        *,
        force: bool = False,
        restart: bool = False,
        resume: bool = True,
        folders: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self._more = tuple(folders)
        self._made: list[Path] = []
        self._read = {
            real_path(file)
            for source in (model, *others)
            for file in (source, *external_files(source))
        }
        self._protect(model, others)
        if not force:
            self._refuse_others_files(model)
        self._make(self.path)
        self._had_lock = (self.path / LOCK).exists()
        self._lock = lock_folder(self.path)
        self._is_restart = restart
        self._is_forced = force
        try:
            self._prepare(resume=resume or restart or force)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(OSError):
            remove(self.scratch)
        if kind is not None and not (self.path / JOURNAL).exists():
            self._leave_nothing(is_refused=issubclass(kind, UsageError))
        self._lock.close()

    def _leave_nothing(self, *, is_refused: bool) -> None:
        """Remove the folders of a run that ended before anything was measured.

        Args:
            is_refused: Whether the error message explains everything; otherwise logs are kept, such
                as those of an engine that does not start.
        """
        inside = [folder for folder in self._made if self.path in folder.parents]
        if is_refused and self.path / LOGS in inside:
            shutil.rmtree(self.path / LOGS, ignore_errors=True)
        _remove_if_empty(inside)
        if any(folder.exists() for folder in inside):
            return  # a later run recognizes them by the lock
        if not self._had_lock:
            (self.path / LOCK).unlink(missing_ok=True)
        _remove_if_empty(self._made)

    def _refuse_others_files(self, model: Path) -> None:
        """Refuse to replace files that no run wrote here; a run leaves its lock."""
        has_subgraphs, missing = SUBGRAPHS in self._more, JOURNAL
        if (self.path / LOCK).exists() or (self.path / JOURNAL).exists():
            if not has_subgraphs or self._had_subgraphs:
                return
            # All earlier runs were in region mode.
            missing, subgraphs = SUBGRAPH_CACHE, self.path / SUBGRAPHS
            files = [self.path / RAW, self.path / f"{RAW}.data"]
            files += [] if is_empty(subgraphs) else [subgraphs]
        else:
            found = (CANDIDATES, *self._more, *(self._layer_files() if has_subgraphs else ()))
            files = [*self._written(), *(self.path / name for name in found)]
            files += [self._copy_of(file, model) for file in external_files(model)]
        for file in files:
            if os.path.lexists(file) and real_path(file) not in self._read:
                raise OutputError(
                    f"{file} exists already, but no {missing} shows that a run wrote it.",
                    "Choose another --output_dir, or pass --force to replace it.",
                )

    @property
    def _had_subgraphs(self) -> bool:
        """Whether there was a run in subgraph mode, by the files that it writes first."""
        caches = (self.path / SUBGRAPH_CACHE, self.path / DAMAGED_CACHE)
        return any(file.exists() for file in caches) or holds_subgraphs(self.path / SUBGRAPHS)

    def _refuse_foreign_entries(self) -> None:
        """Make sure not to write through a link, or block on a pipe.

        Files that are written atomically replace a link; anything else in place of a file is
        refused before a long run, not after it.
        """
        for name in _FOLDERS:
            check_folder(self.path / name)
        is_kept = not self.begins_anew
        logs = sorted((self.path / LOGS).rglob("*"))
        added_to = [self.path / name for name in _ADDED_TO if is_kept]
        for file in (*added_to, *(each for each in logs if kind_at(each) != "a folder")):
            if kind := kind_at(file):
                raise _not_a_file(file, kind)
        for file in (self.path / name for name in _NAMES):
            if kind_at(file) == "a folder" and not self._is_restart:
                raise _not_a_file(file, "a folder")

    def _prepare(self, *, resume: bool) -> None:
        self._refuse_foreign_entries()
        if not self.begins_anew:
            refuse_newer_files({self.path / name: kind for name, kind in READ_AGAIN.items()})
        # Complete what a kill interrupted.
        if (self.path / ASIDE / _PARTIAL_RUN).exists():
            self._set_aside()
        if (self.path / ASIDE / _PARTIAL_RESULT).exists():
            self._move_aside(RESULT, _PARTIAL_RESULT)
        finish_handover(self.path)
        if (self.path / JOURNAL).exists() and not resume:
            raise UsageError(
                f"{self.path} holds a run already.",
                "Remove --resume never to resume it, pass --restart to set it aside, or "
                "choose another --output_dir.",
            )
        self._remove_leftovers()
        self._make(self.scratch)

    def begin(self) -> None:
        """Prepare the folder, now that the run is certain to start.

        Raises:
            OutputError: If an earlier run can't be moved aside.
        """
        if self._is_restart and (self.path / JOURNAL).exists():
            self._set_aside()
        elif self._is_forced:
            self._clear()
        for name in (CANDIDATES, LOGS, *self._more):
            self._make(self.path / name)

    def _make(self, folder: Path) -> None:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._made += reversed(missing)
        except OSError as error:
            raise OutputError(
                f"The folder {folder} can't be made: {error.strerror}.",
                "Choose another --output_dir.",
            ) from None

    def _written(self) -> set[Path]:
        """Every file that a run may write, except candidates and copies of weights."""
        return {real_path(self.path) / name for name in _NAMES}

    def _copy_of(self, weights: Path, model: Path) -> Path:
        return real_path(self.path) / weights.relative_to(real_path(model.absolute().parent))

    def _protect(self, model: Path, others: Sequence[Path]) -> None:
        """Refuse to overwrite files that are read, or one copy with another."""
        written = self._written()
        ours = (CANDIDATES, SUBGRAPHS, LOGS, _STAGING, _SCRATCH, COMMITTED)
        inside = [real_path(self.path / name) for name in ours]
        for source in (model, *others):
            itself = {real_path(source), real_path(source.absolute().parent) / source.name}
            for file in itself | external_files(source):
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

    def layer_file(self, model: Path, float_type: str) -> Path:
        """Return the file for the engine's layers of the float model."""
        return self.path / LAYER_FILE.format(model.stem, float_type)

    def build_log(self, model: Path, float_type: str) -> Path:
        """Return the file for the engine's log of that build."""
        return self.path / BUILD_LOG.format(model.stem, float_type)

    def _layer_files(self) -> list[str]:
        """Return the names of such files that exist."""
        return sorted(file.name for each in _LAYERS for file in self.path.glob(each))

    @property
    def replaces_a_run(self) -> bool:
        """Whether an earlier run will be removed when this one begins."""
        return self.begins_anew and (self.path / JOURNAL).exists()

    @property
    def begins_anew(self) -> bool:
        """Whether nothing is resumed."""
        return self._is_restart or self._is_forced

    @property
    def scratch(self) -> Path:
        """The folder for temporary files, so that a kill leaves nothing elsewhere."""
        return self.path / _SCRATCH

    @property
    def converted(self) -> Path:
        """The file for the model in another float type, until it is decided whether to tune it."""
        # Its weights file is named after it, and must have its final name.
        return self.scratch / _CONVERTED / BASELINE

    @property
    def staged(self) -> Path:
        """The folder for unfinished results."""
        return self.path / _STAGING

    def staging(self) -> Path:
        """Return that folder, emptied."""
        with writing(self.staged):
            remove(self.staged)
            self.staged.mkdir()
        return self.staged

    def clear_staging(self) -> None:
        """Remove unfinished results."""
        with contextlib.suppress(OSError):
            remove(self.staged)

    def hand_over(self, *, keep_old: bool) -> None:
        """Make the staged files the result of the run, all or none.

        Args:
            keep_old: Whether to keep a copy of the existing result.

        Raises:
            OutputError: If it can't be written.
        """
        if keep_old:
            self._move_aside(RESULT, _PARTIAL_RESULT)
        hand_over(self.path, self.staged)

    def copy_model(self, model: Path, target: Path) -> None:
        """Copy a model byte for byte; the files of its weights are copied to the folder.

        Args:
            model: The model.
            target: Path for the model itself.

        Raises:
            OutputError: If there is no disk space.
        """
        with writing(target):
            for file in sorted(external_files(model)):
                beside = self._copy_of(file, model)
                make_folder(beside.parent, real_path(self.path))
                if beside != file:
                    copy_file(file, beside, durable=True)
            copy_file(model, target, durable=True)

    def remove_region_models(self) -> None:
        """Remove the intermediate models of a result."""
        for file in (self.path / CANDIDATES).glob(REGION_MODELS.format("*", "*")):
            with writing(file):
                remove(file)

    def _clear(self) -> None:
        """Remove an earlier run."""
        with writing(self.path / JOURNAL):
            remove(self.path / CANDIDATES)
            remove_subgraphs(self.path / SUBGRAPHS)
            self._remove_plans()
            for file in (self.path / name for name in (*self._layer_files(), *_NAMES)):
                if real_path(file) not in self._read:
                    remove(file)

    def _remove_plans(self) -> None:
        """Remove what engines have built, but nothing else that may be in that folder."""
        for file in self.path.glob(f"{PLANS}/*.*.*"):
            if file.name.endswith(_BUILT):
                remove(file)
        _remove_if_empty([self.path / PLANS])

    def _set_aside(self) -> None:
        """Move an earlier run completely into its own folder."""
        folders = [LOGS, CANDIDATES, *([SUBGRAPHS] if self._had_subgraphs else [])]
        others = [*self._layer_files(), *self._weights_beside()]
        self._move_aside([*folders, *others, *_NAMES], _PARTIAL_RUN)

    def _move_aside(self, files: Sequence[str], while_moving: str) -> None:
        """Move files into a new folder, which gets its final name when it is complete."""
        partial = self.path / ASIDE / while_moving
        self._make(partial)
        number = 1
        while os.path.lexists(self.path / ASIDE / str(number)):
            number += 1
        with writing(self.path / ASIDE / str(number)):
            for name in files:
                file, kept = self.path / name, partial / name
                if os.path.lexists(file):
                    make_folder(kept.parent, partial)
                    if real_path(file) in self._read:  # the user's own weights stay where they are
                        copy_file(file, kept)
                    else:
                        os.replace(file, kept)
            os.rename(partial, self.path / ASIDE / str(number))

    def _weights_beside(self) -> list[str]:
        """Copies of the weights of the earlier run's model, as paths within the folder."""
        try:
            files = external_files(self.path / BASELINE)
        except (OSError, QdqtuneError):  # weights of an unreadable baseline don't matter
            return []
        here = real_path(self.path)
        return [str(file.relative_to(here)) for file in files if here in file.parents]

    def _remove_leftovers(self) -> None:
        """Remove files that a killed run had not finished writing."""
        ours = [file for name in (*_OURS, *_LAYERS) for file in self.path.glob(f".{name}.*.tmp")]
        folders = [self.path / name for name in (CANDIDATES, SUBGRAPHS, LOGS, PLANS)]
        parts = [
            file for name in (".*.tmp", ".*.onnx") for each in folders for file in each.glob(name)
        ]
        twins = (self.path / CANDIDATES).glob("twin-*")
        with writing(self.scratch):
            for each in (self.staged, self.scratch, *twins, *ours, *parts):
                remove(each)
            for folder in (self.path, *folders):
                remove_abandoned(folder)


def _not_a_file(file: Path, kind: str) -> OutputError:
    return OutputError(
        f"{file} is {kind}, where the run would write a file.",
        "Remove it, or choose another --output_dir.",
    )


def _remove_if_empty(folders: Sequence[Path]) -> None:
    """Remove empty folders, the most recently created first."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
