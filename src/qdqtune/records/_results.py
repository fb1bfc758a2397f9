"""Base class of the results of public functions, and the results of the smaller ones."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from qdqtune.records._inputs import shape_text
from qdqtune.records._json_form import Record
from qdqtune.records._precision import PrecisionReport
from qdqtune.records._printable import printable

# Loaded by name when a notebook needs it: reports depend on records, never the reverse.
_NOTEBOOK = "qdqtune.report._notebook"
_LONGEST_LINE = 240


class Result(Record, ABC):
    """Base class of public results; a dataclass that inherits it is declared ``repr=False``.

    Their JSON form is what the command prints with ``--format json``.
    """

    @property
    @abstractmethod
    def headline(self) -> str:
        """The essentials, in one line."""

    @property
    def warning(self) -> str:
        """A warning that must not be overlooked; empty if there is none."""
        return ""

    def __repr__(self) -> str:
        shown = printable(" ".join(self.headline.split()))
        cut = shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]}…"
        return f"{type(self).__name__}({cut})"

    def _repr_html_(self) -> str:
        """The table that notebooks show."""
        html: str = importlib.import_module(_NOTEBOOK).html_of(self)
        return html


@dataclass(frozen=True)
class OptimizeCounts:
    """Node and weight counts before and after; control-flow bodies and functions are included.

    Attributes:
        before: Number of nodes of each op type before; Constant nodes don't count.
        after: Number of nodes of each op type after.
        no_ops: Removed nodes that passed their input on unchanged.
        duplicate_nodes: Removed nodes that computed the same as another one.
        duplicate_weights: Removed weights with the same values as another one.
        unused_functions: Removed functions that were never called.
        qdq: Number of quantization ops, which does not change.
    """

    before: Mapping[str, int]
    after: Mapping[str, int]
    no_ops: int = 0
    duplicate_nodes: int = 0
    duplicate_weights: int = 0
    unused_functions: int = 0
    qdq: int = 0

    @property
    def folded(self) -> int:
        """Nodes that were folded, absorbed (BatchNorms, biases), or removed as unused."""
        gone = sum(self.before.values()) - sum(self.after.values())
        return gone - self.no_ops - self.duplicate_nodes

    @property
    def changed(self) -> Mapping[str, tuple[int, int]]:
        """Op types whose number changed, with both numbers."""
        found = {
            op_type: (self.before.get(op_type, 0), self.after.get(op_type, 0))
            for op_type in sorted({*self.before, *self.after})
        }
        return {op_type: counts for op_type, counts in found.items() if counts[0] != counts[1]}


@dataclass(frozen=True, repr=False)
class OptimizeReport(Result):
    """Report of an optimized model.

    Attributes:
        output: The file written.
        counts: What changed.
        bytes_before: Size of the weights before.
        bytes_after: Size of the weights after.
    """

    KIND: ClassVar[str] = "optimization"
    JSON: ClassVar[str] = (
        "output nodes_before=counts.before nodes_after=counts.after folded=counts.folded "
        "no_ops=counts.no_ops duplicate_nodes=counts.duplicate_nodes "
        "duplicate_weights=counts.duplicate_weights unused_functions=counts.unused_functions "
        "qdq_nodes=counts.qdq weight_bytes_before=bytes_before weight_bytes_after=bytes_after"
    )

    output: Path
    counts: OptimizeCounts
    bytes_before: int
    bytes_after: int

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        before, after = sum(self.counts.before.values()), sum(self.counts.after.values())
        return f"{before} nodes before, {after} now, output {self.output}"


@dataclass(frozen=True, repr=False)
class ConvertReport(Result):
    """Report of `convert`.

    Attributes:
        output: The file written.
        conversion: The changes.
        sqnr_db: Signal-to-noise ratio per output against the original model; empty if unknown or if
            nothing was converted.
        overflow: Name of the first node whose result is no longer finite; empty if there is none.
    """

    KIND: ClassVar[str] = "conversion"
    JSON: ClassVar[str] = (
        "output precision=conversion.precision modified=conversion.modified "
        "converted=conversion.converted kept=conversion.kept saturated=conversion.saturated "
        "casts_added=conversion.casts raised_to_opset=conversion.opset output_sqnr_db=sqnr_db "
        "overflow=first_overflow"
    )

    output: Path
    conversion: PrecisionReport
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    overflow: str = ""

    @property
    def first_overflow(self) -> str | None:
        """The node of `overflow`; None if there is none."""
        return self.overflow or None

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        done = self.conversion
        return f"{len(done.converted)} ops in {done.precision.value}, output {self.output}"


EXCLUSION_TOOLS = ("onnxruntime", "modelopt", "nncf")
"""Tools that take nodes to exclude: `nodes_to_exclude` of ONNX Runtime's `quantize_static` and of
ModelOpt, and NNCF's `IgnoredScope`."""


