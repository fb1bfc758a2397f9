"""Converting a model between float32, float16 and bfloat16, and emulating half precision.

The emulation is for engines without half-precision kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph._editing import add_constant, bypass, insert_cast
from qdqtune.graph._index import FreeNames, name_nodes, value_names, values_in
from qdqtune.graph._op_classes import COPY_OPS, DEQUANTIZE, HALF_TYPES, QUANTIZE, dtype_of, is_op
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._precision_rules import (
    DTYPE,
    SENSITIVE_OPS,
    Change,
    Keeper,
    Slots,
    choose_type,
    chooses_type,
    slots,
    takes_any_type,
)
from qdqtune.graph._shapes import infer_shapes
from qdqtune.graph._weights import constant_of, retyped
from qdqtune.records._precision import Precision, PrecisionReport

# Ops that join or pad values, besides those with one input.
_PASSTHROUGH_OPS = COPY_OPS | {"Concat", "DepthToSpace", "Pad", "SpaceToDepth"}
# Ops whose results are numbers that they read, perhaps with another sign, or zeros.
_ROUNDED_OPS = _PASSTHROUGH_OPS | {"Abs", "GlobalMaxPool", "MaxPool", "Neg", "Relu"}

_SUFFIX = {dtype: precision.value for precision, dtype in DTYPE.items()}


class Plan:
    """The types of a converted model.

    Args:
        keeper: Finds the nodes that keep their types.
        keep_io: Whether inputs and outputs keep their types.

    Attributes:
        kept: Name to reason for kept nodes.
        converted: Names of nodes that change.
        saturated: Names of constants whose values are clipped to the new range: masks and bounds.
        given: The new type of every affected value; of a constant, readers of another type get a
            copy.
    """

    def __init__(self, keeper: Keeper, *, keep_io: bool) -> None:
        change = self.change = keeper.change
        self._graph = keeper.model.graph
        self._keep_io = keep_io
        self._slots = keeper.slots
        self.kept = keeper.kept()
        self._stays = set(self.kept)
        # When converting to float32 all other types are replaced, so keeping a node gains nothing.
        if change.target != ir.DataType.FLOAT:
            candidates = [node for node in self._graph if self._could_stay(node)]
            self._stays.update(node.name or "" for node in candidates)
            self._release_beside_changes(candidates)
        self.given = {
            value: self._new_type(value)
            for value in values_in(self._graph)
            if change.concerns(value)
        }
        self.saturated = tuple(
            value.name or ""
            for value in self.given
            if value in keeper.saturating
            and constant_of(value) is not None
            and change.target in self._wanted_types(value)
        )
        self.converted = tuple(
            name
            for node in self._graph
            if (name := node.name or "") not in self._stays
            and self._slots_of(node).concerned
            and (not chooses_type(node) or self.given.get(node.outputs[0]) == change.target)
        )

    def wanted(self, node: ir.Node, position: int) -> ir.DataType | None:
        """Return the type that a node needs on an affected input; None if any will do."""
        if node.graph is self._graph and node.name not in self.kept:
            if takes_any_type(node, position):
                return None
            if node.name not in self._stays and position in self._slots_of(node).input_set:
                return self.change.target
        value = node.inputs[position]
        assert value is not None
        return dtype_of(value)

    def wanted_outside(self, value: ir.Value) -> ir.DataType | None:
        """Return the type that callers of the model expect of an affected output."""
        return dtype_of(value) if self._keep_io else self.change.target

    def _slots_of(self, node: ir.Node) -> Slots:
        return self._slots.get(node, Slots(whole=True))

    def _new_type(self, value: ir.Value) -> ir.DataType:
        producer, old = value.producer(), dtype_of(value)
        if constant_of(value) is not None:
            changes = True
        elif producer is None:
            changes = not self._keep_io
        else:
            movable = self._slots_of(producer).outputs if producer.name not in self._stays else ()
            changes = value.index() in movable
        if changes and _readers_decide(value):
            changes = self._wanted_types(value) == {self.change.target}
        assert old is not None
        return self.change.target if changes else old

    def _wanted_types(self, value: ir.Value) -> set[ir.DataType | None]:
        wanted = {self.wanted(user, position) for user, position in value.uses()}
        if value.is_graph_output():
            wanted.add(self.wanted_outside(value))
        return wanted - {None}

    def _release_beside_changes(self, candidates: Iterable[ir.Node]) -> None:
        """Let those candidates change that have a neighbour of the new type.

        All are initially assumed to stay, so that adjacent ones can.
        """
        pending = list(candidates)
        while pending:
            node = pending.pop()
            name = node.name or ""
            if name not in self._stays or name in self.kept or self._is_among_staying(node):
                continue
            self._stays.remove(name)
            pending += [user for output in node.outputs for user, _ in output.uses()]
            producers = [value.producer() for value in node.inputs if value is not None]
            pending += [producer for producer in producers if producer is not None]

    def _could_stay(self, node: ir.Node) -> bool:
        """Whether a node only moves or compares values: between kept nodes, it needs no Cast."""
        found = self._slots_of(node)
        # A QuantizeLinear follows its DequantizeLinear: engines look for equal scales.
        if not found.concerned or chooses_type(node) or is_op(node, QUANTIZE):
            return False
        return is_op(node, *_PASSTHROUGH_OPS) or not found.outputs

    def _is_among_staying(self, node: ir.Node) -> bool:
        return all(
            self._new_type(value) == dtype_of(value)
            for value in node.inputs
            if value is not None and self.change.concerns(value) and not _readers_decide(value)
        ) and not any(
            self.change.target in self._wanted_types(value)
            for value in node.outputs
            if self.change.concerns(value)
        )


def _readers_decide(value: ir.Value) -> bool:
    """Whether a value's type follows its readers: a constant, or a result whose node chooses it."""
    producer = value.producer()
    return constant_of(value) is not None or (producer is not None and chooses_type(producer))


