"""The errors of a quantized model's ops against those of its float model.

Both run as written in one model, and are compared inside the engine, which returns a few numbers
per op and sample instead of the tensors.
"""

from __future__ import annotations

import contextlib
import math
import operator
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.helper import make_opsetid, make_tensor_value_info

from qdqtune.calibration._instrumentation import PackedOutput, Progress
from qdqtune.calibration._layer_errors_pairs import Pairing, QuantizedOp, reads
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import OpenModel, Worker, WorkerFailure
from qdqtune.graph._atomic_files import writing
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import model_inputs
from qdqtune.graph._weights import WeightStore, is_small
from qdqtune.records._accuracy import OpError
from qdqtune.records._errors import EngineError, ModelError

Numbers = npt.NDArray[np.float64]

OUTPUT = "qdqtune_errors"
"""The one output of a comparing model."""

# The numbers for every pair: sums of the squares of the float tensor, of the difference and of the
# other tensor, then the difference's largest magnitude, and the float tensor's extremes.
_NUMBERS = 6

# A larger number is a mask, whose square would overflow float32.
_LARGEST = 1e15

_SMALL_BYTES = 1024

# Before this version of the format, weights had to be listed among the inputs.
_FREE_WEIGHTS_IR_VERSION = 4


class Wiring(Enum):
    """The inputs of quantized ops."""

    #: Each op in isolation: its inputs come from the float model, through its own Q and DQ.
    OWN = "own"
    #: The quantized model as it is: errors of earlier ops count, too.
    ACCUMULATED = "accumulated"


def own_errors(
    worker: Worker, float_model: Path, quantized: Path, samples: Iterable[Feeds]
) -> dict[str, OpError]:
    """Return the error that the quantization of each op adds: it reads the float model's values.

    Args:
        worker: A worker of the reference engine.
        float_model: The float model, in a folder that may be written to: weights that are in a file
            there are not copied.
        quantized: A quantized model of it, with the same inputs.
        samples: Input sets, read one at a time.

    Returns:
        The error of every op with a quantized input, by node name.

    Raises:
        EngineError: If the models don't run.
        ModelError: If there are no samples, or a model can't be read.
    """
    pairing = Pairing(load_model(float_model), load_model(quantized))
    return op_errors(worker, pairing, Wiring.OWN, samples, float_model.absolute().parent)


def op_errors(
    worker: Worker,
    pairing: Pairing,
    wiring: Wiring,
    samples: Iterable[Feeds],
    folder: Path,
    progress: Progress | None = None,
) -> dict[str, OpError]:
    """Compare two models op by op; see `own_errors`.

    Args:
        worker: A worker of the reference engine.
        pairing: The models.
        wiring: The inputs of quantized ops.
        samples: Input sets, read one at a time.
        folder: The folder for the model that is run.
        progress: Called after every sample.
    """
    ops = pairing.ops if wiring is Wiring.OWN else pairing.ops_of_fixed_shape()
    if not ops:
        return {}
    sums = {op.tensor: np.zeros(_NUMBERS) for op in ops}
    total = operator.length_hint(samples) or None
    done = 0
    try:
        with contextlib.closing(_distances(worker, pairing, wiring, sums, samples, folder)) as runs:
            for numbers in runs:
                for tensor, found in numbers.items():
                    sums[tensor][:3] += found[:3]
                    # The largest value of an empty tensor is minus infinity, which has no effect.
                    sums[tensor][3:] = np.fmax(sums[tensor][3:], found[3:] * (1, 1, -1))
                done += 1
                if progress is not None:
                    progress(done, total)
    except WorkerFailure as failure:
        raise EngineError(
            f"The two models don't run side by side, as they are written, on sample {done}: "
            f"{failure}",
            "Do both run alone? See `qdqtune bench FLOAT QUANT`.",
        ) from None
    if not done:
        raise ModelError("There is nothing to run the models on.", "Give at least one sample.")
    return {op.name: _op_error(op, sums[op.tensor]) for op in ops}


def _op_error(op: QuantizedOp, numbers: Numbers) -> OpError:
    signal, noise, power, off, *extremes = numbers.tolist()
    return OpError(
        signal=signal,
        noise=noise,
        power=power,
        max_error=off if math.isfinite(noise) else math.inf,
        max_value=max(extremes),
        node=op.name,
        op_type=op.op_type,
        tensor=op.tensor,
        inputs=op.inputs,
    )


