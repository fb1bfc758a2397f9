"""A trained OCR model, before and after: accuracy and speed.

    python -m examples.read_text [--budget 300]

The recogniser of RapidOCR comes out of its wheel, which is downloaded once and not installed. It
reads 200 rendered strings as a float model, quantized by rules, and tuned. Tuning gets the accuracy
as a limit: what reads fewer strings is not an option, however fast it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
from benchmarks.real.reading import ReadText
from benchmarks.real.wheels import Wheels

import qdqtune

WHEEL = "rapidocr==3.10.0"
MEMBER = "rapidocr/models/PP-OCRv6_rec_small.onnx"
MOST_DROP = 0.02


def fetch(folder: Path) -> ReadText:
    """Download the model, unless it is there; returns the task that it was trained for."""
    model = folder / ReadText.model
    wheels = Wheels(folder)
    if not model.exists():
        content = wheels.read(WHEEL, MEMBER)
        model.parent.mkdir(parents=True, exist_ok=True)
        model.write_bytes(content)
    return ReadText(folder, wheels)


def metric(task: ReadText) -> Callable[[str], float]:
    """Return a function that takes a model's path, and returns the share of strings that it reads.

    `qdqtune tune --evaluate module:function` takes such a function, too.
    """
    questions = task.questions()

    def share_read(path: str) -> float:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        answers = [
            task.answer(question, dict(zip(names, session.run(names, question), strict=True)))
            for question in questions
        ]
        return task.score(answers, answers)["exact"]

    return share_read


def main() -> None:
    """Quantize, tune, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("work/read_text"))
    parser.add_argument("--budget", type=float, default=300, help="seconds to tune for")
    options = parser.parse_args()
    folder: Path = options.folder
    task = fetch(folder)
    share_read = metric(task)
    (samples,) = task.calibration_sets(1).values()  # other strings than those that are read
    same: dict[str, Any] = {"engine": "onnxruntime", "threads": 1, "calibration_data": samples}

    quantized = folder / "quantized.onnx"
    qdqtune.quantize(task.path, quantized, force=True, **same)
    run = qdqtune.tune(
        task.path, evaluate=share_read, max_drop=MOST_DROP, preset="quick",
        budget_s=options.budget, output_dir=folder / "run", force=True, **same,
    )  # fmt: skip

    files = {"float": task.path, "quantized": quantized, "tuned": run.model}
    shapes = {name: array.shape for name, array in samples[0].items()}
    record = qdqtune.bench(list(files.values()), engine="onnxruntime", threads=1, inputs=shapes)
    for (name, path), entry in zip(files.items(), record.entries, strict=True):
        speedup = entry.against_first.ratio if entry.against_first else 1.0
        print(f"{name:10} reads {share_read(str(path)):6.1%}, {speedup:.2f}x")


if __name__ == "__main__":
    main()