class Retyping:
    """Applies a plan to a model.

    Args:
        model: The model that the plan is for.
        plan: The plan.
    """

    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self._graph = model.graph
        self._graphs = tuple(model.graphs())
        self._plan = plan
        self._names = FreeNames(value_names(model))
        self._node_names = FreeNames(node.name for graph in self._graphs for node in graph)
        self._versions: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def apply(self) -> bool:
        """Apply the plan; returns whether anything changed."""
        given = self._plan.given
        casts = [node for node in self._graph if is_op(node, "Cast") and not _is_idle(node)]
        values = [value for value, dtype in given.items() if dtype != dtype_of(value)]
        uses = [
            (node, position, wanted)
            for value, dtype in given.items()
            for node, position in value.uses()
            if (wanted := self._plan.wanted(node, position)) not in (None, dtype)
        ]
        outputs = [
            (graph, position, outside)
            for graph in self._graphs
            for position, value in enumerate(graph.outputs)
            if value in given and (outside := self._wanted_output(graph, value)) != given[value]
        ]
        for value in values:
            _retype(value, given[value])
        for node, position, dtype in uses:
            source = node.inputs[position]
            assert source is not None
            node.replace_input_with(position, self._version(source, dtype))
        for graph, position, dtype in outputs:
            self._convert_output(graph, position, dtype)
        bypassed = [bypass(cast) for cast in casts if _is_idle(cast)]
        return bool(values or uses or outputs) or any(bypassed)

    def _wanted_output(self, graph: ir.Graph, value: ir.Value) -> ir.DataType:
        dtype = self._plan.wanted_outside(value) if graph is self._graph else dtype_of(value)
        assert dtype is not None  # it is one of those to be replaced, or their replacement
        return dtype

    def _version(self, value: ir.Value, dtype: ir.DataType, *, own: bool = False) -> ir.Value:
        """Return the value in another type; `own` requests one that nothing else uses."""
        known = self._versions.get((value, dtype))
        if known is not None:
            return known
        source, tensor = _before_cast(value), constant_of(value)
        if not own and tensor is None and source is not None and dtype_of(source) == dtype:
            version = source
        else:
            name = self._names.new(f"{value.name}_{_SUFFIX[dtype]}")
            if tensor is not None:
                version = add_constant(self._graph, name, retyped(tensor, dtype, name))
            else:
                node_name = self._node_names.new(f"Cast_{name}")
                version = insert_cast(self._graph, value, dtype, name, node_name)
        self._versions[value, dtype] = version
        return version

    def _convert_output(self, graph: ir.Graph, position: int, dtype: ir.DataType) -> None:
        """Convert an output, which keeps its name: the previous value is renamed."""
        value = graph.outputs[position]
        if graph is not self._graph:
            graph.outputs[position] = self._version(value, dtype)
            return
        version = self._version(value, dtype, own=True)
        graph.outputs[position] = version
        if version.name != value.name and not value.is_graph_output():
            name, suffix = value.name, _SUFFIX[self._plan.given[value]]
            value.name = self._names.new(f"{name}_{suffix}")
            version.name = name


def _retype(value: ir.Value, dtype: ir.DataType) -> None:
    """Change the type of a value, in place."""
    producer, tensor = value.producer(), constant_of(value)
    if tensor is not None:
        tensor = retyped(tensor, dtype, value.name)
    if producer is None:
        value.const_value = tensor
    else:
        value.const_value = None
        if tensor is None:
            set_output_type(producer, dtype)
        else:
            producer.attributes.clear()
            producer.attributes["value"] = ir.AttrTensor("value", tensor)
    value.type = ir.TensorType(dtype)


