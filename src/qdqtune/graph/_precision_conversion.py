"""Converting float types: a plan of every value's type, and as few Casts as possible."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from qdqtune.graph._editing import add_constant, bypass, insert_cast
from qdqtune.graph._index import FreeNames, value_names, values_in
from qdqtune.graph._op_classes import COPY_OPS, DEQUANTIZE, QUANTIZE, dtype_of, is_op
from qdqtune.graph._precision_rules import Keeper
from qdqtune.graph._precision_types import (
    DTYPE,
    Change,
    Slots,
    choose_type,
    chooses_type,
    takes_any_type,
)
from qdqtune.graph._weights import constant_of, retyped

# Ops that join or pad values, besides those with one input.
_PASSTHROUGH_OPS = COPY_OPS | {"Concat", "DepthToSpace", "Pad", "SpaceToDepth"}

_SUFFIX = {dtype: precision.value for precision, dtype in DTYPE.items()}


class Plan:
    """The types of a converted model.

    Args:
        model: The model, with named nodes and inferred types.
        change: The types to replace.
        keep_io: Whether inputs and outputs keep their types.
        keep_nodes: Names of nodes to keep.
        keep_ops: Op types to keep.

    Attributes:
        kept: Name to reason for kept nodes.
        converted: Names of nodes that change.
        saturating: Constants that hold masks or bounds beyond the range.
        given: The new type of every affected value; of a constant, readers of another type get a
            copy.

    Raises:
        UsageError: If a node does not exist.
    """

    def __init__(
        self,
        model: ir.Model,
        change: Change,
        *,
        keep_io: bool,
        keep_nodes: Collection[str],
        keep_ops: Collection[str],
    ) -> None:
        self.change = change
        self._graph = model.graph
        self._keep_io = keep_io
        keeper = Keeper(model, change, keep_nodes, keep_ops)
        self._slots = keeper.slots
        self.kept = keeper.kept()
        self.saturating = keeper.saturating
        # When converting to float32 all other types are replaced, so keeping a node gains nothing.
        between = self._in_between() if change.target != ir.DataType.FLOAT else set()
        self._stays = between.union(self.kept)
        self.given = {
            value: self._new_type(value)
            for value in values_in(self._graph)
            if change.concerns(value)
        }
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
        return self._slots.get(node.name or "", Slots(whole=True))

    def _new_type(self, value: ir.Value) -> ir.DataType:
        """Return a value's new type: readers decide for constants and nodes that choose."""
        producer = value.producer()
        is_free = constant_of(value) is not None
        if producer is not None and not is_free:
            movable = self._slots_of(producer).outputs if producer.name not in self._stays else ()
            changes = value.index() in movable
            is_free = changes and chooses_type(producer)
        else:
            changes = not self._keep_io
        if is_free:
            changes = self._wanted_types(value) == {self.change.target}
        old = dtype_of(value)
        assert old is not None
        return self.change.target if changes else old

    def _wanted_types(self, value: ir.Value) -> set[ir.DataType | None]:
        wanted = {self.wanted(user, position) for user, position in value.uses()}
        if value.is_graph_output():
            wanted.add(self.wanted_outside(value))
        return wanted - {None}

    def _in_between(self) -> set[str]:
        """Return nodes that only move or compare values between kept nodes: they need no Cast.

        All candidates are assumed to qualify; those with a neighbour that changes are removed until
        none is left.
        """
        quiet = {
            node.name or "": node
            for node in self._graph
            if node.name not in self.kept and self._could_stay(node)
        }
        pending = list(quiet.values())
        while pending:
            node = pending.pop()
            if node.name not in quiet or self._is_among_staying(node, quiet):
                continue
            del quiet[node.name]
            pending += [user for output in node.outputs for user, _ in output.uses()]
            producers = [value.producer() for value in node.inputs if value is not None]
            pending += [producer for producer in producers if producer is not None]
        return set(quiet)

    def _could_stay(self, node: ir.Node) -> bool:
        found = self._slots_of(node)
        # A QuantizeLinear follows its DequantizeLinear: engines look for equal scales.
        if not found.concerned or chooses_type(node) or is_op(node, QUANTIZE):
            return False
        return is_op(node, *_PASSTHROUGH_OPS) or not found.outputs

    def _is_among_staying(self, node: ir.Node, quiet: Collection[str]) -> bool:
        return all(
            self._arrives_unchanged(value, quiet)
            for value in node.inputs
            if value is not None and self.change.concerns(value)
        ) and all(
            self._leaves_unchanged(value, quiet)
            for value in node.outputs
            if self.change.concerns(value)
        )

    def _arrives_unchanged(self, value: ir.Value, quiet: Collection[str]) -> bool:
        producer = value.producer()
        if constant_of(value) is not None:
            return True
        if producer is None:
            return self._keep_io
        return producer.name in self.kept or producer.name in quiet or chooses_type(producer)

    def _leaves_unchanged(self, value: ir.Value, quiet: Collection[str]) -> bool:
        if value.is_graph_output() and not self._keep_io:
            return False
        return all(
            user.graph is not self._graph
            or user.name in self.kept
            or user.name in quiet
            or takes_any_type(user, position)
            or position not in self._slots_of(user).input_set
            for user, position in value.uses()
        )


