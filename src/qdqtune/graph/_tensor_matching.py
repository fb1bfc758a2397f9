"""Find the tensors of a model in another form of it, by structure and by name.

Another tool may have renamed tensors, folded or fused ops, left activations out, or added nodes.
From the inputs on, an op is found as a reader of what its own inputs were found to be. Where
several ops fit, names and weights decide; where none does, the op was added or had been absorbed by
the one before it, a name that both forms have starts anew, or several ops compute what one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op, uses_behind
from qdqtune.graph._op_likeness import constant_pairs, likeness, may_be_same
from qdqtune.records._placement import Edge

_ACTIVATIONS = ("Clip", "Relu")
# Ops that others can absorb if their second operand is a constant.
_ABSORBED = ("Add", "BatchNormalization", "Div", "Mul", "Sub")
# Ops that leave every value as it is, and that tools add, drop and move.
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
# Ops of one input that tools add, or that they take for what is not there.
_ADDED = frozenset({"Dropout", *_ACTIVATIONS, *_MOVES})
# Ops that ONNX defines by others: what has no kernel for them writes these instead.
_WRITTEN_IN_PARTS = ("Gelu", "GroupNormalization", "HardSwish", "LayerNormalization", "Mish")
_COMMUTATIVE = ("Add", "Max", "Min", "Mul", "Sum")
# No tool puts more such ops between two others.
_MOST_IN_A_ROW = 32


@dataclass(frozen=True)
class Match:
    """A tensor of the model that was found for one of the other form.

    Attributes:
        tensor: Its name.
        is_same: Whether it has the same values, maybe in another order; otherwise it only stands in
            the same place, such as before a bias that the model's own op adds.
    """

    tensor: str
    is_same: bool = True


@dataclass(frozen=True)
class Matching:
    """What was found of another form of a model in the model.

    Attributes:
        own: The model.
        other: The other form.
        tensors: The model's tensors, by those of the other form.
        nodes: The model's nodes, by those of the other form.
    """

    own: GraphIndex
    other: GraphIndex
    tensors: Mapping[str, Match]
    nodes: Mapping[str, str]

    def readers(self, edge: Edge) -> list[Edge]:
        """The edges of the model that are one of the other form.

        What the model doesn't have is passed: its readers count instead.
        """
        found: list[Edge] = []
        pending = [edge]
        while pending:
            each = pending.pop()
            match = self.tensors.get(each.tensor)
            if match is None:
                continue
            if not each.node:
                found += [own for own in self.own.readers(match.tensor)
                          if not own.node and own.position == each.position]  # fmt: skip
            elif each.node in self.nodes:
                found += self._reads(self.own.node[self.nodes[each.node]], match.tensor)
            else:
                node = self.other.node[each.node]
                result = node.outputs[0].name or ""
                if is_op(node, *_ADDED) and self.tensors.get(result) == match:
                    pending += self.other.readers(result)
        return found

    def _reads(self, node: ir.Node, tensor: str) -> list[Edge]:
        """Where a node of the model reads a tensor, in this or another order."""
        origin = _origin(self.own.value[tensor])
        return [
            Edge(value.name or "", node.name or "", position)
            for position, value in enumerate(node.inputs)
            if value is not None and _origin(value) is origin
        ]


def match_tensors(own: GraphIndex, other: GraphIndex, named: Mapping[str, str]) -> Matching:
    """Find the tensors of a model in another form of it.

    Args:
        own: The model.
        other: The other form, without Q/DQ, in the same opset.
        named: Tensors of the model by those of the other form that may be the same by name.
    """
    matcher = _Matcher(own, other, named)
    matcher.run()
    return Matching(own, other, matcher.found, matcher.nodes)


class _Matcher:
    def __init__(self, own: GraphIndex, other: GraphIndex, named: Mapping[str, str]) -> None:
        self._own = own
        self._other = other
        self._named = named
        self._used: set[str] = set()
        self.found: dict[str, Match] = {}
        self.nodes: dict[str, str] = {}

    def run(self) -> None:
        self._match_inputs()
        for node in self._other.nodes:
            reads = self._operands(node)
            if not reads:
                self._by_name(node, {v.name: v.name for v in node.outputs if v.name})
                continue
            own = self._own_op(node, reads)
            if own is not None:
                self._take(node, own)
            elif not self._by_name(node, self._named) and not self._in_parts(node):
                self._pass_on(node, reads)

    def _match_inputs(self) -> None:
        """Match inputs by name, or else by position."""
        theirs, ours = self._other.model.graph.inputs, self._own.model.graph.inputs
        names = {value.name for value in ours}
        for position, value in enumerate(theirs):
            found = value.name if value.name in names else None
            if found is None and len(theirs) == len(ours):
                found = ours[position].name
            if found:
                self.found[value.name or ""] = Match(found)

    def _operands(self, node: ir.Node) -> list[tuple[int, str]]:
        """The inputs of a node that are no constants, with their positions."""
        return [
            (position, value.name)
            for position, value in enumerate(node.inputs)
            if value is not None and value.name and not _constant(value)
        ]

    def _own_op(self, node: ir.Node, reads: list[tuple[int, str]]) -> ir.Node | None:
        """The model's op for one of the other form, among the readers of what that reads."""
        known = [(position, self.found[name].tensor) for position, name in reads
                 if name in self.found]  # fmt: skip
        if not known:
            return None
        start = self._own.value[known[0][1]]
        fitting = [own for own in self._of_model(start.uses()) if _fits(node, own, known)]
        if not fitting and not is_op(node, *_MOVES):
            readers = self._of_model(uses_behind(_origin(start), *_MOVES))
            origins = [(position, _origin(self._own.value[name]).name or "")
                       for position, name in known]  # fmt: skip
            fitting = [own for own in readers if _fits(node, own, origins, moved=True)]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        named = self._named.get(node.outputs[0].name or "")

        def rank(own: ir.Node) -> tuple[float, bool, bool]:
            is_named = any(value.name == named for value in own.outputs)
            return likeness(node, own), is_named, own.name not in self._used

        return max(fitting, key=rank)

    def _of_model(self, uses: Iterable[tuple[ir.Node, int]]) -> Iterable[ir.Node]:
        """The nodes of the main graph among readers."""
        graph = self._own.model.graph
        return dict.fromkeys(user for user, _ in uses if user.graph is graph)

    def _take(self, node: ir.Node, own: ir.Node) -> None:
        """Record that two ops are the same, and so are their results and constants."""
        self.nodes[node.name or ""] = own.name or ""
        self._used.add(own.name or "")
        for theirs, ours in zip(node.outputs, own.outputs, strict=False):
            if theirs.name and ours.name:
                self.found[theirs.name] = Match(_behind(theirs, ours).name or "")
        for theirs, ours in constant_pairs(node, own):
            self.found.setdefault(theirs.name or "", Match(ours.name or ""))

    def _by_name(self, node: ir.Node, named: Mapping[str, str]) -> bool:
        """Match results by name; returns whether one was found."""
        is_found = False
        for value in node.outputs:
            name = named.get(value.name or "")
            if name is None or name not in self._own.value:
                continue
            self.found[value.name or ""] = Match(name)
            maker = self._own.value[name].producer()
            if maker is not None and may_be_same(node, maker):
                self.nodes[node.name or ""] = maker.name or ""
                self._used.add(maker.name or "")
            is_found = True
        return is_found

    def _in_parts(self, last: ir.Node) -> bool:
        """Match ops that compute together what one of the model does, such as a HardSwish.

        They are known by what they read, which is found, and by the name of their result.
        """
        name = last.outputs[0].name or ""
        own = self._own.value[name].producer() if name in self._own.value else None
        if own is None or own.name in self._used or not is_op(own, *_WRITTEN_IN_PARTS):
            return False
        parts, sources = [last], set[str]()
        for part in parts:
            for _, source in self._operands(part):
                before = self._other.value[source].producer()
                if source in self.found:
                    sources.add(self.found[source].tensor)
                elif before is None or before.name in self.nodes:
                    return False
                elif before not in parts:
                    parts.append(before)
        reads = {value.name for value in own.inputs if value is not None and not _constant(value)}
        if len(parts) == 1 or sources != reads:
            return False
        self.found[name] = Match(name)
        self.nodes |= {part.name or "": own.name or "" for part in parts}
        self._used.add(own.name or "")
        return True

    def _pass_on(self, node: ir.Node, reads: list[tuple[int, str]]) -> None:
        """Let the result of an op that the model doesn't have stand for what it reads."""
        (_, source), *more = reads
        before = self.found.get(source)
        if more or before is None:
            return
        result = node.outputs[0].name or ""
        if is_op(node, *_ADDED):
            self.found[result] = before
        elif _is_absorbable(node):
            maker = self._other.value[source].producer()
            own_maker = self._own.value[before.tensor].producer()
            is_computed = _has_absorbed(node, maker, own_maker)
            self.found[result] = Match(before.tensor, is_computed)
            if is_computed:
                self.found[source] = Match(before.tensor, is_same=False)


