"""A placement while rules decide on it: what is quantized, what stays float, and who said so.

Also what rules look at: who made a tensor and who reads it, through ops that only hand it on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._op_units import canonical, merge
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._quantization import Decision

_NO_RULE = "no rule"
# Ops in a row that only move values; where there are more, nothing is gained by following them.
_LONGEST_WAY = 100
# Ops in a row that a rule looks through.
_DEPTH = 10
# They fuse into the op before them on every engine, whether or not a dialect has to know.
_ALWAYS_FUSED = frozenset({"Clip", "Relu"})


@dataclass(frozen=True)
class RuleDecision:
    """Who decided on an op, and why.

    Attributes:
        rule: A rule's name, or that of whoever else did.
        reason: In words.
    """

    rule: str
    reason: str


_BETWEEN = RuleDecision("between", "what it reads is quantized")


@dataclass(frozen=True)
class Constraints:
    """What a user asked for; node names are those of the model.

    Attributes:
        only: Quantize these ops and what is between them; None leaves it to the rules.
        never: Leave these float.
        dynamic: Quantize inputs at run time where that is possible.
        why: Who says so of those, if it isn't the user.
    """

    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()
    dynamic: bool = False
    why: Mapping[str, RuleDecision] = field(default_factory=dict)

    def without(self, others: Mapping[str, RuleDecision]) -> Constraints:
        """The same with other ops that are to stay float, and why."""
        return replace(self, never=self.never.union(others), why={**self.why, **others})


@dataclass(frozen=True)
class OtherForms:
    """Ops that are to be neither static nor plain floats, and why.

    Attributes:
        dynamic: Those that are quantized at run time.
        unfused: Sums that the engine is kept from fusing.
    """

    dynamic: dict[str, RuleDecision] = field(default_factory=dict)
    unfused: dict[str, RuleDecision] = field(default_factory=dict)


@dataclass
class Draft:
    """What the rules have decided so far; the first word about an op stands.

    Args:
        planner: Which ops can be quantized, and what each needs.
        quant_type: To what.
        constraints: The user's.
        shares: Part of the work that each op does, by name; a guess from sizes.

    Attributes:
        extra: Places that no op's kernel asks for, by the rule that wants them.
        rule: Name of the rule that decides now.
    """

    planner: QuantizationPlanner
    quant_type: str
    constraints: Constraints = field(default_factory=Constraints)
    shares: Mapping[str, float] = field(default_factory=dict)
    extra: dict[Edge, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rule = ""
        self._chosen: dict[str, RuleDecision] = {}
        self._left: dict[str, RuleDecision] = {}
        self._other = OtherForms()
        self._served: dict[Edge, frozenset[str]] = {}
        self._written: set[str] = set()
        self._leading: set[str] | None = None  # what leads to integers; None if not known

    @property
    def _fused(self) -> frozenset[str]:
        return self.planner.dialect.fused_activations | _ALWAYS_FUSED

    @property
    def index(self) -> GraphIndex:
        """The graph."""
        return self.planner.index

    @property
    def version(self) -> tuple[int, ...]:
        """Grows with every decision: rules are asked again until nothing changes."""
        ops = (self._chosen, self._left, self._other.dynamic, self._other.unfused)
        return *map(len, ops), len(self.extra)

    def undecided(self, *op_types: str) -> list[ir.Node]:
        """Ops that can be quantized and that no rule has decided on yet, in the graph's order."""
        names = self.planner.units.keys() - self._chosen.keys() - self._left.keys()
        names -= self._other.dynamic.keys()
        nodes = [node for node in self.index.nodes if node.name in names]
        return [node for node in nodes if is_op(node, *op_types)] if op_types else nodes

    def can_be_dynamic(self) -> list[ir.Node]:
        """Ops that can be quantized at run time, and that no rule has decided on yet."""
        names = self.planner.may_be_dynamic - self._left.keys()
        names -= self._chosen.keys() | self._other.dynamic.keys()
        return [node for node in self.index.nodes if node.name in names]

    def make_dynamic(self, node: ir.Node, reason: str) -> None:
        """Quantize the input of an op at run time, unless something else was decided."""
        name = node.name or ""
        if name not in self._left and name not in self._chosen:
            self._other.dynamic.setdefault(name, RuleDecision(self.rule, reason))

    def keep_apart(self, node: ir.Node, reason: str) -> None:
        """Leave an op float that is kept from being fused, unless it is quantized."""
        if node.name not in self._chosen and node.name not in self.constraints.never:
            self._other.unfused.setdefault(node.name or "", RuleDecision(self.rule, reason))

    @property
    def has_dynamic(self) -> bool:
        """Whether an input is quantized at run time."""
        return bool(self._other.dynamic)

    def choose(self, node: ir.Node, reason: str) -> None:
        """Quantize an op, unless it is to stay float."""
        name = node.name or ""
        if name in self._left or name in self._chosen or name not in self.planner.units:
            return
        if name in self._other.dynamic:
            return
        self._chosen[name] = RuleDecision(self.rule, reason)
        self._written |= self.planner.units[name].outputs
        if is_op(node, *WEIGHTED_OPS):
            self._leading = None

    def leave(self, node: ir.Node, reason: str, rule: str = "") -> None:
        """Leave an op float, unless it is quantized already; `rule` is the current one."""
        name = node.name or ""
        if name not in self._chosen and name not in self._left and name not in self._other.dynamic:
            self._left[name] = RuleDecision(rule or self.rule, reason)
            if name in self.planner.units:
                self._leading = None

    def add(self, edge: Edge, served: Collection[str]) -> None:
        """Let one reader see a quantized value, though it has no integer kernel.

        Args:
            edge: The reader.
            served: Quantized ops that it is there for: if one stays float, so does the edge.
        """
        if edge.node not in self.constraints.never and self.constraints.only is None:
            self.extra.setdefault(edge, self.rule)
            self._served.setdefault(edge, frozenset(served))

    def is_chosen(self, node: ir.Node | None) -> bool:
        """Whether an op is quantized."""
        return node is not None and node.name in self._chosen

    def is_left(self, node: ir.Node | None) -> bool:
        """Whether an op is to stay float."""
        return node is not None and node.name in self._left

    def activations(self, node: ir.Node) -> list[str]:
        """The tensors that an op would read quantized and that are not constants."""
        places = self.planner.units.get(node.name or "", Placement())
        tensors = dict.fromkeys(edge.tensor for edge in places.edges if edge.node == node.name)
        return [tensor for tensor in tensors if not self.index.is_constant(tensor)]

    def is_integer(self, tensor: str) -> bool:
        """Whether a tensor is quantized already: made by a quantized op, or read by one."""
        return self.made_by_chosen(tensor) is not None or self._read_by_chosen(tensor)

    def made_by_chosen(self, tensor: str) -> ir.Node | None:
        """The quantized op that a tensor comes from: through its activation, or ops that move."""
        for _ in range(_LONGEST_WAY):
            node = self.index.value[tensor].producer()
            if node is None or (self.is_chosen(node) and node.name not in self.planner.passthrough):
                return node
            moves = node.name in self.planner.passthrough and not self.is_left(node)
            if not (moves or is_op(node, *self._fused)):
                return None
            tensor = self.index.reads(node)[0]
        return None

    def is_written(self, tensor: str) -> bool:
        """Whether a tensor is quantized whoever else reads it."""
        return tensor in self._written or self._read_by_chosen(tensor)

    def leads_to_integers(self, tensor: str) -> bool:
        """Whether ops that can be quantized lead from here to a weighted op that is."""
        if self._leading is None:
            self._leading = self._find_leading()
        return tensor in self._leading

    def _find_leading(self) -> set[str]:
        found: set[str] = set()
        for node in reversed(self.index.nodes):
            leads = self.is_chosen(node) and is_op(node, *WEIGHTED_OPS)
            if not leads and any(value.name in found for value in node.outputs):
                passes = node.name in self.planner.units and not self.is_left(node)
                leads = passes or is_op(node, *self._fused)
            if leads:
                found.update(self.index.reads(node))
        return found

    @property
    def chosen(self) -> frozenset[str]:
        """Names of the ops that are quantized by calibration."""
        return frozenset(self._chosen)

    @property
    def quantized(self) -> frozenset[str]:
        """Names of the ops that are quantized, by calibration or at run time."""
        return self.chosen.union(self._other.dynamic)

    def only(self, names: Collection[str]) -> Placement:
        """What the decisions come to if only these ops are quantized, and what moves between."""
        passthrough = self.planner.passthrough.keys() & self._chosen.keys()
        follow = [name for name in passthrough if not is_op(self.index.node[name], "Concat")]
        dynamic = self._other.dynamic.keys() & set(names)
        return self._placed({*names, *follow} - dynamic, dynamic)

    @property
    def candidate_edges(self) -> Placement:
        """Every place that the decisions, or a part of them, can come to."""
        if self._chosen.keys().isdisjoint(self.planner.compute):
            return self.placement()  # what only moves values has nothing but constants to move
        chosen = (self.planner.units[name] for name in self._chosen)
        return merge([self.placement(), *chosen])

    def placement(self) -> Placement:
        """What the decisions come to."""
        return self.without(())

    def without(self, names: Collection[str]) -> Placement:
        """What they come to if these ops are left float after all."""
        kept = [name for name in self._chosen if name not in names]
        dynamic = self._other.dynamic.keys() - set(names)
        placement = self._placed(kept, dynamic, self._other.unfused if dynamic else ())
        edges = [
            edge
            for edge, served in self._served.items()
            if edge.node not in names and served.issubset(kept)
        ]
        return canonical(self.index, placement | Placement.of(edges))

    def decisions(self, placement: Placement) -> tuple[Decision, ...]:
        """What was decided for every op, in the graph's order, if this placement is the result."""
        quantized = self.planner.quantized(placement)
        dynamic = {*placement.dynamic}
        dynamic |= self._other.dynamic.keys() & (self.planner.stored(placement) - quantized)
        found = []
        for node in self.index.nodes:
            name = node.name or ""
            if name in dynamic:
                why = self._other.dynamic[name]
                found.append(Decision(name, node.op_type, True, why.rule, why.reason, dynamic=True))
                continue
            is_whole = name in quantized and self._is_whole(name, placement)
            if not is_whole and name in placement.unfused:
                why = self._other.unfused[name]
                found.append(Decision(name, node.op_type, False, why.rule, why.reason))
                continue
            decision = self._chosen.get(name, _BETWEEN) if is_whole else self._why_float(name)
            if is_whole or not is_op(node, *self._fused):
                found.append(Decision(name, node.op_type, is_whole, decision.rule, decision.reason))
        return tuple(found)

    def _placed(
        self,
        names: Collection[str],
        dynamic: Collection[str] = (),
        unfused: Collection[str] = (),
    ) -> Placement:
        """What these ops need; a Concat that was chosen has its operands quantized for itself.

        Where pairs are lifted that comes by itself; elsewhere ops only follow what they move.
        """
        placement = self.planner.placement(names, dynamic=dynamic, unfused=unfused)
        if self.planner.dialect.propagates_dq:
            return placement
        joins = [
            self.planner.passthrough[name]
            for name in self.planner.passthrough.keys() & set(names)
            if is_op(self.index.node[name], "Concat")
        ]
        return canonical(self.index, merge([placement, *joins]))

    def _is_whole(self, name: str, placement: Placement) -> bool:
        """Whether an op that reads integers was meant to, or writes them as its kernel needs."""
        return name in self._chosen or self.planner.units[name].outputs <= placement.outputs

    def _why_float(self, name: str) -> RuleDecision:
        if name in self._left:
            return self._left[name]
        if name in self.planner.left_float:
            return RuleDecision("no kernel", self.planner.left_float[name])
        if name in self._chosen:
            return RuleDecision("follows", "what it moves is not quantized")
        return RuleDecision(_NO_RULE, "it would gain nothing: what it reads or feeds is float")

    def _read_by_chosen(self, tensor: str) -> bool:
        return any(
            edge.node in self._chosen
            and edge.node not in self.planner.passthrough
            and edge in self.planner.units[edge.node].edges
            for edge in self.index.readers(tensor)
        )


