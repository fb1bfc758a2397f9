"""`qdqtune tune` against the float model and against the best of ONNX Runtime's blankets.

Blankets are what ONNX Runtime's quantizers do by default. `quantize_static` in QDQ format, per
channel: s8/s8, u8/s8 with 8-bit and with 7-bit weights, u8/u8; `quantize_dynamic`: s8 weights per
channel and per tensor, u8 weights. They
get the folded model, which is what their own preprocessing is for: with a BatchNormalization behind
every Conv they would be an easy match. The fastest of each quantizer, the model by the rules of
`quantize`, that of NNCF if it is installed, and the tuned one take turns with the float model in
several processes, of which each gives one ratio. What was tuned for one engine is run on the others
that are here, too: the last table shows what a model is worth where it wasn't tuned for.
`python -m benchmarks.readme` writes the README's tables from the results.

    make bench ARGS="--models resnet18,vit --preset quick"
    make bench ARGS="--models bert:layers=12,width=256,gpt --engine openvino"
    make bench ARGS="--models MODELS/trained/minilm_l6.legacy.onnx --data DATA --wheels WHEELS"

The bar: a tuned model is at least 0.99 times as fast as the best blanket, the upper end of the
90 % interval is at least 1, and it is as accurate: by the task of a trained model (see
`benchmarks.accuracy`) if --wheels is given, or by the SQNR of the outputs on inputs that neither
was calibrated on. Over all models of a run, the geometric mean of the ratios is at least 1.05.

With --data, both are calibrated on `DATA/<model>.npz`, and timed and compared on
`DATA/<model>.held_out.npz`, as `benchmarks.real_inputs` writes them; otherwise inputs are random.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import results
from benchmarks.accuracy import scores_of, task_of
from benchmarks.blankets import CONFIDENCE, LEAST_OPSET, model_file, split_models, worst_sqnr_db
from benchmarks.corpus import calibration_samples, fed_with
from benchmarks.real.wheels import Wheels
from benchmarks.rivals import FLOAT, RULES, TUNED, in_turns, interval, write_rivals
from qdqtune import quantize, zoo
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import Reopened, compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._timing import compare_blocks
from qdqtune.engines._worker import Worker
from qdqtune.records._tuning import Summary
from qdqtune.report._formatting import text_table
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._tune import tune

if TYPE_CHECKING:
    from benchmarks.real.task import Score

KIND = "tuning"
COLUMNS = {
    "engine": "engine", "model": "model",
    "tuned over float": "over_float", "90 % from": "over_float_low", "to": "over_float_high",
    "best blanket": "blanket", "over float": "blanket_over_float",
    "tuned over blanket": "over_blanket", "from": "over_blanket_low", "to ": "over_blanket_high",
    "SQNR": "sqnr_db", "blanket's": "blanket_sqnr_db",
    "score": "score", "blanket's ": "blanket_score", "bar": "bar",
    "benchmarks": "benchmarks", "seconds": "seconds", "own": "own_s",
    "kept float": "kept_float", "commit": "commit",
}  # fmt: skip
LEAST_RATIO, LEAST_HIGH, LEAST_MEAN = 0.99, 1.0, 1.05


@dataclass(frozen=True)
class Options:
    """How models are measured.

    Attributes:
        preset: Of the tune.
        engine: Where models run.
        budget_s: Seconds per comparison.
        tune_s: Seconds that the tune may take; None for no limit.
        data: The folder of inputs, by the names of model files; None for random inputs.
        wheels: The folder of wheels that the questions of tasks come from; None for no tasks.
    """

    preset: str
    engine: str
    budget_s: float
    tune_s: float | None = None
    data: Path | None = None
    wheels: Path | None = None


def measure(name: str, options: Options) -> dict[str, Any]:
    """One record for a zoo model or a model file on an engine."""
    engine, budget_s = options.engine, options.budget_s
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        path = model_file(name, space)
        source = open_source(path, LEAST_OPSET)
        fed = fed_with(path, source, options.data)
        calibrated = replace(fed, request=replace(fed.request, seed=0))
        common: dict[str, Any] = {
            "engine": engine, "threads": 1,
            "inputs": calibrated.request, "calibration_data": fed.calibration,
        }  # fmt: skip
        tuned = tune(
            path, preset=options.preset, budget_s=options.tune_s, output_dir=space / "run", **common
        )  # fmt: skip
        ruled = quantize(path, space / "rules.onnx", **common)
        samples = calibration_samples(calibrated, source)
        held_out = fed.evaluation_samples(source)
        feeds = held_out[0]
        rivals = write_rivals(path, space, engine, samples, feeds, budget_s / 2)
        files = {FLOAT: path, **rivals.files, RULES: ruled.model, TUNED: tuned.model}
        turns = in_turns(engine, files, feeds, budget_s)
        kept = {RULES: ruled.report.kept_float, TUNED: tuned.summary.kept_float}
        quantized = {
            label: file
            for label, file in files.items()
            if label != FLOAT and turns[label].error is None and not kept.get(label)
        }
        sqnr_db = worst_sqnr_db(source, quantized, held_out, engine)
        scores = _scores(path, files, engine, options.wheels)
        elsewhere = {
            other: _elsewhere(other, path, tuned.model, feeds, budget_s)
            for other, entry in registry.ENGINES.items()
            if other != engine and entry.measures and registry.available(other).usable
        }
    return {
        "kind": KIND,
        "engine": engine,
        "model": path.stem if Path(name).exists() else name,
        "preset": options.preset,
        "inputs": fed.source.value,
        "elsewhere": elsewhere,
        "blankets": dict(rivals.blankets),
        "float_ms": turns[FLOAT].latency_ms,
        "turns": {
            label: {
                "form": rivals.forms.get(label),
                **_ends("", interval(turns[label], turns[FLOAT])),
                "sqnr_db": sqnr_db.get(label),
                "score": scores.get(label),
                "kept_float": kept.get(label, False),
            }
            for label in list(files)[1:]
        },
        **_facts(tuned.summary),
        "blanket": rivals.forms.get(rivals.best_blanket or ""),
        **_against(rivals.best_blanket, turns, sqnr_db, scores),
    }


def _facts(summary: Summary) -> dict[str, Any]:
    """What a run says of itself."""
    return {
        "version": summary.engine.version,
        "device": summary.engine.device,
        "isa": summary.engine.isa,
        "benchmarks": summary.benchmarks,
        "seconds": summary.seconds.total,
        "own_s": summary.seconds.own,
        "kept_float": summary.kept_float,
    }


def _against(
    best: str | None,
    turns: Mapping[str, Reopened],
    sqnr_db: Mapping[str, float],
    scores: Mapping[str, float],
) -> dict[str, Any]:
    """A tuned model beside the float model and beside the best blanket, if any runs."""
    over_blanket = interval(turns[TUNED], turns[best]) if best else None
    blanket = interval(turns[best], turns[FLOAT]) if best else None
    return {
        **_ends("over_float", interval(turns[TUNED], turns[FLOAT])),
        "blanket_over_float": blanket[0] if blanket else None,
        **_ends("over_blanket", over_blanket),
        "sqnr_db": sqnr_db.get(TUNED),
        "blanket_sqnr_db": sqnr_db.get(best or ""),
        "score": scores.get(TUNED),
        "blanket_score": scores.get(best or ""),
        "bar": _bar(over_blanket, scores or {TUNED: math.inf, **sqnr_db}, best),
    }


def _ends(key: str, found: tuple[float, float, float] | None) -> dict[str, float | None]:
    """A ratio and both ends of its interval."""
    names = [key or "ratio", *(f"{key}_{end}".lstrip("_") for end in ("low", "high"))]
    return dict(zip(names, found or (None, None, None), strict=True))


def _scores(
    path: Path, files: Mapping[str, Path], engine: str, wheels: Path | None
) -> dict[str, float]:
    """How well the files do what a trained model is for; empty if that is not known."""
    task = task_of(path.resolve(), Wheels(wheels)) if wheels is not None else None
    if task is None:
        return {}
    with Worker(engine, SessionOptions(threads=1)) as worker:
        found: dict[str, Score] = scores_of(task, files, worker)
    return {label: score[task.bar.figure] for label, score in found.items()}


def _bar(
    over_blanket: tuple[float, float, float] | None, figures: Mapping[str, float], best: str | None
) -> str:
    """What a tuned model misses beside the best blanket."""
    if over_blanket is None or best is None:
        return "met"
    ratio, _, high = over_blanket
    missed = []
    if ratio < LEAST_RATIO or high < LEAST_HIGH:
        missed.append("slower")
    if figures[TUNED] < figures.get(best, -math.inf):
        missed.append("less accurate")
    return f"MISSED: {', '.join(missed)}" if missed else "met"


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


def _line(record: Mapping[str, Any]) -> str:
    """What came of one model."""
    ratios = []
    for other, key in (("float", "over_float"), (record["blanket"], "over_blanket")):
        if record[key] is not None:
            low, high = record[f"{key}_low"], record[f"{key}_high"]
            ratios.append(f"{record[key]:.3f}x {other} ({low:.3f} to {high:.3f})")
    return f"{record['model']}: {', '.join(ratios)}, bar {record['bar']}"


def _mean(records: Sequence[Mapping[str, Any]]) -> str:
    """The geometric mean of the ratios to the best blankets."""
    ratios = [each["over_blanket"] for each in records if each["over_blanket"] is not None]
    if not ratios:
        return "no blanket runs"
    mean = statistics.geometric_mean(ratios)
    verdict = "met" if mean >= LEAST_MEAN else "MISSED"
    return (
        f"geometric mean over the best blankets of {len(ratios)} models: {mean:.3f}x, "
        f"bar {LEAST_MEAN:.2f} {verdict}"
    )


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
    parser.add_argument("--tune_s", type=float, help="seconds for each tune; no limit")
    parser.add_argument("--data", type=Path, help="folder of <model>.npz; random inputs")
    parser.add_argument("--wheels", type=Path, help="folder of wheels, to score trained models")
    parser.add_argument("--results", type=Path, default=results.RESULTS, help="where to append")
    options = parser.parse_args(arguments)
    asked = Options(
        options.preset, options.engine, options.budget_s, options.tune_s, options.data,
        options.wheels,
    )  # fmt: skip
    measured = []
    for name in options.models:
        record = results.append(measure(name, asked), options.results)
        measured.append(record)
        print(f"{_line(record)}, {record['seconds']:.0f} s", flush=True)
    print(_mean(measured), flush=True)
    # Before there was a second engine, records had none.
    found = results.read(KIND, options.results)
    records = [{"engine": "onnxruntime", **record} for record in found]
    newest = results.newest(records, "engine", "model", "preset")
    print()
    print(results.table([each for each in newest if each["engine"] == options.engine], COLUMNS))
    print()
    print(crossed([each for each in newest if each.get("elsewhere")]))