def _distances(
    worker: Worker,
    pairing: Pairing,
    wiring: Wiring,
    tensors: Collection[str],
    samples: Iterable[Feeds],
    folder: Path,
) -> Generator[dict[str, Numbers], None, None]:
    """Run the comparing model; it is written and opened again when a mask is found.

    Yields:
        The numbers of one sample, by tensor.
    """
    path = folder / f"errors-{uuid.uuid4().hex}.onnx"
    masked: set[str] = set()
    order: list[str] = []
    opened: OpenModel | None = None
    try:
        for feeds in samples:
            while True:
                if opened is None:
                    order = ComparingModel(pairing, wiring, tensors, masked).write(path)
                    opened = worker.open(path, AS_WRITTEN)
                numbers = worker.run(opened, feeds)[OUTPUT].astype(np.float64)
                found = dict(zip(order, numbers.reshape(-1, _NUMBERS), strict=True))
                strange = {name for name, each in found.items() if not np.isfinite(each[0])}
                if strange <= masked:
                    break
                masked |= strange
                worker.release(opened)
                opened = None
            yield found
    finally:
        if opened is not None:
            with contextlib.suppress(WorkerFailure):
                worker.release(opened)
        for file in (path, ComparingModel.weights_file(path)):
            file.unlink(missing_ok=True)


class ComparingModel(PackedOutput):
    """A model that contains the float and the quantized graph, and outputs their differences.

    Args:
        pairing: The two models.
        wiring: The inputs of quantized ops.
        tensors: The tensors to compare, by their names in the quantized model.
        masked: Tensors whose huge values, as in masks, are excluded.

    Attributes:
        pairing: The two models.
        prefix: What the names of the quantized model's tensors begin with in this one.
    """

    def __init__(
        self,
        pairing: Pairing,
        wiring: Wiring,
        tensors: Collection[str],
        masked: Collection[str] = (),
    ) -> None:
        super().__init__(OUTPUT)
        self.pairing = pairing
        self._wiring = wiring
        self._tensors = tensors
        self._masked = masked
        self.prefix = f"{OUTPUT}/"
        while any(name.startswith(self.prefix) for name in pairing.original.value):
            self.prefix += "/"
        self._read: set[str] = set()
        for node in self._in_order():
            if node.graph is pairing.original.model.graph:
                self.nodes.append(ir.serde.serialize_node(node))
                self._read.update(reads(node, pairing.original))
                continue
            self._add_quantized(node)
            for value in node.outputs:
                if value.name and value.name in tensors:
                    self.want(value.name)
        self.finish()

    def reduce(self, tensor: str, label: str) -> list[str]:
        """Return the `_NUMBERS` numbers of a pair."""
        original, quantized = self.pairing.original, self.pairing.quantized
        source = self.pairing.float_of[tensor]
        before = self.flat(source, original.dtype(source), f"{label}_0")
        after = self.flat(self.prefix + tensor, quantized.value[tensor].dtype, f"{label}_1")
        if tensor in self._masked:
            size = self.add("Abs", [before], f"{label}_size")
            ordinary = self.add("Less", [size, self.constant(_LARGEST)], f"{label}_ordinary")
            before, after = (
                self.add("Where", [ordinary, each, self.constant(0.0)], f"{each}_ordinary")
                for each in (before, after)
            )
        off = self.add("Sub", [after, before], f"{label}_difference")
        off = self.add("Abs", [off], f"{label}_off")
        reductions = (
            ("ReduceSumSquare", before), ("ReduceSumSquare", off), ("ReduceSumSquare", after),
            ("ReduceMax", off), ("ReduceMax", before), ("ReduceMin", before),
        )  # fmt: skip
        return [
            self.add(op_type, [each], f"{label}_number{number}", keepdims=1)
            for number, (op_type, each) in enumerate(reductions)
        ]

    def write(self, path: Path) -> list[str]:
        """Write it; weights that are not in a file next to it go to a new file.

        Returns:
            The tensors, in the order of their numbers in the output.
        """
        models = [self.pairing.original.model, self.pairing.quantized.model]
        output = make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, [None])
        graph = onnx.GraphProto(name=OUTPUT, node=self.nodes, output=[output])
        graph.input.extend(ir.to_proto(value) for value in model_inputs(models[0]))
        store = WeightStore(path.parent, self.weights_file(path).name)
        for prefix, model in zip(("", self.prefix), models, strict=True):
            for name, value in model.graph.initializers.items():
                if prefix + name in self._read and value.const_value is not None:
                    tensor = _reference(store, prefix + name, value.const_value)
                    graph.initializer.append(tensor)
        graph.initializer.extend(self.constants)
        opsets = {
            "" if domain == "ai.onnx" else domain: version
            for model in models
            for domain, version in model.opset_imports.items()
        }
        proto = onnx.ModelProto(
            ir_version=max(_FREE_WEIGHTS_IR_VERSION, *(each.ir_version for each in models)),
            opset_import=[make_opsetid(domain, version) for domain, version in opsets.items()],
            graph=graph,
        )
        with writing(path):
            path.write_bytes(proto.SerializeToString())
        return self.order

    @staticmethod
    def weights_file(path: Path) -> Path:
        """Return the weights file of a model written to this path."""
        return path.with_name(f"{path.name}.data")

    def _in_order(self) -> Iterator[ir.Node]:
        """Yield the nodes of both graphs that the comparisons depend on.

        A node of the quantized graph follows those that it reads or is compared with.
        """
        pairing = self.pairing
        needed = _ancestors(pairing.quantized, self._tensors, lambda name: bool(self._source(name)))
        taken = {pairing.float_of[name] for name in self._tensors}
        taken |= {self._source(name) for node in needed for name in reads(node, pairing.quantized)}
        needed |= _ancestors(pairing.original, taken - {""})
        rest = iter(pairing.original.nodes)
        place = {
            value.name: number
            for number, node in enumerate(pairing.original.nodes)
            for value in node.outputs
        }
        done = -1
        for node in pairing.quantized.nodes:
            if node not in needed:
                continue
            beside = [self._source(name) for name in reads(node, pairing.quantized)]
            beside += (pairing.float_of.get(value.name or "", "") for value in node.outputs)
            while done < max((place.get(name, -1) for name in beside), default=-1):
                done += 1
                before = next(rest)
                if before in needed:
                    yield before
            yield node

    def _source(self, tensor: str) -> str:
        """Return the float graph's tensor that is read instead of a quantized one; "" if none."""
        pairing = self.pairing
        is_computed = pairing.quantized.value[tensor].producer() is not None
        if self._wiring is Wiring.ACCUMULATED and is_computed:
            return ""
        return pairing.float_of[tensor] if pairing.is_taken_over(tensor) else ""

    def _add_quantized(self, node: ir.Node) -> None:
        """Add a node of the quantized graph, with Casts where it reads from the float graph."""
        names: dict[str, str] = {}
        for tensor in reads(node, self.pairing.quantized):
            source = self._source(tensor)
            there = self.pairing.original.dtype(source) if source else None
            here = self.pairing.quantized.dtype(tensor)
            if there is not None and here is not None and there != here:
                cast = f"{self.prefix}/{node.name}/{tensor}"
                source = self.add("Cast", [source], cast, to=here.value)
            names[tensor] = source or self.prefix + tensor
        self._read.update(names.values())
        proto = ir.serde.serialize_node(node)
        _rename(proto, self.prefix, names)
        self.nodes.append(proto)


