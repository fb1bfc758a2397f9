"""What the stand-in trtexec builds of a network: kernels, each with nodes and a simulated time.

The rules are those of TensorRT's guide to the placement of Q/DQ. A weighted op computes in low
precision if all that it multiplies is quantized; a Q fuses into the kernel before it, a DQ into
the one behind it, or else each is a kernel of its own.
"""

from __future__ import annotations

from tests.stand_ins.trtexec_merging import Kernel, merge_foreign, merge_siblings
from tests.stand_ins.trtexec_network import BYTES, BuildError, Network, Node

Q, DQ = "QuantizeLinear", "DequantizeLinear"
_WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_UNARY = {
    "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Elu",
    "Neg", "Erf", "Sqrt", "Exp", "Log", "Abs", "Reciprocal", "Cast", "PRelu", "Softplus", "Mish",
}  # fmt: skip
_POINTWISE = _UNARY | {
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Where",
    "Max",
    "Min",
    "BatchNormalization",
}
_NORMS = {
    "LayerNormalization", "Softmax", "ReduceMean", "ReduceSum", "InstanceNormalization",
    "GroupNormalization", "LogSoftmax", "ReduceMax",
}  # fmt: skip
_FREE = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}
_MOVES = {"Transpose", "Slice", "Concat", "Split", "Gather", "Pad", "Expand", "Resize", "Tile"}
_LOW = ("Int8", "FP8")

_FLOPS_PER_MS = {"Float": 4e9, "Half": 1e10, "BFloat16": 1e10, "Int8": 1.6e10, "FP8": 1.6e10}
_BYTES_PER_MS = 4e8
# Low precision pays for large products only.
_LOW_LAUNCH_MS = 0.0045


