"""What it costs to quantize a tensor and to turn it back, measured alone, by type and shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor,
    make_tensor_value_info,
)

from qdqtune.engines.isolated import StoredFeeds
from qdqtune.graph.atomic_files import replacing
from qdqtune.graph.op_classes import DEQUANTIZE, QUANTIZE
from qdqtune.qdq.encoding import TensorFormat
from qdqtune.records.measurement import Measurement

Array = npt.NDArray[Any]

_IR_VERSION = 9
_HALF = 0.5


class Conversions:
    """Times conversions, each kind once.

    Args:
        folder: Where the models are written.
        layout: To what is quantized.
        opset: In which ONNX opset.
        store: Writes inputs down.
        time: Times files beside each other.
    """

    def __init__(
        self,
        folder: Path,
        layout: TensorFormat,
        opset: int,
        store: Callable[[str, dict[str, Array]], StoredFeeds],
        time: Callable[[list[Path], StoredFeeds], list[Measurement]],
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._opset = opset
        self._store = store
        self._time = time
        self._known: dict[tuple[ir.DataType, tuple[int, ...]], float] = {}

    def ms(self, dtype: ir.DataType, shape: tuple[int, ...]) -> float:
        """Milliseconds of one direction: half of what both together add to a model."""
        kind = (dtype, shape)
        if kind not in self._known:
            name = f"conversion_{dtype.name.lower()}_{'x'.join(map(str, shape))}"
            files = [self._write(name, kind, with_pair=each) for each in (False, True)]
            values = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
            feeds = self._store(name, {"x": values.astype(dtype.numpy())})
            plain, both = self._time(files, feeds)
            more_ms = both.latency_ms - plain.latency_ms if plain.ok and both.ok else 0.0
            self._known[kind] = max(0.0, _HALF * more_ms)
        return self._known[kind]

    def _write(
        self, name: str, kind: tuple[ir.DataType, tuple[int, ...]], *, with_pair: bool
    ) -> Path:
        dtype, shape = kind
        last = make_node("Relu", ["back" if with_pair else "x"], ["y"], name="last")
        scales = [
            make_tensor("scale", dtype.value, [], [0.01]),
            make_tensor("zero_point", self._layout.dtype.value, [], [0]),
        ]
        pair = [
            make_node(QUANTIZE, ["x", "scale", "zero_point"], ["quantized"], name="to"),
            make_node(DEQUANTIZE, ["quantized", "scale", "zero_point"], ["back"], name="from"),
        ]
        graph = make_graph(
            [*pair, last] if with_pair else [last],
            "conversion",
            [make_tensor_value_info("x", dtype.value, shape)],
            [make_tensor_value_info("y", dtype.value, shape)],
            scales if with_pair else [],
        )
        opset = make_opsetid("", self._opset)
        path = self._folder / f"{name}.{'pair' if with_pair else 'none'}.onnx"
        model = make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
        with replacing(path, durable=False) as file:
            file.write(model.SerializeToString())
        return path
