"""Kills a tune before any change of its folder, and runs the same command again.

``python -m tests.promises.killing FOLDER SITUATION...`` tries every moment, or with ``--states``
some of them. A tune is watched, and what its folder holds before each change is kept: just that is
what a kill at this moment leaves. Moments that leave the same count once. With ``--kills`` some
runs are killed for real. Engines answer in the process that tunes, so that a run takes parts of a
second; every run has a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qdqtune.calibration import _ranges as range_cache
from qdqtune.engines import _registry as registry
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.in_process import use_in_process_engines

_CHANGES = (
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_RESULT = ("placement.json", "ranges.json", "optimized_final.onnx", "optimized_final.onnx.data")
_TWICE = 0.1  # of so many states, the second run is killed as well
_SETTINGS: dict[str, Any] = {
    "engine": "simulated",
    "engine_options": {"seed": "7"},
    "preset": "quick",
    "max_benchmarks": 6,
}
_LESS = {"node_filter": ["n0", "n2"]}


@dataclass(frozen=True)
class Situation:
    """A folder and a command.

    Attributes:
        options: Of the command that is killed.
        before: Of the run that was in the folder before, if there was one.
        external: Whether the model's weights lie beside it.
        ships: Whether the command finds something better than the float model.
    """

    options: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] | None = None
    external: bool = False
    ships: bool = True


SITUATIONS = {
    "fresh": Situation(),
    "restart": Situation({"restart": True}, {}),
    "force": Situation({"force": True}, {}),
    "resume": Situation({}, {"max_benchmarks": 2}),
    "subgraph": Situation({"workflow": "subgraph"}),
    "hand_over_better": Situation({}, _LESS, external=True),
    "hand_over_other": Situation(_LESS, {}, external=True, ships=False),
}


@dataclass
class Report:
    """What came of it.

    Attributes:
        changes: How many changes the run makes.
        states: How many different states they leave.
        tried: How many of these were tried.
        kills: How many runs were killed for real.
        recovered: How many states and killed runs the same command led to the same result.
        wrong: What went wrong otherwise.
    """

    changes: int = 0
    states: int = 0
    tried: int = 0
    kills: int = 0
    recovered: int = 0
    wrong: list[str] = field(default_factory=list)


class Watch:
    """Sees every change of a folder before it is made.

    Args:
        folder: The folder.
        before: Called with the number of the change.
    """

    def __init__(self, folder: Path, before: Callable[[int], None]) -> None:
        self._folder = os.path.realpath(folder)
        self._before = before
        self._is_looking = False
        self.changes = 0
        sys.addaudithook(self._hear)
        append = Journal._append

        def appended(journal: Journal, *arguments: Any, **options: Any) -> None:
            self.change()
            append(journal, *arguments, **options)

        Journal._append = appended  # type: ignore[method-assign]

    def change(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._before(self.changes)
            self._is_looking = False
            self.changes += 1

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if (flags or 0) & _WRITES:
                self._heed(path, -1)
        elif event in _CHANGES:
            descriptor = arguments[-1] if event in ("os.remove", "os.mkdir", "os.rmdir") else -1
            self._heed(arguments[0], descriptor)

    def _heed(self, path: Any, descriptor: int) -> None:
        if isinstance(path, int):  # it was opened before
            path = os.readlink(f"/proc/self/fd/{path}")
        elif descriptor >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), os.fsdecode(path))
        path = os.path.abspath(os.fsdecode(path))
        if path == self._folder or path.startswith(self._folder + os.sep):
            self.change()


def in_child(work: Callable[[], None]) -> int:
    """Do something in a process of its own; returns how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            use_in_process_engines("simulated", registry.REFERENCE)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digest(folder: Path) -> str:
    """Of names and contents, but for who has the lock, and what is thrown away unread."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if ".scratch" in path.relative_to(folder).parts[:-1]:
            continue
        found.update(repr((str(path.relative_to(folder)), path.is_dir())).encode())
        if path.is_file() and path.name != ".lock":
            found.update(path.read_bytes())
    return found.hexdigest()


def names(folder: Path) -> set[str]:
    """Every file, but for what is kept of earlier runs."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return {str(file) for file in files if file.parts[0] != "earlier"}