def _fits(
    node: ir.Node, own: ir.Node, known: list[tuple[int, str]], *, moved: bool = False
) -> bool:
    """Whether an op of the model may be the same as one of the other form.

    Args:
        node: The other form's op.
        own: The model's.
        known: What the other form's reads, as far as that was found, with positions.
        moved: Whether values may be in another order: `known` is what they are before that.
    """
    if len(own.outputs) < len(node.outputs) or not may_be_same(node, own, moved=moved):
        return False
    values = [_origin(value) if value is not None and moved else value for value in own.inputs]
    reads = [value.name if value is not None else None for value in values]
    if is_op(node, *_COMMUTATIVE):
        return all(tensor in reads for _, tensor in known)
    return all(position < len(reads) and reads[position] == name for position, name in known)


def _origin(value: ir.Value) -> ir.Value:
    """What a value is a copy of, in this or another order."""
    for _ in range(_MOST_IN_A_ROW):
        producer = value.producer()
        before = producer.inputs[0] if producer is not None and is_op(producer, *_MOVES) else None
        if before is None:
            break
        value = before
    return value


def _behind(theirs: ir.Value, ours: ir.Value) -> ir.Value:
    """The model's result, behind what the other form's op has absorbed or leaves out."""
    if not is_op(ours.producer(), *WEIGHTED_OPS, "Add"):
        return ours
    absorbs = is_op(theirs.producer(), *WEIGHTED_OPS)
    kinds = _kinds_behind(theirs)
    while True:
        users = [user for user, _ in ours.uses()]
        if len(users) != 1 or ours.is_graph_output():
            return ours
        is_left_out = is_op(users[0], *_ACTIVATIONS) and kinds.isdisjoint(_ACTIVATIONS)
        is_absorbed = absorbs and _is_absorbable(users[0]) and users[0].op_type not in kinds
        if not (is_left_out or is_absorbed):
            return ours
        ours = users[0].outputs[0]


