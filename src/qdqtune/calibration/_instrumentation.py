"""Models with outputs added, and their runs in bounded memory.

Whatever looks inside a model does it here: statistics of tensors, their values and shapes, and the
errors of layers. Tensors are reduced inside the engine, so that a run returns a few numbers of
each, however large they are.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.helper import make_node

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import OpenModel, Worker, WorkerFailure
from qdqtune.graph._prepared_model import PreparedModel

if TYPE_CHECKING:
    from qdqtune.engines._interface import Outputs

_BLOCK = 32


class PackedOutput(ABC):
    """The nodes of a model, and nodes among them that reduce tensors into one flat output.

    The place of nodes in the file decides what they cost. ONNX Runtime runs the inputs of a node
    from the last to the first in the file, so what is reduced late keeps its memory to the end. And
    it opens a model with a sorted list of nodes that could be next: with all reductions at the end
    they are all in it, and 4,000 nodes take minutes. So the reductions of a block of neighbours
    follow them, backwards, and each block is joined to those before it.

    Args:
        output: The name of the output; all names that are added begin with it.

    Attributes:
        nodes: The nodes so far; a caller appends the model's own.
        order: The tensors in the order of the output.
    """

    def __init__(self, output: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.order: list[str] = []
        self._output = output
        self._constants: dict[str, onnx.TensorProto] = {}
        self._waiting: list[str] = []
        self._blocks = 0
        self._results: list[str] = []

    @property
    def constants(self) -> Iterable[onnx.TensorProto]:
        """The constants that the nodes read."""
        return self._constants.values()

    def want(self, tensor: str) -> None:
        """Have a tensor reduced; its node must be among the nodes."""
        self._waiting.append(tensor)
        if len(self._waiting) >= _BLOCK:
            self._reduce_block()

    def finish(self) -> None:
        """Reduce the tensors that are left, and join everything into the output."""
        self._reduce_block()
        self._join(self._output)

    @abstractmethod
    def reduce(self, tensor: str, label: str) -> list[str]:
        """Add the nodes that reduce a tensor.

        Args:
            tensor: Its name.
            label: What the names of the nodes and their outputs begin with.

        Returns:
            Their outputs that belong to the packed one: vectors of float32.
        """

    def add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node; returns its output."""
        self.nodes.append(make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def constant(self, value: int | float | list[int]) -> str:
        """Add a constant: int64 for a list, else float32; returns its name."""
        array = np.array(value, np.int64 if isinstance(value, list) else np.float32)
        name = f"{self._output}_constant_{len(self._constants)}"
        found = self._constants.setdefault(str(value), numpy_helper.from_array(array, name))
        return str(found.name)

    def flat(self, tensor: str, dtype: ir.DataType | None, label: str) -> str:
        """A tensor as a vector of float32, whatever its rank and type."""
        if dtype != ir.DataType.FLOAT:
            tensor = self.add("Cast", [tensor], f"{label}_float", to=onnx.TensorProto.FLOAT)
        return self.add("Reshape", [tensor, self.constant([-1])], f"{label}_flat")

    def _reduce_block(self) -> None:
        results: list[str] = []
        for position, tensor in reversed(list(enumerate(self._waiting, len(self.order)))):
            results += self.reduce(tensor, f"{self._output}_{position}")
        self.order += reversed(self._waiting)
        self._waiting.clear()
        self._join(f"{self._output}_joined_{self._blocks}")  # behind the reductions of this block
        self._blocks += 1
        self._results += results

    def _join(self, name: str) -> None:
        """Join the results that are waiting; what was joined already comes first."""
        if self._results:
            self._results = [self.add("Concat", self._results, name, axis=0)]


def variant(
    base: PreparedModel,
    nodes: Iterable[onnx.NodeProto],
    outputs: Iterable[onnx.ValueInfoProto],
    constants: Iterable[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """The base with other nodes and outputs, and with further constants."""
    content = base.assemble((), base.constant_parts.values())
    proto: onnx.ModelProto = onnx.ModelProto.FromString(content)
    del proto.graph.output[:]
    proto.graph.node.extend(nodes)
    proto.graph.output.extend(outputs)
    proto.graph.initializer.extend(constants)
    return proto


@contextlib.contextmanager
def running(
    base: PreparedModel, worker: Worker, model: onnx.ModelProto, options: SessionOptions | None
) -> Iterator[Callable[[Feeds], Outputs]]:
    """Open a variant of a base for as long as it is run.

    Args:
        base: The base.
        worker: Of the reference engine.
        model: The variant.
        options: How to open it.

    Yields:
        A function that runs it.

    Raises:
        WorkerFailure: If it can't be opened.
    """
    path = base.write_for_now(model.SerializeToString(), "instrumented")
    try:
        opened = _open(worker, path, options)
        yield lambda feeds: worker.run(opened, feeds)
        worker.release(opened)
    finally:
        path.unlink(missing_ok=True)


def _open(worker: Worker, path: Path, options: SessionOptions | None) -> OpenModel:
    """Open a model; as it is written if the engine's optimizations can't cope with it.

    Seen in ONNX Runtime 1.31: it fuses the GELU of a GPT-2 although one of its tensors is an
    output, and then misses that tensor.
    """
    try:
        return worker.open(path, options)
    except WorkerFailure as failure:
        if options is AS_WRITTEN:
            raise
        try:
            return worker.open(path, AS_WRITTEN)
        except WorkerFailure:
            raise failure from None
