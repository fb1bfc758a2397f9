"""Runs mutants through every command, each in a forked process with limits.

`python -m tests.fuzz.lane --first 0 --count 100` prints one JSON object per mutant: what was done,
what the commands answered, and what was wrong about that. This process has no threads, and it has
imported everything that a mutant needs, so that a fork is safe and costs nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import signal
import struct
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnxscript.version_converter  # noqa: F401  imported before the fork

import qdqtune.workflows._bench
import qdqtune.workflows._insert  # noqa: F401
from qdqtune.calibration import _ranges as range_cache
from qdqtune.cli.main import get_parser, main
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._opset import raise_opset
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._errors import QdqtuneError
from qdqtune.records._printable import message
from tests.fuzz.mutants import Mutant, make_mutant

MEMORY_BYTES = 4 << 30
FILE_BYTES = 1 << 30
COMMAND_S = 60

_IN_ACCESS_OR_OPEN = 0x1 | 0x20
_IN_NONBLOCK = 0o4000
_EVENT = struct.Struct("iIII")


def try_mutant(
    seed: int, only: Collection[str] = (), keep: Path | None = None
) -> dict[str, object]:
    """Make one mutant, run the commands on it, and say what was wrong.

    Args:
        seed: Its number.
        only: Commands to run; none is all.
        keep: Where to leave the model files with which something was wrong.
    """
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        mutant = make_mutant(seed, folder)
        with _watch(mutant.secret) as opened:
            answers, problems = _run_forked(mutant, seed, only)
            problems += ["the file outside was opened"] * opened()
        problems += _look_around(mutant, answers)
        if problems and keep is not None:
            shutil.copy(mutant.path, keep / f"{seed}.onnx")
        return {"seed": seed, "history": mutant.history, "answers": answers, "problems": problems}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def commands(mutant: Mutant, seed: int) -> dict[str, list[str]]:
    """The command lines that a mutant goes through, by name."""
    model, home = str(mutant.path), mutant.path.parent
    dialect = sorted(DIALECTS)[seed % len(DIALECTS)]
    quantized = str(home / "quantized.onnx")
    lines = {
        "read": ["read", model, str(home / "read.onnx")],
        "insert": ["insert", model, "--ops", ",".join(mutant.ops), "--dialect", dialect,
                   "-o", quantized],
        "strip": ["strip", model, "-o", str(home / "stripped.onnx")],
        "back": ["strip", quantized, "-o", str(home / "back.onnx")],
        "bench": ["bench", model, "--runs", "2", "--threads", "1", "--engine", "onnxruntime"],
        "show": ["shapes", model],
        "shapes": ["shapes", model, "--batch_size", "2", "-o", str(home / "shaped.onnx")],
        "convert": ["convert", model, "--to", "fp16", "-o", str(home / "converted.onnx")],
    }  # fmt: skip
    known = _known_commands()
    return {name: line for name, line in lines.items() if line[0] in known}


def _read(source: str, target: str) -> int:
    """What every command begins with, without any engine."""
    try:
        model = load_model(source)
        fold(model)
        if raise_opset(model, 13):
            fold(model)
        fingerprint(model)
        save_model(model, target)
    except QdqtuneError as error:
        sys.stderr.write(message(f"error: {error.what}") + "\n")
        return 1
    if len(model.graph):  # else everything was constant
        load_model(target)
    return 0


def _known_commands() -> set[str]:
    actions = get_parser()._actions
    parsers = [action.choices for action in actions if isinstance(action.choices, dict)]
    return {"read", *(name for choices in parsers for name in choices)}


def _run_forked(
    mutant: Mutant, seed: int, only: Collection[str]
) -> tuple[dict[str, int], list[str]]:
    folder = mutant.secret.parent
    (folder / "tmp").mkdir()
    answers: dict[str, int] = {}
    problems: list[str] = []
    for name, line in commands(mutant, seed).items():
        if (only and name not in only) or (name == "back" and answers.get("insert") != 0):
            continue
        out, err, strayed = (folder / f"{name}.{kind}" for kind in ("out", "err", "strayed"))
        child = os.fork()
        if child == 0:
            _be_the_child(line, out, err, strayed, mutant)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        answers[name] = code
        texts = [file.read_text(errors="replace") for file in (out, err)]
        problems += [f"{name}: {problem}" for problem in _problems(name, code, *texts)]
        problems += [f"{name}: opened {path}" for path in strayed.read_text().splitlines()]
        if mutant.refused and code == 0:
            problems.append(f"{name}: accepted a model that points out of its folder")
    return answers, problems


def _be_the_child(line: list[str], out: Path, err: Path, strayed: Path, mutant: Mutant) -> None:
    """Run one command line and end; never returns."""
    code = 99
    try:
        os.environ["TMPDIR"] = tempfile.tempdir = str(mutant.secret.parent / "tmp")
        os.environ[range_cache.FOLDER] = str(mutant.secret.parent / "cache")
        for stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")
        # What the parent process opens for itself goes through Python; the file outside is
        # watched by the system, for everybody.
        log = os.open(strayed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.addaudithook(_reporter(log, mutant.secret.parent))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(COMMAND_S)
        code = _read(*line[1:]) if line[0] == "read" else main(line)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reporter(log: int, folder: Path) -> Callable[[str, tuple[object, ...]], None]:
    allowed = [folder / name for name in ("model", "tmp", "cache")]
    allowed += [Path(sys.prefix), Path(sys.base_prefix)]
    allowed += [Path(__file__).parents[2], Path("/proc"), Path("/sys"), Path(os.devnull)]
    allowed += [Path(path) for path in sysconfig.get_paths().values()]
    roots = [os.path.realpath(path) for path in allowed]

    def report(event: str, arguments: tuple[object, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.symlink"):
            return
        path = arguments[0]
        if not isinstance(path, (str, bytes)) or not path:
            return
        real = os.path.realpath(os.fsdecode(path))
        if not any(real == root or real.startswith(root + os.sep) for root in roots):
            os.write(log, f"{event} {real!a}\n".encode())

    return report


def _problems(name: str, code: int, out: str, err: str) -> Iterator[str]:
    if code < 0:
        yield f"ended by {signal.Signals(-code).name}: {err[-300:]}"
    elif code not in (0, 1, 2):
        yield f"exit code {code}: {err[-1500:]}"
    elif "Traceback" in err:
        yield f"a traceback: {err[-1500:]}"
    elif code and "error:" not in err and not (name == "bench" and "failed" in out):
        yield f"exit code {code} without a word: {err[-300:]}"
    if any(not (c.isprintable() or c in "\n\ufffd") for c in out + err):
        yield f"control characters on the terminal: {(out + err)[-300:]!a}"
    if max(map(len, (out + err).splitlines()), default=0) > 12_000:
        yield "a line of more than 12,000 characters"


def _look_around(mutant: Mutant, answers: dict[str, int]) -> Iterator[str]:
    folder, home = mutant.secret.parent, mutant.path.parent
    for path in (folder / "tmp").iterdir():
        if path.name != ".ses":  # ONNX Runtime's own
            yield f"left {path.name} behind"
    for path in folder.iterdir():
        if path.name not in ("model", "tmp", "cache", "secret.bin") and path.suffix not in (
            ".out", ".err", ".strayed",
        ):  # fmt: skip
            yield f"wrote {path.name} outside"
    results = {
        "read": "read", "insert": "quantized", "strip": "stripped", "back": "back",
        "shapes": "shaped", "convert": "converted",
    }  # fmt: skip
    for name, stem in results.items():
        if name in answers and (home / f"{stem}.onnx").exists() != (answers[name] == 0):
            yield f"{name}: exit code {answers[name]}, and the result does not fit"
    for path in home.iterdir():
        if path.name.startswith("."):
            yield f"left {path.name} behind"


@contextmanager
def _watch(path: Path) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether anybody has opened or read the file since."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(_IN_NONBLOCK)
    libc.inotify_add_watch(handle, os.fsencode(path), _IN_ACCESS_OR_OPEN)

    def opened() -> bool:
        try:
            return len(os.read(handle, _EVENT.size * 16)) > 0
        except BlockingIOError:
            return False

    try:
        yield opened
    finally:
        os.close(handle)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--step", type=int, default=1, help="for several lanes side by side")
    parser.add_argument("--only", default="", help="commands to run, by comma")
    parser.add_argument("--keep", type=Path, help="where to leave mutants that failed")
    options = parser.parse_args()
    for position in range(options.count):
        seed = options.first + position * options.step
        record = try_mutant(seed, list(filter(None, options.only.split(","))), options.keep)
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