def _is_idle(cast: ir.Node) -> bool:
    source = cast.inputs[0]
    return source is not None and dtype_of(source) == dtype_of(cast.outputs[0])


def _before_cast(value: ir.Value) -> ir.Value | None:
    """Return the input of a Cast to float32 that computes a value, since it lost nothing."""
    cast = value.producer()
    if cast is None or not is_op(cast, "Cast") or dtype_of(value) != ir.DataType.FLOAT:
        return None
    return cast.inputs[0]


def set_output_type(node: ir.Node, dtype: ir.DataType) -> None:
    """Change the attribute that sets the float type of a node's output."""
    if is_op(node, "ConstantOfShape"):
        attribute = node.attributes.get("value")
        if attribute is None:
            tensor: ir.TensorProtocol = ir.tensor([0.0], dtype=dtype)
        else:
            tensor = retyped(attribute.as_tensor(), dtype, None)
        node.attributes["value"] = ir.AttrTensor("value", tensor)
    elif chooses_type(node):
        choose_type(node, dtype)
    elif is_op(node, DEQUANTIZE) and "output_dtype" in node.attributes:
        node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", dtype.value)


# Before opset 7, ops broadcast differently, and types are written in another form.
_OLDEST_OPSET = 7
# Conv and pooling accept bfloat16 from opset 22 on; engines don't support much newer opsets.
_NEWEST_OPSET = 22
# Before this version of the format, weights had to be listed among the inputs.
_FREE_WEIGHTS_IR_VERSION = 4

_SMALL_BYTES = 1 << 16


def convert_precision(
    model: ir.Model,
    precision: Precision,
    *,
    keep_io: bool = True,
    keep_nodes: Collection[str] = (),
    keep_ops: Collection[str] | None = None,
    is_typed: bool = False,
) -> PrecisionReport:
    """Convert a model in place.

    A model that is already converted is not changed. Weights that are also listed as inputs are
    removed from the inputs: as defaults that may be overridden they could not be converted.

    Args:
        model: A valid model, with or without Q/DQ.
        precision: float16 or bfloat16, applied where that is safe; or float32, applied everywhere.
        keep_io: Whether inputs and outputs keep their types; otherwise all of them are converted.
        keep_nodes: Names of nodes to keep.
        keep_ops: Op types to keep; None means `SENSITIVE_OPS` when converting to half
            precision.
        is_typed: Whether the types of its values have been inferred.

    Returns:
        What was changed, and what was kept and why.

    Raises:
        UsageError: If a node does not exist.
        ModelError: If the model needs another opset and can't be converted to it.
    """
    fixed = passes.RemoveInitializersFromInputsPass()(model)
    if fixed.modified:
        model.ir_version = max(model.ir_version, _FREE_WEIGHTS_IR_VERSION)
    name_nodes(model)
    if fixed.modified or not is_typed:
        infer_shapes(model)
    casts = _count_casts(model)
    target = DTYPE[precision]
    steps = [Change(HALF_TYPES - {target}, ir.DataType.FLOAT, _opset(model))]
    report = PrecisionReport(precision, modified=bool(fixed.modified))
    if precision is not Precision.FP32:
        steps.append(Change(frozenset({ir.DataType.FLOAT}), target, _opset(model)))
        needed = _needed_opset(model, steps[-1])
        if raise_opset(model, needed):
            name_nodes(model)
            steps = [replace(step, opset=needed) for step in steps]
            report = replace(report, opset=needed, modified=True)
    for change in steps:
        if change is not steps[-1] and not _is_in(change, model):
            continue
        sensitive = SENSITIVE_OPS if change.target in HALF_TYPES else ()
        ops = sensitive if keep_ops is None else keep_ops
        plan = Plan(Keeper(model, change, keep_nodes, ops), keep_io=keep_io)
        modified = Retyping(model, plan).apply()
        report = replace(
            report,
            converted=tuple(dict.fromkeys((*report.converted, *plan.converted))),
            kept={**report.kept, **plan.kept},
            saturated=(*report.saturated, *plan.saturated),
            modified=report.modified or modified,
        )
    return replace(report, casts=_count_casts(model) - casts)


def _is_in(change: Change, model: ir.Model) -> bool:
    """Whether a model contains a type that is to be replaced."""
    return any(map(change.concerns, values_in(model.graph)))


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", 1)