class Builder:
    """Fuses nodes.

    Args:
        network: The network, shapes known.
        half: Whether float kernels may compute in float16.
    """

    def __init__(self, network: Network, *, half: bool) -> None:
        self._net = network
        self._half = half
        self._nodes = network.nodes
        self._made_by: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for number, node in enumerate(self._nodes):
            for name in node.output:
                self._made_by[name] = number
            for name in dict.fromkeys(node.input):
                self._readers.setdefault(name, []).append(number)
        self._outputs = {value.name for value in network.model.graph.output}
        self._taken: set[int] = set()
        self._absorbed: set[tuple[int, int]] = set()
        self.kernels: list[Kernel] = []

    def build(self) -> list[Kernel]:
        """The kernels, in order of execution.

        Raises:
            BuildError: If there is none for something.
        """
        for number, node in enumerate(self._nodes):
            if number in self._taken or node.op_type in (Q, DQ):
                continue
            if node.op_type in _WEIGHTED:
                self._weighted(number)
            elif node.op_type in _POINTWISE | _NORMS:
                self._pointwise(number)
            else:
                self._single(number)
        for number, node in enumerate(self._nodes):
            untaken = node.op_type == Q and number not in self._taken
            if untaken or (node.op_type == DQ and self._is_needed(number)):
                self._alone(number)
        self.kernels.sort(key=lambda kernel: kernel.position)
        merged = merge_siblings(self.kernels, self._net.shapes)
        return merge_foreign(merged) if self._net.version < (9,) else merged

    def _weighted(self, number: int) -> None:
        node = self._nodes[number]
        sources = [self._dequantized(name, number) for name in node.input[:2]]
        weight_nodes, weight_terms, low = self._weight(node.input[1])
        first = sources[0]
        second_low = low if self._net.is_constant(node.input[1]) else self._low_of(sources[1])
        math = self._float_of(node.output[0])
        if first is not None and second_low:
            math = second_low
        if math == "Int8" and low and not any(Q in term for term in weight_nodes.values()):
            self._check_stored_weight(node)
        kernel = Kernel(
            "gemm" if node.op_type in ("Gemm", "MatMul") else "conv",
            [], [*weight_terms, node.name], [node.op_type], kind_of_math=math, position=number,
            weight=self._net.elements(node.input[1]) if low or weight_terms else 0,
        )  # fmt: skip
        kernel.nodes += [node.name]
        read = [node.input[0]]
        if not self._net.is_constant(node.input[1]):
            read.append(node.input[1])
        if math in _LOW:
            for source in sources:
                self._absorb(kernel, source, number)
        kernel.nodes += list(weight_nodes)
        last = self._extend(kernel, number, read)
        self._finish(kernel, read, last)
        kernel.work_ms += self._product_ms(node, math)
        if math in _LOW:
            kernel.fixed_ms = _LOW_LAUNCH_MS

    def _check_stored_weight(self, node: Node) -> None:
        """Seen in 8.6: int8 weights behind a lone DequantizeLinear don't build for MatMul."""
        if self._net.version < (10,) and node.op_type == "MatMul":
            raise BuildError(
                2,
                f"Assertion validateWeights(weights) failed in convertMyelinWeightsToFp32 for node "
                f"{node.name}.",
            )

    def _extend(self, kernel: Kernel, number: int, read: list[str]) -> int:
        """Takes what follows a weighted op into its kernel; returns the last node."""
        residual_is_low = True
        has_residual = False
        while (following := self._only_reader(number)) is not None:
            node = self._nodes[following]
            made = self._nodes[number].output[0]
            others = [n for n in node.input if n and n != made and not self._net.is_constant(n)]
            if node.op_type == Q:
                if kernel.kind_of_math in _LOW and residual_is_low:
                    return self._take(kernel, following)
                break
            if node.op_type in _UNARY or (node.op_type in _POINTWISE and not others):
                number = self._take(kernel, following)
                continue
            earlier = others and all(self._made_by.get(name, -1) < number for name in others)
            if node.op_type != "Add" or has_residual or not earlier or len(others) != 1:
                break
            has_residual = True
            source = self._dequantized(others[0], following)
            if kernel.kind_of_math in _LOW:
                residual_is_low = source is not None
                self._absorb(kernel, source, following)
            elif source is not None:  # the skip would be converted, and nothing won by it
                break
            read.append(others[0])
            number = self._take(kernel, following)
        return number

    def _pointwise(self, number: int) -> None:
        node = self._nodes[number]
        kind = "norm" if node.op_type in _NORMS else "pointwise"
        kernel = Kernel(kind, [node.name], [node.name], [node.op_type], position=number)
        kernel.kind_of_math = self._float_of(node.output[0])
        read = [name for name in node.input if name and not self._net.is_constant(name)]
        for name in read:
            self._absorb(kernel, self._dequantized(name, number), number)
        start = number
        while (following := self._only_reader(number)) is not None:
            after = self._nodes[following]
            made = self._nodes[number].output[0]
            others = [n for n in after.input if n and n != made and not self._net.is_constant(n)]
            if after.op_type == Q:
                number = self._take(kernel, following)
                break
            inside = all(self._made_by.get(name, -1) < start for name in others)
            if after.op_type not in _POINTWISE or not inside:
                break
            for name in others:
                self._absorb(kernel, self._dequantized(name, following), following)
            read += others
            number = self._take(kernel, following)
        self._finish(kernel, read, number)
        if kind == "norm":
            kernel.work_ms *= 2

    def _single(self, number: int) -> None:
        node = self._nodes[number]
        op = node.op_type
        kind = "free" if op in _FREE else "move" if op in _MOVES else "other"
        kind = "pool" if "Pool" in op else kind
        kernel = Kernel(kind, [node.name], [node.name], [op], position=number)
        kernel.kind_of_math = self._float_of(node.output[0])
        read = [name for name in node.input if name and not self._net.is_constant(name)]
        sources = [self._dequantized(name, number) for name in read]
        following = self._only_reader(number)
        followed = following is not None and self._nodes[following].op_type == Q
        commutes = op == "MaxPool" or kind in ("move", "free")
        last = number
        if sources and all(source is not None for source in sources) and (commutes or followed):
            for source in sources:
                self._absorb(kernel, source, number)
            kernel.kind_of_math = self._low_of(sources[0]) or "Int8"
        if followed and following is not None and (kernel.kind_of_math in _LOW or commutes):
            last = self._take(kernel, following)
        self._finish(kernel, read, last)
        if kind == "free" and last == number:
            kernel.fixed_ms = kernel.work_ms = 0.0

    def _alone(self, number: int) -> None:
        node = self._nodes[number]
        kernel = Kernel("qdq", [node.name], [node.name], [node.op_type], position=number)
        kernel.kind_of_math = self._float_of(node.output[0])
        self._finish(kernel, [node.input[0]], number)

    def _finish(self, kernel: Kernel, read: list[str], last: int) -> None:
        made = self._nodes[last].output[0]
        kernel.inputs = [(name, self._kind_read(kernel, name)) for name in dict.fromkeys(read)]
        kernel.outputs = [(made, self._kind_written(made))]
        kernel.position = last
        moved = sum(
            self._net.elements(name) * BYTES.get(kind, 1)
            for name, kind in (*kernel.inputs, *kernel.outputs)
        )
        kernel.work_ms += moved / _BYTES_PER_MS
        self.kernels.append(kernel)

    def _product_ms(self, node: Node, math: str) -> float:
        weight = self._net.shapes.get(node.input[1], ())
        made = self._net.elements(node.output[0])
        if _is_conv(node):
            depth = 1
            for size in weight[1:]:
                depth *= max(size, 1)
            channels = weight[1] if len(weight) > 1 else 1
        else:
            activation = self._net.shapes.get(node.input[0], (1,))
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            depth = channels = max(activation[0 if transposed else -1], 1) if activation else 1
        shape = self._net.shapes.get(node.output[0], ())
        columns = shape[1:2] if _is_conv(node) else shape[-1:]
        rows = made / max(*columns, 1, 1)
        tile, filled, least = (128, 32.0, 0.15) if math in _LOW else (64, 8.0, 0.25)
        rate = _FLOPS_PER_MS[math] * max(min(channels / filled, 1.0), least)
        # Rows are computed a tile at a time, whether they fill it or not; one alone needs none.
        wasted = -(-rows // tile) * tile / rows if rows > 1 else 1.0
        return 2.0 * made * depth * min(wasted, 8.0) / rate

    def _only_reader(self, number: int) -> int | None:
        made = self._nodes[number].output
        if len([name for name in made if name]) != 1 or made[0] in self._outputs:
            return None
        readers = self._readers.get(made[0], [])
        return readers[0] if len(readers) == 1 and readers[0] not in self._taken else None

    def _take(self, kernel: Kernel, number: int) -> int:
        node = self._nodes[number]
        self._taken.add(number)
        kernel.nodes.append(node.name)
        if node.op_type != Q:
            kernel.terms.append(node.name)
            kernel.ops.append(node.op_type)
        return number

    def _dequantized(self, tensor: str, reader: int) -> tuple[int, int] | None:
        """The DQ that a tensor comes from, over ops that move nothing, and who reads that."""
        number = self._made_by.get(tensor)
        while number is not None and self._nodes[number].op_type in _FREE:
            reader = number
            number = self._made_by.get(self._nodes[number].input[0])
        if number is None or self._nodes[number].op_type != DQ:
            return None
        return number, reader

    def _absorb(self, kernel: Kernel, source: tuple[int, int] | None, reader: int) -> None:
        if source is not None:
            self._absorbed.update((source, (source[0], reader)))
            kernel.nodes.append(self._nodes[source[0]].name)

    def _is_needed(self, number: int) -> bool:
        made = self._nodes[number].output[0]
        readers = self._readers.get(made, [])
        return made in self._outputs or any(
            (number, reader) not in self._absorbed for reader in readers
        )

    def _low_of(self, source: tuple[int, int] | None) -> str:
        if source is None:
            return ""
        return self._net.kinds.get(self._nodes[source[0]].input[0], "Int8")

    def _weight(self, tensor: str) -> tuple[dict[str, str], list[str], str]:
        """Nodes between a weight and its op, the terms of a name, and its type if quantized."""
        found: dict[str, str] = {}
        low = ""
        while tensor in self._net.folded:
            node = self._net.folded[tensor]
            if not node.input:
                break
            found[node.name] = node.op_type
            if node.op_type == DQ:
                low = self._net.kinds.get(node.input[0], "Int8")
            tensor = node.input[0]
        quantizing = [name for name, op in found.items() if op == Q]
        terms = [tensor, *quantizing] if tensor in self._net.weights else quantizing
        return found, terms if quantizing else [], low

    def _float_of(self, tensor: str) -> str:
        kind = self._net.kinds.get(tensor, "Float")
        return "Half" if kind == "Float" and self._half else kind

    def _kind_read(self, kernel: Kernel, tensor: str) -> str:
        source = self._dequantized(tensor, -1)
        if source is not None and self._nodes[source[0]].name in kernel.nodes:
            return self._low_of(source)
        return self._kind_written(tensor)

    def _kind_written(self, tensor: str) -> str:
        kind = self._net.kinds.get(tensor, "Float")
        is_border = tensor in self._outputs or tensor not in self._made_by
        return "Half" if kind == "Float" and self._half and not is_border else kind


def _is_conv(node: Node) -> bool:
    """Whether an op slides a window over its input."""
    return node.op_type in ("Conv", "ConvTranspose")