def _kinds_behind(value: ir.Value) -> set[str]:
    """The activations behind a value, and the ops that the one before it could absorb."""
    found: set[str] = set()
    pending = [value]
    for _ in range(_MOST_IN_A_ROW):
        if not pending:
            break
        for user, _ in pending.pop(0).uses():
            if is_op(user, *_ACTIVATIONS) or _is_absorbable(user):
                found.add(user.op_type)
            if user.outputs and (is_op(user, *_ADDED) or _is_absorbable(user)):
                pending.append(user.outputs[0])
    return found


def _has_absorbed(node: ir.Node, maker: ir.Node | None, own_maker: ir.Node | None) -> bool:
    """Whether the model's op computes what another op does behind the other form's."""
    if maker is None or own_maker is None or not is_op(own_maker, *WEIGHTED_OPS):
        return False
    if is_op(node, "BatchNormalization"):
        return True
    return is_op(node, "Add", "Sub") and len(maker.inputs) < len(own_maker.inputs)


def _constant(value: ir.Value) -> bool:
    return value.const_value is not None


def _is_absorbable(node: ir.Node) -> bool:
    """Whether an op may be folded into the weights and bias of the op before it."""
    operands = [value for value in node.inputs if value is not None]
    return is_op(node, *_ABSORBED) and sum(not _constant(value) for value in operands) == 1
