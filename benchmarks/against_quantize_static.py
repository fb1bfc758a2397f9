"""Our files against `quantize_static`'s: the same ops, the same folded graph, the same inputs.

For each zoo model and two op lists: the speedup of our file over theirs, the float model's, and
whether the optimized graphs hold the same integer kernels.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from benchmarks import results
from qdqtune import zoo
from qdqtune.calibration._output_error import output_sqnr
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import Comparison
from qdqtune.records._ranges import CalibrationSource

KIND = "against_quantize_static"
WEIGHTED = ("Conv", "Gemm", "MatMul")
EVERYTHING = tuple(sorted({*QLinearOpsRegistry, *QDQRegistry}))
COLUMNS = {
    "model": "model", "ops": "ops", "ours over theirs": "ours_over_theirs",
    "interval": "interval", "ours over float": "ours_over_float",
    "same kernels": "same_kernels", "SQNR ours": "sqnr_db", "SQNR theirs": "their_sqnr_db",
    "commit": "commit",
}  # fmt: skip
PRESETS = {"quick": 4.0, "default": 8.0, "extensive": 30.0}
_SAMPLES = 4


class SampleReader(CalibrationDataReader):  # type: ignore[misc]
    """Samples, as `quantize_static` wants them."""

    def __init__(self, samples: Iterator[Feeds]) -> None:
        self._samples = samples

    def get_next(self) -> Feeds | None:
        """The next sample; None after the last."""
        return next(self._samples, None)


def measure(name: str, budget_s: float) -> Iterator[dict[str, Any]]:
    """One record per op list for a zoo model."""
    logging.getLogger().setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder,
        Worker("onnxruntime", SessionOptions(threads=1)) as worker,
    ):
        space = Path(folder)
        onnx.save(zoo.build(name), space / "zoo.onnx")
        model = load_model(space / "zoo.onnx")
        fold(model)
        folded = save_model(model, space / "folded.onnx")
        base = PreparedModel(model, space)
        samples = random_inputs(base.index, _SAMPLES)
        ranges = collect_ranges(base, worker, samples, CalibrationSource.RANDOM)
        inserter = Inserter(base, native_dialect("onnxruntime"), "int8", ranges)
        present = {node.op_type for node in base.index.nodes}
        for label, wanted in (("weighted", WEIGHTED), ("all", EVERYTHING)):
            ops = [op_type for op_type in wanted if op_type in present]
            placement = select_ops(base.index, inserter.dialect, ops).placement
            ours = save_model(inserter.model(placement), space / f"ours_{label}.onnx")
            theirs = _theirs(folded, ops, base, space / f"theirs_{label}.onnx")
            record = _compare(worker, base, folded, ours, theirs, budget_s)
            yield {"kind": KIND, "model": name, "ops": label, **record}


def _theirs(folded: Path, ops: list[str], base: PreparedModel, path: Path) -> Path:
    quantize_static(
        str(folded), str(path), SampleReader(random_inputs(base.index, _SAMPLES)),
        quant_format=QuantFormat.QDQ, op_types_to_quantize=ops, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        extra_options={"WeightSymmetric": True},
        reduce_range=native_dialect("onnxruntime").formats["int8"].weight.high < 127,
    )  # fmt: skip
    return path


def _compare(
    worker: Worker, base: PreparedModel, folded: Path, ours: Path, theirs: Path, budget_s: float
) -> dict[str, Any]:
    feeds = next(random_inputs(base.index, 1, InputRequest(seed=1)))
    _, (over_theirs,) = compare_files(worker, [theirs, ours], feeds, budget_s=budget_s)
    _, (over_float,) = compare_files(worker, [folded, ours], feeds, budget_s=budget_s / 2)
    kernels = [
        _integer_kernels(worker, path, ours.parent / "optimized.onnx") for path in (ours, theirs)
    ]
    sqnr = [min(output_sqnr(worker, folded, path, [feeds]).values()) for path in (ours, theirs)]
    return {
        **_ratio("ours_over_theirs", over_theirs),
        "interval": [over_theirs.low, over_theirs.high] if over_theirs else None,
        **_ratio("ours_over_float", over_float),
        "same_kernels": kernels[0] == kernels[1],
        "kernels": dict(kernels[0]),
        "their_kernels": dict(kernels[1]),
        "sqnr_db": sqnr[0],
        "their_sqnr_db": sqnr[1],
    }


def _ratio(key: str, comparison: Comparison | None) -> dict[str, float | None]:
    return {key: comparison.ratio if comparison else None}


def _integer_kernels(worker: Worker, path: Path, optimized: Path) -> Counter[str]:
    options = SessionOptions(threads=1, optimized_model_path=str(optimized))
    worker.release(worker.open(path, options))
    nodes = onnx.load(optimized, load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes if node.op_type.startswith(("QLinear", "QGemm")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the models, append to the results file, print the table from it."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=files …", description=__doc__)
    names = [name for name in zoo.ARCHITECTURES if name != "chain"]
    parser.add_argument("--models", default=",".join(names), help="zoo models, by comma")
    parser.add_argument("--preset", choices=PRESETS, default="default")
    options = parser.parse_args(arguments)
    for name in options.models.split(","):
        for record in measure(name, PRESETS[options.preset]):
            results.append({**record, "preset": options.preset})
            print(
                f"{record['model']} {record['ops']}: {record['ours_over_theirs']:.3f}x", flush=True
            )
    print()
    print(results.table(results.newest(results.read(KIND), "model", "ops"), COLUMNS))
