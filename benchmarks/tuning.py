"""`qdqtune tune` against the float model and against the best of `quantize_static`'s blankets.

Blankets are what `quantize_static` does by default in QDQ format, per channel: s8/s8, u8/s8 with
8-bit and with 7-bit weights, u8/u8. The best of them, by latency, is what a tuned model is compared
with, in one more interleaved run. It gets the folded model, which is what its own preprocessing is
for: with a BatchNormalization behind every Conv it would be an easy match. Ratios are decided by
the lower end of a 90 % interval. What was tuned for one engine is run on the others that are here,
too: the last table shows what a model is worth where it wasn't tuned for.

    make bench ARGS="--models resnet18,vit --preset quick"
    make bench ARGS="--models resnet18,vit --preset quick --engine openvino"
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.blankets import (
    CONFIDENCE,
    compared,
    model_file,
    speeds_over_float,
    split_models,
    write_blankets,
    write_folded,
)
from qdqtune import zoo
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._timing import compare_blocks
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.records._inputs import InputRequest
from qdqtune.report._formatting import text_table
from qdqtune.workflows.tuning._tune import tune

KIND = "tuning"
COLUMNS = {
    "engine": "engine", "model": "model",
    "tuned over float": "over_float", "90 % from": "over_float_low",
    "best blanket": "blanket", "over float": "blanket_over_float",
    "tuned over blanket": "over_blanket", "from": "over_blanket_low",
    "benchmarks": "benchmarks", "seconds": "seconds", "own": "own_s", "SQNR": "sqnr_db",
    "kept float": "kept_float", "commit": "commit",
}  # fmt: skip
_SAMPLES = 4


def measure(name: str, preset: str, budget_s: float, engine: str) -> dict[str, Any]:
    """One record for a zoo model or a model file on an engine."""
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        path = model_file(name, space)
        result = tune(path, engine=engine, threads=1, preset=preset, output_dir=space / "run")
        index = GraphIndex(load_model(path))
        folded = write_folded(path, space / "folded.onnx")
        blankets = write_blankets(folded, lambda: random_inputs(index, _SAMPLES), space)
        feeds = next(random_inputs(index, 1, InputRequest(seed=1)))
        with Worker(engine, SessionOptions(threads=1)) as worker:
            speeds = speeds_over_float(worker, path, blankets, feeds, budget_s / 2)
            best = max(speeds, key=lambda label: speeds[label].ratio, default="")
            over_float = compared(worker, path, result.model, feeds, budget_s)
            over_blanket = (
                compared(worker, blankets[best], result.model, feeds, budget_s) if best else None
            )
        elsewhere = {
            other: _elsewhere(other, path, result.model, feeds, budget_s)
            for other, entry in registry.ENGINES.items()
            if other != engine and entry.measures and registry.available(other).usable
        }
    summary = result.summary
    return {
        "kind": KIND,
        "model": path.stem if Path(name).exists() else name,
        "preset": preset,
        "engine": engine,
        "isa": summary.engine.isa,
        "elsewhere": elsewhere,
        "over_float": over_float.ratio,
        "over_float_low": over_float.low,
        "blanket": best,
        "blanket_over_float": speeds[best].ratio if best else None,
        "blankets": {label: found.ratio for label, found in speeds.items()},
        "over_blanket": over_blanket.ratio if over_blanket else None,
        "over_blanket_low": over_blanket.low if over_blanket else None,
        "benchmarks": summary.benchmarks,
        "seconds": summary.seconds.total,
        "own_s": summary.seconds.own,
        "sqnr_db": summary.output_sqnr_db,
        "kept_float": summary.kept_float,
    }


def _elsewhere(engine: str, given: Path, tuned: Path, feeds: Feeds, budget_s: float) -> float | str:
    """The speedup of a tuned file on an engine that it wasn't tuned for, or why there is none."""
    with Worker(engine, SessionOptions(threads=1)) as worker:
        measured, _ = compare_files(worker, [given, tuned], feeds, budget_s=budget_s)
    for measurement in measured:
        if not measurement.ok:
            return str(measurement.error).splitlines()[0]
    return compare_blocks(measured[0].blocks_ms, measured[1].blocks_ms, CONFIDENCE).ratio


def crossed(records: Sequence[dict[str, Any]]) -> str:
    """Speedups over float: what was tuned for one engine, run on every engine."""
    names = sorted({name for each in records for name in (each["engine"], *each["elsewhere"])})
    rows = []
    for record in sorted(records, key=lambda record: (record["model"], record["engine"])):
        here = {**record["elsewhere"], record["engine"]: record["over_float"]}
        shown = [here.get(name, "") for name in names]
        cells = [f"{cell:.3f}x" if isinstance(cell, float) else str(cell) for cell in shown]
        rows.append([record["model"], record["engine"], *cells])
    return text_table(["model", "tuned for", *(f"on {name}" for name in names)], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune the models, append to the results file, print the table from it."""
    logging.getLogger().setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    names = [name for name in zoo.ARCHITECTURES if name != "chain"]
    parser.add_argument(
        "--models", default=",".join(names), type=split_models,
        help="zoo models, with settings such as bert:layers=12,width=256, or files; by comma",
    )  # fmt: skip
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--budget_s", type=float, default=8.0, help="seconds per comparison")
    options = parser.parse_args(arguments)
    for name in options.models:
        record = measure(name, options.preset, options.budget_s, options.engine)
        results.append(record)
        print(
            f"{record['model']}: {record['over_float']:.3f}x float "
            f"(from {record['over_float_low']:.3f}), {record['benchmarks']} benchmarks, "
            f"{record['seconds']:.0f} s",
            flush=True,
        )
    # Before there was a second engine, records had none.
    records = [{"engine": "onnxruntime", **record} for record in results.read(KIND)]
    newest = results.newest(records, "engine", "model", "preset")
    print()
    print(results.table([each for each in newest if each["engine"] == options.engine], COLUMNS))
    print()
    print(crossed([each for each in newest if each.get("elsewhere")]))
