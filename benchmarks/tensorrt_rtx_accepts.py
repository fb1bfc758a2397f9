"""What TensorRT-RTX makes of quantized models: it builds them here and never runs them.

For each architecture of the zoo and each quant type, a model in the TensorRT dialect is written,
parsed and built; then the engine's layer list tells which of the ops that the placement quantizes
really read 8-bit values.

    python benchmarks/tensorrt_rtx_accepts.py [ARCHITECTURE ...]
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.rtx_builds import BuildReport, build_in_child, not_low_precision, operand_types
from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import save_model
from qdqtune.graph._folding import fold
from qdqtune.graph._index import name_nodes
from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import Selection, select_ops
from qdqtune.qdq.dialects import TENSORRT
from qdqtune.records._ranges import CalibrationSource

QUANT_TYPES = ("int8", "fp8")
# `chain` is a chain of blocks of any length, for scaling tests: not an architecture.
ARCHITECTURES = tuple(name for name in zoo.ARCHITECTURES if name != "chain")


@dataclass(frozen=True)
class Verdict:
    """What came of one model.

    Attributes:
        selection: What the placement quantizes, and what it leaves float for which reason.
        report: The build.
        float_nodes: Nodes that the placement quantizes and the engine doesn't.
    """

    selection: Selection
    report: BuildReport
    float_nodes: list[str]

    @property
    def accepted(self) -> bool:
        """Whether the engine was built and quantizes all that the placement does."""
        return self.report.ok and bool(self.selection.quantized) and not self.float_nodes


def decide(name: str, quant_type: str, settings: Mapping[str, Any], worker: Worker) -> Verdict:
    """Quantizes every weighted op of a zoo model and builds it.

    Args:
        name: The architecture.
        quant_type: `int8` or `fp8`.
        settings: Sizes that differ from the architecture's defaults.
        worker: An ONNX Runtime worker, for calibration.
    """
    with tempfile.TemporaryDirectory(prefix="qdqtune-") as folder:
        path, selection = _write_model(name, quant_type, settings, Path(folder), worker)
        report = build_in_child(path)
    float_nodes = not_low_precision(operand_types(report.layers, selection.quantized))
    return Verdict(selection, report, float_nodes)


def _write_model(
    name: str, quant_type: str, settings: Mapping[str, Any], folder: Path, worker: Worker
) -> tuple[Path, Selection]:
    model = ir.from_proto(zoo.build(name, **settings))
    name_nodes(model)
    raise_opset(model, TENSORRT.format_of(quant_type).least_opset)
    fold(model)
    base = PreparedModel(model, folder)
    samples = random_inputs(base.index, 1)
    ranges = collect_ranges(base, worker, samples, CalibrationSource.RANDOM)
    present = {node.op_type for node in base.index.nodes}
    chosen = sorted(WEIGHTED_OPS & present)
    selection = select_ops(base.index, TENSORRT, chosen, quant_type)
    quantized = Inserter(base, TENSORRT, quant_type, ranges).model(selection.placement)
    return save_model(quantized, folder / f"{name}-{quant_type}.onnx"), selection


def main() -> int:
    """Prints the table; 0 if every model is accepted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("architectures", nargs="*", default=ARCHITECTURES, metavar="ARCHITECTURE")
    names = parser.parse_args().architectures
    logging.disable(logging.WARNING)  # the opset converter tells which of its two ways it took
    table = Table("architecture", "type", "parse", "build", "quantized", "low precision", "float")
    remarks: list[str] = []
    accepted = 0
    version = ""
    with Worker("onnxruntime") as worker:
        for name in names:
            for quant_type in QUANT_TYPES:
                decision = decide(name, quant_type, {}, worker)
                accepted += decision.accepted
                version = decision.report.version or version
                table.add_row(name, quant_type, *_cells(decision))
                remarks += _remarks(f"{name} {quant_type}", decision)
    console = Console(width=100)
    console.print(table)
    console.print("\n".join(remarks), highlight=False, markup=False)
    total = len(names) * len(QUANT_TYPES)
    console.print(f"accepted by TensorRT-RTX {version} (built, never run): {accepted} of {total}")
    return 0 if accepted == total else 1


def _cells(decision: Verdict) -> tuple[str, ...]:
    report, selection = decision.report, decision.selection
    chosen = len(selection.quantized)
    return (
        "yes" if report.parsed else "no",
        "yes" if report.ok else "no",
        str(chosen),
        str(chosen - len(decision.float_nodes)),
        str(len(selection.left_float)),
    )


def _remarks(model: str, decision: Verdict) -> list[str]:
    remarks = [f"{model}: {decision.report.error}"] if decision.report.error else []
    if decision.report.ok:
        remarks += [f"{model}: {node} is not low precision" for node in decision.float_nodes]
    reasons = list(decision.selection.left_float.values())
    for reason in dict.fromkeys(reasons):
        remarks.append(f"{model}: {reasons.count(reason)} left float: {reason}")
    return remarks


if __name__ == "__main__":
    sys.exit(main())
