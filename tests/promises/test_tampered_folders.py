"""Damaged or tampered folders, through `verify`, `export`, `report` and a run that goes on.

Nothing wrong is called right, nothing is executed, nothing outside of the folder is touched, and
nothing hangs or ends in a traceback.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtune.cli.main import main
from qdqtune.workflows._export import list_candidates
from tests.conftest import model_from_text
from tests.promises import tampering
from tests.promises.tampering import EXTERNAL, MEASURED, REGION, SUBGRAPH, Tampering
from tests.tiers import tiered

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="makes pipes, and a timer ends what hangs"),
    pytest.mark.timeout(3600),
]

ALL = {each.name: each for each in tampering.all_tamperings()}
# Of one run only, because a run has to be made first.
SAMPLE = random.Random(28).sample(
    [name for name, each in ALL.items() if each.base == REGION and "swapped" not in name], 5
)
LIMIT_S = 180.0
# How much more may be claimed than the untouched run did, because of noise.
NOISE, NOISE_OF_MACHINES = 1.03, 1.5
LEAST_SQNR_DB = 15.0


@dataclass(frozen=True)
class Genuine:
    """A run that nobody has touched.

    Attributes:
        model: What was tuned.
        folder: What the run left.
        command: What was asked for, without the folder.
        summary: What it says of itself.
        outputs: Of the result, on some input.
        candidates: The same of each candidate, by its id.
        of_float: The same of the model itself.
        noise: By how much a claim may be higher than this run's.
    """

    model: Path
    folder: Path
    command: tuple[str, ...]
    summary: dict[str, Any]
    outputs: np.ndarray
    candidates: dict[str, np.ndarray]
    of_float: np.ndarray
    noise: float


def small_model(seed: int) -> onnx.ModelProto:
    """Two Convs, both of which pay on the simulated engine."""
    rng = np.random.default_rng(seed)
    text = """g (float[1,64,16,16] x) => (float[1,64,8,8] y) {
        a = Conv<pads=[1,1,1,1]>(x, w0)
        b = Relu(a)
        y = Conv<pads=[1,1,1,1], strides=[2,2]>(b, w1)
    }"""
    w0, w1 = (rng.normal(size=(64, 64, 3, 3)).astype(np.float32) / 17 for _ in range(2))
    return model_from_text(text, w0=w0, w1=w1)


def outputs_of(path: Path) -> np.ndarray:
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 64, 16, 16)).astype(np.float32)}
    result: np.ndarray = onnxruntime.InferenceSession(path).run(None, feeds)[0]
    return result


def tuned(base: str, folder: Path) -> Genuine:
    folder.mkdir()
    model, run = folder / "model.onnx", folder / "run"
    proto = small_model(seed=len(base))
    if base == EXTERNAL:
        onnx.save(proto, model, save_as_external_data=True, location="model.bin", size_threshold=0)
    else:
        onnx.save(proto, model)
    mode = ("--workflow", "subgraph") if base == SUBGRAPH else ()
    engine = ("--engine", "simulated", "--engine_option", "seed=7")
    if base == MEASURED:
        engine = ("--engine", "onnxruntime", "--threads", "1")
    command = ("tune", str(model), "--preset", "quick", "-q", *engine, *mode)
    code, text = answer(*command, "-o", str(run))
    assert code == 0, text
    summary = json.loads((run / "summary.json").read_text())
    if summary["kept_float"] and base == MEASURED:
        pytest.skip("nothing is gained on this machine")
    assert not summary["kept_float"]
    candidates = {}
    for one in list_candidates(run):
        code, text = answer("export", str(run), "--candidate", one.id, "-o", str(folder / "c.onnx"))
        assert code == 0, text
        candidates[one.id] = outputs_of(folder / "c.onnx")
        for file in folder.glob("c.onnx*"):
            file.unlink()
    final = outputs_of(run / "optimized_final.onnx")
    noise = NOISE_OF_MACHINES if base == MEASURED else NOISE
    return Genuine(model, run, command, summary, final, candidates, outputs_of(model), noise)


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Genuine]]:
    """The runs, made when they are first needed."""
    folder = tmp_path_factory.mktemp("genuine")

    class Runs(dict[str, Genuine]):
        def __missing__(self, base: str) -> Genuine:
            self[base] = tuned(base, folder / base)
            return self[base]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QDQTUNE_CACHE", str(folder / "cache"))
        yield Runs()


class Hangs(BaseException):
    """A command did not come to an end."""


def _ring(*_: object) -> None:
    raise Hangs


def answer(*line: str) -> tuple[int, str]:
    """The exit code of a command and all that it printed; 99 for what no command may end in."""
    out = io.StringIO()
    before = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(line)
    except (Exception, Hangs):
        return 99, out.getvalue() + traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return code, out.getvalue()


def seen(*folders: Path) -> dict[str, object]:
    """Everything in some folders that somebody could have changed."""
    found: dict[str, object] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            facts = path.lstat()
            content: object = os.readlink(path) if path.is_symlink() else None
            if path.is_file() and not path.is_symlink():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path)] = (facts.st_mode, content)
    return found


# What `verify` allows between the error that is claimed and the one that it measures.
_ALLOWED_DB = 1.0


def sqnr_db(outputs: np.ndarray, of_float: np.ndarray) -> float:
    error = float(np.sum((outputs - of_float) ** 2))
    return 10.0 * math.log10(float(np.sum(of_float**2)) / error) if error else math.inf


def wrong_verify(run: Path, base: Genuine) -> Iterator[str]:
    """What is wrong with an answer that all is well.

    Nothing is signed: another model under a rewritten hash passes if every claim is true of it.
    """
    outputs = outputs_of(run / "optimized_final.onnx")
    if sqnr_db(outputs, base.of_float) < sqnr_db(base.outputs, base.of_float) - _ALLOWED_DB:
        yield "the model is less accurate than is claimed"
    try:
        yield from wrong_claim(json.loads((run / "summary.json").read_text()), base)
    except (OSError, ValueError, TypeError, LookupError) as error:
        yield f"there is no claim: {error!r}"


def wrong_claim(claim: dict[str, Any], base: Genuine) -> Iterator[str]:
    """What of a claim is more than what is true."""
    true = base.summary
    low, high = claim["speedup_interval"]
    if claim["kept_float"]:
        yield "the model is said to be float"
    if not low <= claim["speedup"] <= (math.inf if high is None else high):
        yield "the claim contradicts itself"
    if not claim["speedup"] <= base.noise * true["speedup"]:
        yield "more is claimed than is true"
    if not claim["output_sqnr_db"] <= true["output_sqnr_db"] + 0.5:
        yield "a smaller error is claimed than is true"


def wrong_result(run: Path, base: Genuine) -> Iterator[str]:
    """What is wrong with the result of a run that went on."""
    outputs = outputs_of(run / "optimized_final.onnx")
    summary = json.loads((run / "summary.json").read_text())
    if summary["kept_float"]:
        if not np.array_equal(outputs, base.of_float):
            yield "it is said to be float, and is not"
        return
    if not summary["speedup"] <= base.noise * base.summary["speedup"]:
        yield "more is claimed than is true"
    found = sqnr_db(outputs, base.of_float)
    if not found >= LEAST_SQNR_DB:
        yield f"its error is too large: {found:.1f} dB"
    if not abs(found - summary["output_sqnr_db"]) < 6.0:
        yield f"its error is not what is claimed: {found:.1f} dB"


def _other(each: Tampering) -> str:
    return tampering.BASES[tampering.BASES.index(each.base) - 1]


def faults_of(each: Tampering, runs: dict[str, Genuine], folder: Path) -> Iterator[str]:
    """Everything that goes wrong with a folder that was tampered with in one way."""
    base, outside, run = runs[each.base], folder / "outside", folder / "copy" / "run"
    other = runs[_other(each)] if each.name.startswith("swapped") else base
    outside.mkdir()
    (outside / tampering.VICTIM).write_text("mine")
    canary = outside / tampering.CANARY
    canary.write_text('#!/bin/sh\ntouch "$(dirname "$0")/executed"\n')
    canary.chmod(0o755)
    shutil.copytree(base.folder, run)
    each.apply(run, other.folder, outside)
    watched = (outside, base.model.parent, other.model.parent)
    before = seen(*watched)
    exported = folder / "exported"
    exported.mkdir()
    last = sorted(base.candidates)[-1]
    export = ("export", str(run), "--candidate")
    commands = {
        "verify": ("verify", str(run / "optimized_final.onnx")),
        "export": (*export, last, "-o", str(exported / "last.onnx")),
        "export of another": (*export, "c0001", "-o", str(exported / "other.onnx")),
        "report": ("report", str(run)),
        "resume": (*base.command, "-o", str(run)),
    }
    for command, line in commands.items():
        code, text = answer(*line)
        if code not in (0, 1, 2) or "Traceback" in text:
            yield f"{command} ended with {code}: {text[-1500:]}"
        elif code and command != "verify" and "error: " not in text:
            yield f"{command} does not say what is wrong: {text[-1500:]}"
        if now := {k: v for k, v in seen(*watched).items() if before.get(k) != v}:
            yield f"{command} made or changed {sorted(now)}"
        if gone := before.keys() - seen(*watched).keys():
            yield f"{command} removed {sorted(gone)}"
        if code == 0:
            yield from (f"{command}: {what}" for what in _wrong(command, line, run, base))


def _wrong(command: str, line: tuple[str, ...], run: Path, base: Genuine) -> Iterator[str]:
    if command == "verify":
        yield from wrong_verify(run, base)
    elif command == "report":
        if (run / "report.html").is_symlink() or "<script src" in (run / "report.html").read_text():
            yield "the page is elsewhere, or obeys what the records say"
    elif command == "resume":
        yield from wrong_result(run, base)
    elif not np.array_equal(outputs_of(Path(line[-1])), base.candidates[line[3]]):
        yield "what was exported computes something else"


def test_there_are_many_and_all_differ() -> None:
    assert len(ALL) >= 200


def test_an_untouched_folder_is_right(genuine: dict[str, Genuine], tmp_path: Path) -> None:
    nothing = Tampering("nothing", tampering.REGION, lambda at: None)
    assert not list(faults_of(nothing, genuine, tmp_path))


@pytest.mark.parametrize("name", [*SAMPLE, *tiered(ALL.keys() - set(SAMPLE), slow=100)])
def test_a_tampered_folder_is_seen_through(
    genuine: dict[str, Genuine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    assert not list(faults_of(ALL[name], genuine, tmp_path))
    assert not list((tmp_path / "cwd").iterdir())
