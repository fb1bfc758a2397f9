"""Calibration: its memory for many samples, and its time beside `onnxruntime.quantization`'s.

Ours is the whole of `insert`: calibrating, placing, writing, and comparing the outputs with the
float model's, which theirs does not do. Both get the same samples, turn by turn, in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    create_calibrator,
    quantize_static,
)

from benchmarks import results
from benchmarks.against_quantize_static import WEIGHTED, SampleReader
from qdqtune import zoo
from qdqtune.calibration._instrumentation import collect_statistics, watched_tensors
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.calibration._ranges import FOLDER
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.records._ranges import RangeMethod
from qdqtune.workflows._insert import insert

KIND = "calibration"
COLUMNS = {
    "model": "model", "insert max": "insert_max_s", "static MinMax": "static_minmax_s",
    "ratio": "max_ratio", "insert entropy": "insert_entropy_s",
    "static Entropy": "static_entropy_s", "ratio ": "entropy_ratio", "MB for 2": "few_mb",
    "MB for 200": "many_mb", "ratio  ": "memory_ratio", "commit": "commit",
}  # fmt: skip
METHODS = {"max": CalibrationMethod.MinMax, "entropy": CalibrationMethod.Entropy}
_LOADER = """
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex

def samples():
    return random_inputs(GraphIndex(load_model("zoo.onnx")), {count})
"""


def measure(name: str, samples: int, rounds: int) -> dict[str, Any]:
    """The record of a zoo model."""
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        onnx.save(zoo.build(name), space / "zoo.onnx")
        index = GraphIndex(load_model(space / "zoo.onnx"))
        feeds = list(random_inputs(index, samples))
        present = {node.op_type for node in index.nodes}
        ops = [op_type for op_type in (*WEIGHTED, "Add") if op_type in present]
        seconds = _seconds(space, feeds, ops, rounds)
        few, many = (_peak_mb(space, ops, count) for count in (2, 200))
    return {
        "kind": KIND, "model": name, "samples": samples, **seconds,
        "max_ratio": seconds["insert_max_s"] / seconds["static_minmax_s"],
        "entropy_ratio": seconds["insert_entropy_s"] / seconds["static_entropy_s"],
        "few_mb": few, "many_mb": many, "memory_ratio": many / few,
    }  # fmt: skip


def _seconds(space: Path, feeds: list[Feeds], ops: list[str], rounds: int) -> dict[str, float]:
    """The median seconds of each way, one after the other in every round."""
    ways: dict[str, Callable[[], None]] = {}
    for method, theirs in METHODS.items():
        name = theirs.name.lower()
        ways[f"insert_{method}_s"] = partial(_insert, space, feeds, ops, method)
        ways[f"static_{name}_s"] = partial(_static, space, feeds, ops, theirs)
        ways[f"ranges_{method}_s"] = partial(_ranges, space, feeds, ops, method)
        ways[f"calibrator_{name}_s"] = partial(_calibrator, space, feeds, ops, theirs)
    _insert(space, feeds[:1], ops, "max")  # imports what it needs
    taken: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(rounds):
        for key, way in ways.items():
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                way()
            taken[key].append(time.perf_counter() - start)
    return {key: float(np.median(times)) for key, times in taken.items()}


def _insert(space: Path, feeds: list[Feeds], ops: list[str], method: str) -> None:
    insert(
        space / "zoo.onnx", space / "ours.onnx", ops=ops, engine="onnxruntime",
        calibration_data=lambda: iter(feeds), calibration_method=RangeMethod(method), force=True,
    )  # fmt: skip


def _static(space: Path, feeds: list[Feeds], ops: list[str], method: CalibrationMethod) -> None:
    quantize_static(
        str(space / "zoo.onnx"), str(space / "theirs.onnx"), SampleReader(iter(feeds)),
        quant_format=QuantFormat.QDQ, op_types_to_quantize=ops, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, calibrate_method=method,
    )  # fmt: skip


def _ranges(space: Path, feeds: list[Feeds], ops: list[str], method: str) -> None:
    """Calibration alone: opening the model, running it, and counting."""
    model = load_model(space / "zoo.onnx")
    fold(model)
    with Worker() as worker, tempfile.TemporaryDirectory(dir=space) as folder:
        base = PreparedModel(model, Path(folder))
        placement = select_ops(base.index, native_dialect("onnxruntime"), ops).placement
        tensors = watched_tensors(base.index, placement)
        collect_statistics(base, worker, feeds, tensors, with_values=method != "max")


def _calibrator(space: Path, feeds: list[Feeds], ops: list[str], method: CalibrationMethod) -> None:
    path = str(space / "augmented.onnx")
    made = create_calibrator(
        space / "zoo.onnx", ops, augmented_model_path=path, calibrate_method=method
    )
    made.collect_data(SampleReader(iter(feeds)))
    made.compute_data()


def _peak_mb(space: Path, ops: Sequence[str], count: int) -> float:
    """The most memory that an entropy calibration takes, in all of its processes."""
    (space / "loader.py").write_text(_LOADER.format(count=count))
    line = ["insert", "zoo.onnx", "--ops", ",".join(ops), "-o", "q.onnx", "--force", "-q"]
    line += ["--calibration_data", "loader.py:samples", "--calibration_method", "entropy"]
    command = [sys.executable, "-m", "qdqtune", *line]
    child = psutil.Popen(command, cwd=space, stdout=subprocess.DEVNULL)
    most = 0
    while child.poll() is None:
        most = max(most, sum(_resident(child)))
        with contextlib.suppress(psutil.TimeoutExpired):
            child.wait(0.05)
    if child.returncode:
        raise RuntimeError(f"insert ended with {child.returncode}")
    return most / 1e6


def _resident(root: psutil.Popen) -> Iterator[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                yield process.memory_full_info().pss  # what processes share counts once


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the models, append to the results file, print the table from it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--models", default="resnet50,bert,convnext,mobilenet_v2")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    os.environ[FOLDER] = ""  # nothing may be known from the round before
    logging.getLogger().setLevel(logging.ERROR)
    for name in options.models.split(","):
        record = results.append(measure(name, options.samples, options.rounds))
        print({key: round(value, 2) for key, value in record.items() if isinstance(value, float)})
    print(results.table(results.newest(results.read(KIND), "model"), COLUMNS))


if __name__ == "__main__":
    main()