class Proof(str, Enum):
    """How a model with new shapes was shown to work."""

    COMPARED = "compared"
    RUN = "run"
    INFERENCE = "inference"
    NONE = "none"


@dataclass(frozen=True)
class TensorDims:
    """One input or output.

    Attributes:
        name: Its name.
        dtype: Its element type; empty if it is not a tensor.
        dims: Sizes, symbols, and None for dims that have neither; None if the rank is unknown.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, repr=False)
class ShapesReport(Result):
    """The shapes of a model.

    Attributes:
        model: The file that was read.
        inputs: The inputs that must be fed.
        outputs: The outputs.
        symbols: Names of open input dims.
        output: The file written; None if none was.
        rewritten: Reshape nodes that got the new batch size.
        proof: How the written file was tested.
    """

    KIND: ClassVar[str] = "shapes"

    model: str
    inputs: tuple[TensorDims, ...]
    outputs: tuple[TensorDims, ...]
    symbols: tuple[str, ...]
    output: str | None = None
    rewritten: tuple[str, ...] = ()
    proof: Proof = Proof.NONE

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        shown = ", ".join(f"{each.name} {shape_text(each.dims)}" for each in self.inputs)
        return f"{self.model}: {shown}" + (f", output {self.output}" if self.output else "")


@dataclass(frozen=True, repr=False)
class Candidate(Result):
    """A placement that was tried in a run.

    Attributes:
        id: Its identifier in `measurements.jsonl`, and the name of its file.
        tensors: Number of tensors quantized in it; None if its file is missing.
        latency_ms: The latest measured latency; None if it was never measured.
        speedup: Over the float model, as the search estimated it. If it was compared with another
            candidate, the estimate goes through that one. None if it was never measured.
        failure: Why the engine refused it; None if it didn't.
        sqnr_db: SQNR of its worst output, in dB; None if it was not measured.
        metric: The user's metric; None if it was not measured.
        role: ``result`` or ``front``, if it is the result of the run or on its front.
        shortfall: The run's accuracy limit that it misses; empty if it misses none that is known.
    """

    id: str
    tensors: int | None
    latency_ms: float | None
    speedup: float | None
    failure: str | None
    sqnr_db: float | None = None
    metric: float | None = None
    role: str = ""
    shortfall: str = ""

    @property
    def accuracy(self) -> str:
        """What is known of its accuracy, in words; empty if nothing is."""
        sqnr_db = f"{self.sqnr_db:.1f} dB output SQNR" if self.sqnr_db is not None else ""
        metric = f"metric {self.metric:.6g}" if self.metric is not None else ""
        return ", ".join(filter(None, (sqnr_db, metric)))

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        if self.failure is not None:
            return f"{self.id} failed: {self.failure}"
        tensors = f", {self.tensors} tensors" if self.tensors is not None else ""
        speedup = f", {self.speedup:.3f}x" if self.speedup is not None else ""
        return f"{self.id}{tensors}{speedup}"


@dataclass(frozen=True, repr=False)
class ExportReport(Result):
    """A candidate that was exported as a model file.

    Attributes:
        output: The file written.
        candidate: Which one it is.
    """

    output: Path
    candidate: Candidate

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        return f"candidate {self.candidate.headline}, output {self.output}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": "export", "output": str(self.output), **self.candidate.to_dict()}


@dataclass(frozen=True)
class RegionRecord:
    """A region of the tree.

    Attributes:
        id: Its number.
        type: ``LEAF``, ``COMPOSITE`` or ``ROOT``.
        level: Its depth; regions without a parent are at 0.
        parent: The enclosing region, if any.
        children: The regions inside it.
        nodes: Names of its own nodes, in graph order.
        op_types: Their op types.
        size: Number of nodes, including those of its descendants.
        inputs: Tensors that it reads but does not produce, except constants.
        outputs: Tensors that are read outside it.
        pattern: Number of its pattern; None if it has children.
        quantizable: Whether it or a descendant has a node with an insertion point.
        scope: The module of the nodes that matter; empty if that is the model, or is not known.
    """

    id: int
    type: str
    level: int
    parent: int | None
    children: tuple[int, ...]
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    pattern: int | None
    quantizable: bool
    scope: str = ""


@dataclass(frozen=True)
class PatternRecord:
    """The common structure of several leaf regions.

    Attributes:
        number: Its number, in order of appearance.
        signature: Its structure as text.
        hash: Short hash of the signature.
        regions: Number of regions that match it.
        op_types: Op types of its nodes, in canonical order.
        points: Number of insertion points.
        variants: Number of patterns it splits into if types and shapes count; 1 if they already do.
        title: The modules of its regions, with ``*`` for what varies; empty if they have nothing
            in common.
    """

    number: int
    signature: str
    hash: str
    regions: int
    op_types: tuple[str, ...]
    points: int
    variants: int
    title: str = ""


@dataclass(frozen=True)
class TensorPlace:
    """A producer or reader of a tensor, and whether a Q/DQ pair can be inserted there.

    Attributes:
        node: The node; empty for the graph's own input or output.
        op_type: Its op type.
        position: Index among its outputs or inputs.
        reason: Why it is not an insertion point; empty if it is.
        dialect_reason: Why the dialect can't quantize the node; empty if it can, or if no reason
            applies.
        with_op: Whether the dialect quantizes the tensor here when it quantizes the node.
        at_run_time: Whether the node can quantize its input at run time; None if no op like it
            can.
        why_not_at_run_time: Why it can't; empty if it can, or no op like it can.
    """

    node: str
    op_type: str
    position: int
    reason: str
    dialect_reason: str = ""
    with_op: bool = False
    at_run_time: bool | None = None
    why_not_at_run_time: str = ""

    @property
    def is_point(self) -> bool:
        """Whether it is an insertion point."""
        return not self.reason


@dataclass(frozen=True)
class TensorAnswer:
    """The places where a tensor can be quantized, and why it can't be elsewhere.

    Attributes:
        tensor: Its name.
        dtype: Its element type, if known.
        dims: Its sizes, None for those not known; None if the rank isn't.
        constant: Whether it is a constant.
        maker: Where it is produced.
        readers: Where it is read.
    """

    tensor: str
    dtype: str
    dims: tuple[int | None, ...] | None
    constant: bool
    maker: TensorPlace
    readers: tuple[TensorPlace, ...]


@dataclass(frozen=True)
class NodePlace:
    """An input or output of a node.

    Attributes:
        tensor: The tensor there.
        place: Whether a Q/DQ pair can be inserted there.
    """

    tensor: str
    place: TensorPlace


@dataclass(frozen=True)
class NodeAnswer:
    """Whether a node can be quantized, and why not.

    Attributes:
        node: Its name.
        op_type: Its op type.
        quantizable: Whether the dialect can quantize it.
        reason: Why not; empty if it can, or if the op runs as part of the one before it.
        at_run_time: Whether it can quantize its input at run time; None if no op like it can.
        inputs: Its inputs.
        outputs: Its outputs.
    """

    node: str
    op_type: str
    quantizable: bool
    reason: str
    at_run_time: bool | None
    inputs: tuple[NodePlace, ...]
    outputs: tuple[NodePlace, ...]


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """Regions, patterns and insertion points that the search would use for a model.

    Attributes:
        model: The file.
        dialect: The dialect whose kernels were considered.
        quant_type: The quantized type that was considered.
        nodes: Number of ops after folding.
        pairs: Number of DequantizeLinear nodes that were removed first.
        by_shape: Whether types and shapes are part of a pattern.
        regions: The tree, each region before its children.
        patterns: Patterns of the leaf regions, the most frequent first.
        quantizable: By op type: the number of quantizable ops, and of all ops.
        fused: Number of ops that are fused into the op before them.
        left_float: The ops that can't be quantized, by reason.
        dynamic: Number of dynamic ops that were made float first.
        unfused: Number of Sums of which Adds were made first.
        at_run_time: Number of ops whose input can be quantized at run time.
        why: The answer to a query about a tensor or a node.
        converted_from: The half-precision type of the file, if the model is inspected in float32
            because there are no integer kernels for that type.
        divided_by: What divides the model into regions: ``structure`` or ``scope``.
    """

    KIND: ClassVar[str] = "inspection"

    model: str
    dialect: str
    quant_type: str
    nodes: int
    pairs: int
    by_shape: bool
    regions: tuple[RegionRecord, ...]
    patterns: tuple[PatternRecord, ...]
    quantizable: Mapping[str, tuple[int, int]]
    fused: int
    left_float: Mapping[str, tuple[str, ...]]
    dynamic: int = 0
    unfused: int = 0
    at_run_time: int = 0
    why: TensorAnswer | NodeAnswer | None = None
    converted_from: str = ""
    divided_by: str = "structure"

    @property
    def leaf_sizes(self) -> list[int]:
        """Number of nodes in each leaf region."""
        return [region.size for region in self.regions if not region.children]

    @property
    def covered(self) -> int:
        """Number of ops that are in a region."""
        return sum(len(region.nodes) for region in self.regions)

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        can = sum(quantizable for quantizable, _ in self.quantizable.values())
        return (
            f"{self.model}: {can} of {self.nodes} ops quantizable to {self.quant_type} in "
            f"{self.dialect}, {len(self.regions)} regions, {len(self.patterns)} patterns"
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        counts = {op_type: {"can": can, "all": n} for op_type, (can, n) in self.quantizable.items()}
        return {**super().to_dict(), "quantizable": counts}