def _rename(node: onnx.NodeProto, prefix: str, names: dict[str, str]) -> None:
    """Add a prefix to every name in a node, or replace it."""

    def renamed(name: str) -> str:
        return names.get(name, prefix + name) if name else ""

    pending = [node]
    while pending:
        each = pending.pop()
        each.name = prefix + each.name
        each.input[:] = [renamed(name) for name in each.input]
        each.output[:] = [prefix + name if name else "" for name in each.output]
        for attribute in each.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                for value in (*body.input, *body.output, *body.initializer, *body.value_info):
                    value.name = renamed(value.name)
                pending += body.node


def _ancestors(
    index: GraphIndex, tensors: Iterable[str], ends: Callable[[str], bool] = lambda _: False
) -> set[ir.Node]:
    """Return the nodes that tensors depend on, not looking beyond tensors that are ends."""
    nodes: set[ir.Node] = set()
    pending = [index.value[name].producer() for name in tensors]
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            names = (name for name in reads(node, index) if not ends(name))
            pending += (index.value[name].producer() for name in names)
    return nodes


def _reference(store: WeightStore, name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """Return a weight under another name; one in a file of the folder stays there."""
    found = onnx.TensorProto()
    if isinstance(tensor, ir.ExternalTensor):
        is_copied = Path(tensor.base_dir) != store.folder.absolute()
    else:  # there may be many small ones, and a file of them is slow to write
        is_copied = not is_small(tensor, _SMALL_BYTES)
    if is_copied:
        found.CopyFrom(store.reference(name, name, tensor))
    elif isinstance(tensor, ir.TensorProtoTensor):
        found.CopyFrom(tensor.raw)
    else:
        ir.serde.serialize_tensor_into(found, tensor)
    found.name = name
    return found
