"""The front of a tune against all that other quantizers make of a trained model, on real inputs.

    python -m benchmarks.fronts --models MODELS --data DATA --wheels WHEELS [--engine openvino]

The points of the front, every blanket of `quantize_static` (with ranges by maximum, entropy and
percentile) and of `quantize_dynamic`, and NNCF with and without accuracy control take turns with
the float model. A point is *dominated* if another file is faster by interval and has less noise on
inputs that nothing was calibrated on. `within` is the fastest file whose task is done at most half
a point worse than by the float model. MODELS, DATA and WHEELS are those of `benchmarks.accuracy`
and `benchmarks.real_inputs`.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationMethod

from benchmarks import results
from benchmarks.accuracy import TASKS, answers_of, scores_of, task_at
from benchmarks.blankets import (
    ALL_BLANKETS,
    BLANKETS,
    LEAST_OPSET,
    worst_sqnr_db,
    write_blankets,
    write_folded,
)
from benchmarks.corpus import calibration_samples, fed_with
from benchmarks.real.task import Task
from benchmarks.real.wheels import Sample, Wheels
from benchmarks.rivals import FLOAT, NNCF, in_turns, interval, write_nncf
from qdqtune import export, tune
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._comparison import Reopened
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import Worker
from qdqtune.report._formatting import text_table
from qdqtune.workflows._export import front_of
from qdqtune.workflows._source_model import open_source

KIND = "fronts"
POINT, CONTROLLED = "point", "nncf, accuracy control"
MOST_DROP = 0.005
_EPSILON = 1e-9
_METHODS = {"entropy": CalibrationMethod.Entropy, "percentile": CalibrationMethod.Percentile}
_RANGES = {
    f"{form} {label}": BLANKETS[form]._replace(method=method)
    for form in ("u8/s8", "u8/s8 7 bits")
    for label, method in _METHODS.items()
}


def measure(name: str, task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """One record for a trained model on an engine."""
    engine = options.engine
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        source = open_source(task.path, LEAST_OPSET)
        fed = fed_with(task.path, source, options.data)
        samples, held_out = calibration_samples(fed, source), fed.evaluation_samples(source)
        tuned = tune(
            task.path, engine=engine, threads=1, preset=options.preset, inputs=fed.request,
            calibration_data=fed.calibration, output_dir=space / "run",
        )  # fmt: skip
        points = front_of(space / "run") if not tuned.summary.kept_float else ()
        ours = {
            f"{POINT} {number}": export(space / "run", number, space / f"point{number}.onnx").output
            for number, _ in enumerate(points, 1)
        }
        others = _others(task, space, samples, engine, options.control_s)
        files = {FLOAT: task.path, **ours, **others}
        turns = in_turns(engine, files, held_out[0], options.budget_s)
        run = {label: files[label] for label, turn in turns.items() if turn.error is None}
        sqnr_db = worst_sqnr_db(source, {k: v for k, v in run.items() if k != FLOAT}, held_out,
                                engine)  # fmt: skip
        with Worker(engine, SessionOptions(threads=1)) as worker:
            scores = {
                label: score[task.bar.figure]
                for label, score in scores_of(task, run, worker).items()
            }
    rows = {
        label: {
            "ratio": (1.0, 1.0, 1.0) if label == FLOAT else interval(turns[label], turns[FLOAT]),
            "sqnr_db": sqnr_db.get(label),
            "score": scores[label],
            "dominated_by": _dominating(label, run, turns, sqnr_db) if label in ours else [],
        }
        for label in run
    }
    return {
        "kind": KIND,
        "engine": engine,
        "model": name,
        "preset": options.preset,
        "figure": task.bar.figure,
        "points": len(ours),
        "rows": rows,
        "within": _within(ours, rows, scores[FLOAT]),
        "within_others": _within(others, rows, scores[FLOAT]),
        "isa": tuned.summary.engine.isa,
        "device": tuned.summary.engine.device,
        "benchmarks": tuned.summary.benchmarks,
        "seconds": tuned.summary.seconds.total,
    }


def _others(
    task: Task, space: Path, samples: Sequence[Feeds], engine: str, control_s: int
) -> dict[str, Path]:
    """What other quantizers make of the model."""
    folded = write_folded(task.path, space / "folded.onnx")
    found = write_blankets(folded, lambda: iter(samples), space, {**ALL_BLANKETS, **_RANGES})
    if (by_nncf := write_nncf(folded, space / "nncf.onnx", samples)) is not None:
        found[NNCF] = by_nncf
        controlled = _write_controlled(task, folded, space / "nc.onnx", samples, engine, control_s)
        if controlled is not None:
            found[CONTROLLED] = controlled
    return found


def _write_controlled(
    task: Task, path: Path, target: Path, samples: Sequence[Feeds], engine: str, limit_s: int
) -> Path | None:
    """Quantize by NNCF with the task as its metric; None if that fails or takes too long.

    Its metric is how far it agrees with the float model, on every other question of those that its
    result is scored by.
    """
    nncf: Any = importlib.import_module("nncf")
    items = [dict(question) for question in task.questions()[::2]]

    def answers(model: onnx.ModelProto, asked: Iterable[Sample]) -> list[Any]:
        file = target.with_suffix(".tried.onnx")
        onnx.save(model, file)
        with Worker(engine, SessionOptions(threads=1)) as worker:
            return answers_of(task, list(asked), worker, file)

    of_float = answers(onnx.load(path), items)
    numbers = {id(item): number for number, item in enumerate(items)}

    def accuracy(model: onnx.ModelProto, asked: Iterable[Sample]) -> tuple[float, list[float]]:
        asked = list(asked)
        told = zip(answers(model, asked), asked, strict=True)
        values = [_agreement(one, of_float[numbers[id(item)]]) for one, item in told]
        return sum(values) / len(values), values

    def give_up(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"not done after {limit_s} s")

    has_attention = any(node.op_type == "Softmax" for node in onnx.load(path).graph.node)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(limit_s)
    try:
        quantized = nncf.quantize_with_accuracy_control(
            onnx.load(path), nncf.Dataset(list(samples)),
            nncf.Dataset(items), accuracy,
            max_drop=MOST_DROP, drop_type=nncf.DropType.ABSOLUTE,
            model_type=nncf.ModelType.TRANSFORMER if has_attention else None,
        )  # fmt: skip
    except Exception as error:  # not every model can be quantized by it
        print(f"{path.name}: {CONTROLLED}: {error}", flush=True)
        return None
    finally:
        signal.alarm(0)
    onnx.save(quantized, target)
    return target


def _agreement(one: Any, other: Any) -> float:
    """Whether two answers are equal; of vectors, their cosine."""
    return float(one @ other) if isinstance(one, np.ndarray) else float(one == other)


def _dominating(
    point: str,
    files: Mapping[str, Path],
    turns: Mapping[str, Reopened],
    sqnr_db: Mapping[str, float],
) -> list[str]:
    """The files of others that are faster than a point by interval, and have less noise."""
    found = []
    for label in files:
        if label == FLOAT or label.startswith(POINT) or sqnr_db[label] <= sqnr_db[point]:
            continue
        ratio = interval(turns[label], turns[point])
        if ratio is not None and ratio[1] > 1.0:
            found.append(label)
    return found


def _within(
    labels: Iterable[str], rows: Mapping[str, Mapping[str, Any]], of_float: float
) -> tuple[str, float] | None:
    """The fastest file that does its task nearly as well as the float model, and its speedup."""
    good = {
        label: rows[label]["ratio"][0]
        for label in labels
        if label in rows and rows[label]["score"] >= of_float - MOST_DROP - _EPSILON
    }
    return max(good.items(), key=lambda item: item[1]) if good else None


def shown(record: Mapping[str, Any]) -> str:
    """The table of a record, fastest first, and what the bars ask."""
    rows = []
    ordered = sorted(record["rows"].items(), key=lambda item: -item[1]["ratio"][0])
    for label, row in ordered:
        ratio = row["ratio"]
        sqnr_db = "" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"
        rows.append([label, f"{ratio[0]:.3f}", f"{ratio[1]:.3f} to {ratio[2]:.3f}", sqnr_db,
                     f"{row['score']:.3f}", ", ".join(row["dominated_by"])])  # fmt: skip
    table = text_table(["file", "over float", "90 %", "dB", record["figure"], "dominated by"], rows)
    return (
        f"{record['model']} on {record['engine']}\n{table}\n"
        f"within half a point: {record['within']}, others {record['within_others']}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the tasks and append to the results file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fronts", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--models", type=Path, required=True, help="the folder of trained models")
    parser.add_argument("--data", type=Path, required=True, help="folder of <model>.npz")
    parser.add_argument("--wheels", type=Path, required=True, help="the folder of wheels")
    parser.add_argument("--only", default="mobilenet,ocr,minilm", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--budget_s", type=float, default=8.0, help="seconds for each file")
    parser.add_argument("--control_s", type=int, default=240, help="for NNCF's accuracy control")
    parser.add_argument("--results", type=Path, default=results.RESULTS, help="where to append")
    options = parser.parse_args(arguments)
    logging.getLogger().setLevel(logging.ERROR)
    for name in options.only.split(","):
        task = task_at(name, options.models, Wheels(options.wheels))
        record = results.append(measure(name, task, options), options.results)
        print(shown(record), flush=True)


if __name__ == "__main__":
    main()
