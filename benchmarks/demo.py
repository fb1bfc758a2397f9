"""`make demo`: two stock models, float against ONNX Runtime's `quantize_static` against tuned.

Each model is tuned by the command that is printed. `quantize_static` gets the same calibration
samples and the folded model, which is what its own preprocessing is for; it quantizes per channel,
in QDQ format, with u8 and with s8 activations. Then all files take turns in one run, so that the
figures of a table are on one scale. Whoever wins is named, float and `quantize_static` included.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from benchmarks.blankets import BLANKETS, write_blanket, write_folded
from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.cli.main import main as qdqtune
from qdqtune.config import DEFAULT_MIN_SQNR_DB
from qdqtune.engines._timing import compare_blocks
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import BenchmarkEntry, BenchRecord, Verdict
from qdqtune.report._bench import bench_text
from qdqtune.workflows._bench import bench

ENGINE = "onnxruntime"
MODELS = "resnet18,efficientnet"
FLOAT, TUNED = "float", "tuned"
_TYPES = ("u8/s8", "s8/s8")
_SAMPLES = 8  # as many as `tune` calibrates on without data


def compare(name: str, folder: Path, budget_s: float) -> str:
    """Tune a zoo model and quantize it by `quantize_static`: who wins, in words."""
    path = folder / f"{name}.onnx"
    onnx.save(zoo.build(name), path)
    run = folder / name
    command = [
        "tune", str(path), "--engine", ENGINE, "--threads", "1", "--preset", "quick",
        "--budget", f"{budget_s:g}", "-o", str(run), "--force",
    ]  # fmt: skip
    print(f"$ qdqtune {shlex.join(command)}", flush=True)
    if qdqtune(command) != 0:
        sys.exit(f"{name} could not be tuned")
    print(f"\nQuantizing {path} by quantize_static ...", flush=True)
    rivals = write_rivals(path, folder)
    files = {FLOAT: path, **rivals, TUNED: run / "optimized_final.onnx"}
    print(f"Timing {len(files)} files in turns ...\n", flush=True)
    record = named(
        bench(list(files.values()), engine=ENGINE, threads=1, inputs=InputRequest(seed=1)), files
    )
    return f"{bench_text(record)}\n\n{name}: {verdict(record)}"


def write_rivals(path: Path, folder: Path) -> dict[str, Path]:
    """The model by `quantize_static`, in both types that its documentation advises."""
    index = GraphIndex(load_model(path))
    folded = write_folded(path, folder / f"{path.stem}_folded.onnx", force=True)
    written = {}
    for types in _TYPES:
        target = folder / f"{path.stem}_{types.replace('/', '')}.onnx"
        samples = random_inputs(index, _SAMPLES)
        written[f"quantize_static {types}"] = write_blanket(
            folded, target, BLANKETS[types], samples
        )
    return written


def named(record: BenchRecord, files: Mapping[str, Path]) -> BenchRecord:
    """The record with names that fit into a table."""
    entries = zip(record.entries, files, strict=True)
    return replace(record, entries=tuple(replace(one, path=name) for one, name in entries))


def verdict(record: BenchRecord) -> str:
    """Who wins: the tuned model against the best of the others, from the same run."""
    timed = [one for one in record.entries if one.measurement.ok]
    *others, tuned = timed
    if tuned.path != TUNED or others[0].path != FLOAT:
        return "it could not be compared, see above."
    best = max(others, key=_speedup)
    found = compare_blocks(best.measurement.blocks_ms, tuned.measurement.blocks_ms)
    interval = f"{found.ratio:.3f}x, {found.low:.3f} to {found.high:.3f}"
    if found.verdict is Verdict.FASTER:
        return f"tuned wins, against {best.path} {interval}.{_caveat(tuned)}"
    if found.verdict is Verdict.SLOWER:
        return f"{best.path} wins, tuned against it {interval}.{_caveat(best)}"
    return (
        f"tuned and {best.path} are equally fast, as far as can be seen: {interval}."
        f"{_caveat(best)}{_caveat(tuned)}"
    )


def _speedup(one: BenchmarkEntry) -> float:
    return one.against_first.ratio if one.against_first is not None else 1.0


def _caveat(one: BenchmarkEntry) -> str:
    """What has to be known about a fast model: that it is not accurate."""
    worst = min(one.sqnr_db.values(), default=DEFAULT_MIN_SQNR_DB)
    if worst >= DEFAULT_MIN_SQNR_DB:
        return ""
    return f" But the outputs of {one.path} are only {worst:.1f} dB from float."


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the models, one after the other, and say who won at the end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--models", default=MODELS, help="zoo models, by comma")
    parser.add_argument("--budget_s", type=float, default=45.0, help="seconds to tune each")
    parser.add_argument("--output_dir", type=Path, default=Path("work/demo"))
    options = parser.parse_args(arguments)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    logging.getLogger().setLevel(logging.ERROR)  # quantize_static advises what was done already
    for name in options.models.split(","):
        print(compare(name, options.output_dir, options.budget_s), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
