"""Which ops a quantized model's error comes from: each one is quantized alone, and left out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.corpus import Fed, calibration_samples
from qdqtune.calibration._output_error import SignalToNoise
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import select_nodes
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._placement import Edge, Placement
from qdqtune.workflows._source_model import Source, open_source

_NAMED = 3
_RANKED_ON = 3  # samples: an order is wanted, not a number


def blame(path: Path, variant: str, nodes: Sequence[str], fed: Fed, worker: Worker) -> list[str]:
    """Rank quantized ops by the error that each one alone makes.

    Args:
        path: The float model.
        variant: A dialect, and a quant type behind a colon.
        nodes: What is quantized in it.
        fed: What it is run on.
        worker: An ONNX Runtime worker.

    Returns:
        Lines for people: the worst ops, with what of them it is, and what leaving them out brings.
    """
    dialect, _, quant_type = variant.partition(":")
    layout = dialect_named(dialect).format_of(quant_type or "int8")
    source = open_source(path, layout.least_opset)
    with tempfile.TemporaryDirectory(prefix="qdqtune-blame-") as folder:
        blame = _Blame(source, dialect, quant_type or "int8", fed, Path(folder), worker)
        alone = {node: blame.nodes_db([node]) for node in nodes}
        worst = sorted(nodes, key=lambda node: alone[node])[:_NAMED]
        lines = [f"{alone[node]:.1f} dB alone: {blame.explain(node)}" for node in worst]
        for count in range(1, len(worst) + 1):
            rest = [node for node in nodes if node not in worst[:count]]
            if rest:
                lines.append(f"{blame.nodes_db(rest):.1f} dB without the first {count}")
        return lines


class _Blame:
    """Runs placements of one model beside it."""

    def __init__(
        self, source: Source, dialect: str, quant_type: str, fed: Fed, folder: Path, worker: Worker
    ) -> None:
        self._worker = worker
        self._evaluation_samples = [
            worker.store(feeds) for feeds in fed.evaluation_samples(source)[:_RANKED_ON]
        ]
        samples: list[Feeds] = calibration_samples(fed, source)
        base = PreparedModel(source.model, folder)
        ranges = collect_ranges(base, worker, samples, fed.source)
        self._inserter = Inserter(base, dialect_named(dialect), quant_type, ranges)
        self._quant_type = quant_type
        self._reference = self._outputs(base.write(base.whole(), "reference"))

    def nodes_db(self, nodes: Sequence[str]) -> float:
        """The worst output with only these nodes quantized."""
        return self._decibels(self._placement(nodes))

    def explain(self, node: str) -> str:
        """A node, and the error that quantizing each of its tensors alone makes."""
        index = self._inserter.index
        placement = self._placement([node])
        parts = []
        for edge in sorted(placement.edges, key=lambda edge: edge.position):
            kind = "constant" if index.is_constant(edge.tensor) else "activation"
            if edge.position < 2:  # a bias can't be quantized without the others
                shown = self._decibels(Placement.of([edge]))
                parts.append(f"{kind} {edge.tensor} {shown:.1f}{self._range(edge)}")
        parts += (
            f"output {tensor} {self._decibels(Placement.of([], [tensor])):.1f}"
            for tensor in sorted(placement.outputs)
        )
        return f"{index.node[node].op_type} {node} ({', '.join(parts)})"

    def _range(self, edge: Edge) -> str:
        known = self._inserter.encoder.ranges.by_tensor.get(edge.tensor)
        return f" in [{known[0]:.4g}, {known[1]:.4g}]" if known else ""

    def _placement(self, nodes: Sequence[str]) -> Placement:
        dialect = self._inserter.dialect
        return select_nodes(self._inserter.index, dialect, nodes, self._quant_type).placement

    def _decibels(self, placement: Placement) -> float:
        ratio = SignalToNoise()
        actual = self._outputs(self._inserter.write(placement, "candidate"))
        for expected, found in zip(self._reference, actual, strict=True):
            ratio.add(expected, found)
        return min(ratio.decibels().values())

    def _outputs(self, path: Path) -> list[Mapping[str, npt.NDArray[Any]]]:
        opened = self._worker.open(path, AS_WRITTEN)
        outputs: list[Mapping[str, npt.NDArray[Any]]] = [
            self._worker.run(opened, feeds) for feeds in self._evaluation_samples
        ]
        self._worker.release(opened)
        return outputs