def result_of(folder: Path) -> dict[str, Any]:
    """What a run came to."""
    summary = json.loads((folder / "summary.json").read_text())
    files = {name: folder / name for name in _RESULT if (folder / name).exists()}
    lines = [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]
    measured = Counter(
        f"{line['reference']} {line['candidate']} {line['effort']}"
        for line in lines
        if line["kind"] == "measurement"
    )
    told = {name: summary[name] for name in ("speedup", "kept_float", "final_sha256", "qdq_pairs")}
    return {
        **told,
        **{name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()},
        "measured": dict(measured),
    }


class Killing:
    """One situation, tried at its moments.

    Args:
        folder: An empty folder.
        name: The situation's name.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._situation = SITUATIONS[name]
        self._model = folder / "given/model.onnx"
        self._model.parent.mkdir(parents=True)
        self._start, self._whole = folder / "start", folder / "whole"
        self._write_model()
        self._start.mkdir()
        if self._situation.before is not None:
            self._ends_well(self._start, self._situation.before)
        self.report = Report()

    def _write_model(self) -> None:
        rng = np.random.default_rng(0)
        text = """g (float[1,32,32,32] x) => (float[1,32,32,32] y) {
            a = Conv<pads=[1,1,1,1]>(x, w1)
            b = Relu(a)
            c = Conv<pads=[1,1,1,1]>(b, w2)
            d = Add(c, b)
            e = Sigmoid(d)
            y = Conv<pads=[1,1,1,1]>(e, w3)
        }"""
        shape = (32, 32, 3, 3)
        weights = {f"w{n}": rng.normal(size=shape).astype(np.float32) / 17 for n in (1, 2, 3)}
        onnx.save(
            model_from_text(text, **weights), self._model,
            save_as_external_data=self._situation.external, location="model.bin",
        )  # fmt: skip

    def _tune(self, folder: Path, options: dict[str, Any]) -> None:
        tune(self._model, output_dir=folder, **{**_SETTINGS, **options})

    def _ends_well(self, folder: Path, options: dict[str, Any]) -> bool:
        return in_child(lambda: self._tune(folder, options)) == 0

    def collect_statistics(self, *, is_kept: bool) -> list[Path]:
        """Run undisturbed.

        Args:
            is_kept: Whether to keep what the folder holds before each change.

        Returns:
            Copies of the folder, of each state one.
        """
        shutil.copytree(self._start, self._whole)
        states, known = self._folder / "states", self._folder / "known"
        states.mkdir()

        def keep(number: int) -> None:
            found = digest(self._whole) if is_kept else ""
            if is_kept and not (known / found).exists():
                (known / found).mkdir(parents=True)
                shutil.copytree(self._whole, states / f"{number:04d}", symlinks=True)

        def run() -> None:
            collect_statistics = Watch(self._whole, keep)
            self._tune(self._whole, self._situation.options)
            (self._folder / "changes").write_text(str(collect_statistics.changes))

        if in_child(run) != 0:
            raise RuntimeError("the undisturbed run fails")
        if result_of(self._whole)["kept_float"] == self._situation.ships:
            raise RuntimeError("the undisturbed run does not end as expected")
        self.report.changes = int((self._folder / "changes").read_text())
        if list(self._lost(self._whole)):
            raise RuntimeError("the undisturbed run loses what was proven")
        found = sorted(states.iterdir())
        self.report.states = len(found)
        return found

    def recover(self, state: Path, *, twice: random.Random | None = None) -> None:
        """Run the same command on what a kill has left, and look at what comes of it.

        Args:
            state: The folder; it is changed.
            twice: Where to kill the second run as well, before it is run once more.
        """
        if twice is not None:
            self.kill(state, twice.randrange(self.report.changes))
        wrong = list(self._faults(state))
        self.report.wrong += [f"{state.name}: {each}" for each in wrong]
        self.report.recovered += not wrong

    def _faults(self, state: Path) -> Iterator[str]:
        if not self._ends_well(state, self._situation.options):
            yield "the same command fails"
            return
        expected, found = result_of(self._whole), result_of(state)
        if found != expected:
            yield f"another result: {[key for key in expected if found.get(key) != expected[key]]}"
        if names(state) != names(self._whole):
            yield f"other files: {sorted(names(state) ^ names(self._whole))}"
        yield from self._lost(state)
        restart = {**self._situation.options, "restart": True, "force": False, "max_benchmarks": 1}
        if not self._ends_well(state, restart):
            yield "--restart fails afterwards"

    def _lost(self, state: Path) -> Iterator[str]:
        """What had been proven before and is nowhere any more."""
        if self._situation.before is None or self._situation.options.get("force"):
            return
        final = "optimized_final.onnx"
        proven = (self._start / final).read_bytes()
        kept = [file.read_bytes() for file in (state / "earlier").glob(f"*/{final}")]
        is_proven = not result_of(self._start)["kept_float"]
        if is_proven and proven not in (*kept, (state / final).read_bytes()):
            yield "the result from before is lost"
        if self._situation.options.get("restart"):
            for file in (file for file in self._start.rglob("*") if file.is_file()):
                moved = state / "earlier/1" / file.relative_to(self._start)
                if file.name != ".lock" and moved.read_bytes() != file.read_bytes():
                    yield f"{moved} is not what it was"

    def kill(self, folder: Path, number: int) -> bool:
        """Kill a run in a folder before a change of it; returns whether it came that far."""

        def die(reached: int) -> None:
            if reached == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def run() -> None:
            Watch(folder, die)
            self._tune(folder, self._situation.options)

        is_killed = in_child(run) == -signal.SIGKILL
        self.report.kills += is_killed
        return is_killed


def try_situation(
    folder: Path, name: str, kills: int | None, rng: random.Random, most: int | None = None
) -> Report:
    """Try what kills do in a situation.

    Args:
        folder: There is none yet.
        name: The situation's name.
        kills: How many runs are killed; None tries every state that a kill can leave.
        rng: Chooses moments.
        most: How many of the states are tried; None tries all.
    """
    killing = Killing(folder, name)
    states = killing.collect_statistics(is_kept=kills is None)
    for state in states if most is None else rng.sample(states, min(most, len(states))):
        killing.report.tried += 1
        killing.recover(state, twice=rng if rng.random() < _TWICE else None)
        shutil.rmtree(state)
    for number in rng.sample(range(killing.report.changes), kills or 0):
        killed = folder / f"kill_{number}"
        shutil.copytree(folder / "start", killed)
        if not killing.kill(killed, number):
            killing.report.wrong.append(f"nothing was killed before change {number}")
        killing.recover(killed)
    return killing.report


def main() -> None:
    """Prints a report in JSON."""
    parser = argparse.ArgumentParser(prog="tests.promises.killing")
    parser.add_argument("folder", type=Path)
    parser.add_argument("situations", choices=SITUATIONS, nargs="+")
    parser.add_argument("--kills", type=int, help="kill so many runs, instead of trying all states")
    parser.add_argument("--states", type=int, help="try so many states, instead of all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Ranges that are known make a run shorter: a moment that was chosen must come in every run.
    os.environ[range_cache.FOLDER] = "" if options.kills else str(options.folder / "cache")
    rng = random.Random(options.seed)
    reports = {
        name: asdict(try_situation(options.folder / name, name, options.kills, rng, options.states))
        for name in options.situations
    }
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main()