@dataclass(frozen=True)
class Rule:
    """One reason to quantize something, or not to.

    Attributes:
        name: For tables and messages.
        reason: Why the rule is there.
        decide: Looks at a draft and decides what it knows about.
    """

    name: str
    reason: str
    decide: Callable[[Draft], None]

    def apply(self, draft: Draft) -> None:
        """Let the rule decide; it is applied again when others have decided more."""
        draft.rule = self.name
        self.decide(draft)


def rule(name: str, reason: str) -> Callable[[Callable[[Draft], None]], Rule]:
    """Make a rule of the decorated function; see `Rule` for the arguments."""
    return lambda decide: Rule(name, reason, decide)


def readers_through(index: GraphIndex, tensor: str, passing: Collection[str]) -> list[ir.Node]:
    """Who reads a tensor, or what these ops make of it, at most ten of them in a row.

    Only what goes in as data is followed, not shapes and axes.
    """
    found: dict[str, ir.Node] = {}
    layer, seen = [tensor], {tensor}
    for _ in range(_DEPTH + 1):
        behind = []
        for name in layer:
            for edge in index.readers(name):
                node = index.node.get(edge.node)
                if node is None:
                    continue
                if not is_op(node, *passing):
                    found.setdefault(edge.node, node)
                elif edge.position == 0:
                    behind += [output.name for output in node.outputs if output.name]
        layer = [name for name in dict.fromkeys(behind) if name not in seen]
        seen.update(layer)
    return list(found.values())