def _needed_opset(model: ir.Model, change: Change) -> int:
    """Return the opset in which ops support the new type; for float16 only Q/DQ matters."""
    needed = max(change.opset, _OLDEST_OPSET)
    for node in model.graph:
        if change.target == ir.DataType.FLOAT16 and not is_op(node, QUANTIZE, DEQUANTIZE):
            continue
        for opset in range(needed, _NEWEST_OPSET + 1):
            if slots(node, replace(change, opset=opset)).whole:
                needed = opset
                break
    return needed


def _count_casts(model: ir.Model) -> int:
    return sum(is_op(node, "Cast") for node in model.graph)


def compute_in_float32(model: ir.Model) -> dict[str, str]:
    """Make every standard op of a model compute in float32, in place.

    Each half-precision result that can differ is rounded back by a pair of Casts behind it, so the
    numbers are those of half precision, including overflows. Inputs and outputs become float32 and
    keep their names.

    Args:
        model: A valid model with named nodes and inferred types.

    Returns:
        Node name to the name of its rounded result.
    """
    graph = model.graph
    change = Change(HALF_TYPES, ir.DataType.FLOAT, model.opset_imports.get("", 1))
    nodes = [node for node in graph if not is_op(node, "Cast", "Constant")]
    found = {node: movable for node in nodes if (movable := slots(node, change)).whole}
    _widen_small_constants(graph, found)
    wide: dict[ir.Value, ir.Value] = {}
    rounded: dict[ir.Node, ir.Value] = {}
    for value in graph.inputs:
        if change.concerns(value):
            _round(value, graph, wide)
    for node, movable in found.items():
        for position in movable.inputs:
            source = node.inputs[position]
            assert source is not None
            # A result that is not rounded is its own float32 form. Replacing an input takes time
            # that grows with the number of inputs.
            if wide.get(source) is not source and (
                dtype_of(source) in HALF_TYPES or source in wide
            ):
                node.replace_input_with(position, _widened(source, graph, wide))
        for position in movable.outputs:
            set_output_type(node, ir.DataType.FLOAT)
            result = node.outputs[position]
            if is_op(node, *_ROUNDED_OPS) and _is_read_wide(result, found):
                result.type = ir.TensorType(ir.DataType.FLOAT)
                wide[result] = result
            else:
                rounded[node] = _round(result, graph, wide)
    for position, value in enumerate(graph.outputs):
        if value in wide or change.concerns(value):
            _widen_output(graph, position, wide)
    return {node.name or "": value.name or "" for node, value in rounded.items()}


def _widen_small_constants(graph: ir.Graph, found: Mapping[ir.Node, Slots]) -> None:
    """Store constants that nothing reads in half precision in float32; no number changes.

    A Cast for each would also work, but a model can have 100,000 of them.
    """
    for value in graph.initializers.values():
        tensor = value.const_value
        if (
            tensor is not None
            and tensor.dtype in HALF_TYPES
            and tensor.nbytes <= _SMALL_BYTES
            and not value.is_graph_input()
            and not value.is_graph_output()
            and _is_read_wide(value, found)
        ):
            value.const_value = retyped(tensor, ir.DataType.FLOAT, value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)


def _is_read_wide(value: ir.Value, found: Mapping[ir.Node, Slots]) -> bool:
    """Whether all readers of a value will read it in float32."""
    return all(
        node in found and position in found[node].input_set for node, position in value.uses()
    )


def _round(value: ir.Value, graph: ir.Graph, wide: dict[ir.Value, ir.Value]) -> ir.Value:
    """Make a value float32, and give its readers the value rounded to half precision."""
    dtype = dtype_of(value)
    assert dtype is not None
    value.type = ir.TensorType(ir.DataType.FLOAT)
    readers = list(value.uses())
    narrow = _cast(value, dtype, graph)
    again = _cast(narrow, ir.DataType.FLOAT, graph)
    wide[narrow] = wide[value] = again
    for node, position in readers:
        node.replace_input_with(position, narrow)
    return again


def _widened(value: ir.Value, graph: ir.Graph, wide: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in wide:
        wide[value] = _cast(value, ir.DataType.FLOAT, graph)
    return wide[value]


def _widen_output(graph: ir.Graph, position: int, wide: dict[ir.Value, ir.Value]) -> None:
    value = graph.outputs[position]
    if value.is_graph_input():
        return
    again = _widened(value, graph, wide)
    graph.outputs[position] = again
    name, value.name = value.name, f"{value.name}_unrounded"
    again.name = name


def _cast(value: ir.Value, dtype: ir.DataType, graph: ir.Graph) -> ir.Value:
    name = f"{value.name}_as_{dtype.name.lower()}"
    return insert_cast(graph, value, dtype, name, f"Cast_{name}")