class Retyping:
    """Applies a plan to a model.

    Args:
        model: The model that the plan is for.
        plan: The plan.

    Attributes:
        saturated: Names of constants whose values were clipped to the new range.
        modified: Whether anything changed.
    """

    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self._graph = model.graph
        self._graphs = tuple(model.graphs())
        self._plan = plan
        self._names = FreeNames(value_names(model))
        self._node_names = FreeNames(node.name for graph in self._graphs for node in graph)
        self._versions: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.saturated: list[str] = []
        self.modified = False

    def apply(self) -> None:
        """Apply the plan."""
        casts = [node for node in self._graph if is_op(node, "Cast") and not _is_idle(node)]
        uses = self._uses_in_other_types()
        outputs = self._outputs_in_other_types()
        for value, dtype in self._plan.given.items():
            if dtype != dtype_of(value):
                self._retype(value, dtype)
        for node, position, dtype in uses:
            source = node.inputs[position]
            assert source is not None
            node.replace_input_with(position, self._version(source, dtype))
        for graph, position, dtype in outputs:
            self._convert_output(graph, position, dtype)
        for cast in casts:
            if _is_idle(cast):
                self.modified |= bypass(cast)

    def _uses_in_other_types(self) -> list[tuple[ir.Node, int, ir.DataType]]:
        return [
            (node, position, wanted)
            for value, given in self._plan.given.items()
            for node, position in value.uses()
            if (wanted := self._plan.wanted(node, position)) not in (None, given)
        ]

    def _outputs_in_other_types(self) -> list[tuple[ir.Graph, int, ir.DataType]]:
        found = []
        for graph in self._graphs:
            for position, value in enumerate(graph.outputs):
                outside = graph is self._graph
                wanted = self._plan.wanted_outside(value) if outside else dtype_of(value)
                if value in self._plan.given and wanted not in (None, self._plan.given[value]):
                    found.append((graph, position, wanted))
        return found

    def _retype(self, value: ir.Value, dtype: ir.DataType) -> None:
        self.modified = True
        producer = value.producer()
        tensor = constant_of(value)
        if tensor is not None:
            self._note_saturation(value)
            tensor = retyped(tensor, dtype, value.name)
            if producer is None:
                value.const_value = tensor
            else:
                producer.attributes.clear()
                producer.attributes["value"] = ir.AttrTensor("value", tensor)
        elif producer is not None:
            set_output_type(producer, dtype)
        value.type = ir.TensorType(dtype)
        if producer is not None:
            value.const_value = None

    def _note_saturation(self, value: ir.Value) -> None:
        if value in self._plan.saturating:
            self.saturated.append(value.name or "")

    def _version(self, value: ir.Value, dtype: ir.DataType, *, own: bool = False) -> ir.Value:
        """Return the value in another type; `own` requests one that nothing else uses."""
        known = self._versions.get((value, dtype))
        if known is not None:
            return known
        self.modified = True
        source, tensor = _before_cast(value), constant_of(value)
        if not own and tensor is None and source is not None and dtype_of(source) == dtype:
            version = source
        else:
            name = self._names.new(f"{value.name}_{_SUFFIX[dtype]}")
            if tensor is not None:
                self._note_saturation(value)
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


def _is_idle(cast: ir.Node) -> bool:
    source = cast.inputs[0]
    return source is not None and dtype_of(source) == dtype_of(cast.outputs[0])


def _before_cast(value: ir.Value) -> ir.Value | None:
    """Return what a Cast made a value from, if it is one to float32 and thus lost nothing."""
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