def source_through(index: GraphIndex, tensor: str, passing: Collection[str]) -> ir.Node | None:
    """Who made a tensor, before these ops handed it on: along the data only.

    Returns:
        The first op that is none of these; None for inputs, constants and longer ways.
    """
    for _ in range(_DEPTH + 1):
        node = index.value[tensor].producer()
        if node is None or not is_op(node, *passing):
            return node
        if not node.inputs or node.inputs[0] is None:
            return None
        tensor = index.reads(node)[0]
    return None


def sources_through(index: GraphIndex, node: ir.Node, passing: Collection[str]) -> list[ir.Node]:
    """Who made the floats that an op reads, before these ops worked on them, at most ten in a row.

    All operands are followed: scores are the first of an Add and the second of a Where.
    """
    found: dict[str, ir.Node] = {}
    layer, seen = [node], {node.name}
    for _ in range(_DEPTH + 1):
        before = [
            producer
            for each in layer
            for name in index.reads(each)
            if index.is_float(name) and (producer := index.value[name].producer()) is not None
        ]
        layer = []
        for producer in before:
            if producer.name in seen:
                continue
            seen.add(producer.name)
            if is_op(producer, *passing):
                layer.append(producer)
            else:
                found[producer.name or ""] = producer
    return list(found.values())
