"""What a report shows: a run's graph, layers, patterns and errors, and the trials of its search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from qdqtune.records._json_form import Record
from qdqtune.records._quantization import QuantizeReport
from qdqtune.records._results import Result
from qdqtune.records._tuning import Summary
from qdqtune.records._untrusted_files import SCHEMAS, versioned

Point = tuple[float, float]
"""A position in a drawing: slots to the right, rows down."""

FLOAT, QUANTIZED, DYNAMIC, UNFUSED, WEIGHTS, BORDER = (
    "float", "quantized", "dynamic", "unfused", "weights only", "",
)  # fmt: skip
"""The form of a node in the result; inputs and outputs of the model have none."""

COMPUTES, CONVERTS, REARRANGES = "compute", "conversion", "reformat"
"""What a layer does: its nodes' work, or only another type or layout of values."""


@dataclass(frozen=True)
class NodeView(Record):
    """A node of the drawn graph.

    Attributes:
        name: Its name.
        op_type: Its op type; ``Input`` or ``Output`` for those of the model.
        place: The middle of it.
        form: Its form in the result.
        reason: Number of the reason for that in `GraphView.reasons`; -1 if there is none.
        area: Number of its region or fusion group in `GraphView.areas`; -1 if it is in none.
        layer: Number of its layer in `ReportDetails.layers`; -1 if unknown.
        shape: Shape and type of its result, as text.
        sqnr_db: SQNR of its result in dB if only its own quantization counts; None if unknown.
        nodes: Number of nodes that it stands for, if the graph is too large for a node each.
    """

    name: str
    op_type: str
    place: Point
    form: str = FLOAT
    reason: int = -1
    area: int = -1
    layer: int = -1
    shape: str = ""
    sqnr_db: float | None = None
    nodes: int = 1


@dataclass(frozen=True)
class EdgeView(Record):
    """An edge of the drawn graph.

    Attributes:
        source: Number of the node that it comes from.
        target: Number of the node that it goes to.
        quantized: Whether the target reads quantized values.
        border: Whether values are quantized or dequantized on the way.
        bends: Points between both.
    """

    JSON: ClassVar[str] = "source target quantized border bends"

    source: int
    target: int
    quantized: bool = False
    border: bool = False
    bends: tuple[Point, ...] = ()


@dataclass(frozen=True)
class GraphView(Record):
    """A model's graph as it is drawn, with the result's precision.

    Attributes:
        nodes: In topological order.
        edges: Between them.
        areas: Names of regions or fusion groups.
        reasons: Why nodes are quantized or float.
        width: Width of the drawing.
        height: Height of the drawing.
    """

    nodes: tuple[NodeView, ...] = ()
    edges: tuple[EdgeView, ...] = ()
    areas: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    width: float = 0.0
    height: float = 0.0

    def check(self) -> None:
        """See `Record.check`."""
        ends = {end for edge in self.edges for end in (edge.source, edge.target)}
        for found, known in (
            (ends, self.nodes),
            ({node.area for node in self.nodes} - {-1}, self.areas),
            ({node.reason for node in self.nodes} - {-1}, self.reasons),
        ):
            if found and not 0 <= min(found) <= max(found) < len(known):
                raise ValueError("a part of the graph is missing")


@dataclass(frozen=True)
class LayerChange(Record):
    """Nodes that the engine runs together, in the float model or in the result.

    Attributes:
        nodes: Names of the nodes; for a conversion, those that it serves.
        op_types: Their op types.
        kind: `COMPUTES`, `CONVERTS` or `REARRANGES`.
        before_ms: Milliseconds in the float model.
        after_ms: Milliseconds in the result; None if there is none.
        precision: The type that it computes in, in the result; empty if unknown.
    """

    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    kind: str = COMPUTES
    before_ms: float = 0.0
    after_ms: float | None = None
    precision: str = ""

    @property
    def gain_ms(self) -> float:
        """Milliseconds gained; negative if it got slower."""
        return self.before_ms - (self.before_ms if self.after_ms is None else self.after_ms)


@dataclass(frozen=True)
class SchemeRow(Record):
    """A scheme that was tried for a pattern.

    Attributes:
        points: Its insertion points, as text; empty for float.
        candidate: Id of the fastest candidate with it.
        latency_ms: Latency of that model; None if every one failed.
        chosen: Whether the result has it.
        reason: Why it was kept or dropped.
    """

    points: tuple[str, ...]
    candidate: str
    latency_ms: float | None
    chosen: bool
    reason: str


@dataclass(frozen=True)
class PatternRow(Record):
    """A pattern of regions, with the schemes tried for it.

    Attributes:
        op_types: Op types of its nodes.
        regions: Number of regions that have it.
        node: A node in the first of them.
        schemes: The schemes, fastest first.
        before_ms: Milliseconds of the layers in all its regions in the float model; None if
            unknown.
        after_ms: The same in the result.
        dynamic: Number of ops in all its regions that the result quantizes at run time.
        title: The modules of its regions, with ``*`` for what varies; empty if they have nothing
            in common.
    """

    op_types: tuple[str, ...]
    regions: int
    node: str
    schemes: tuple[SchemeRow, ...]
    before_ms: float | None = None
    after_ms: float | None = None
    dynamic: int = 0
    title: str = ""


@dataclass(frozen=True)
class TensorRow(Record):
    """The error and range of the result of an op that reads a quantized value.

    Attributes:
        tensor: Its name.
        node: The op.
        op_type: Its type.
        sqnr_db: SQNR if only this op's own quantization counts; None if it is not finite.
        max_error: The largest error.
        max_value: The largest value, in magnitude.
        typical_value: Root of the mean square of its values; None if unknown.
        range: The calibrated range; None if it has none.
        form: Its form in the result, as in `NodeView`; empty if unknown.
    """

    tensor: str
    node: str
    op_type: str
    sqnr_db: float | None
    max_error: float
    max_value: float
    typical_value: float | None = None
    range: Point | None = None
    form: str = ""


@dataclass(frozen=True)
class ReportDetails(Record):
    """What a report shows beyond the summary and the measurements: `report.json`.

    Attributes:
        folder: The run's folder, as the user named it.
        model: Fingerprint of the float model.
        graph: The graph; None if it could not be drawn.
        layers: Where the engine's time goes before and after; empty if it does not tell.
        patterns: The patterns of regions.
        tensors: Errors of quantized ops, the largest first; empty if no data was given.
        tensors_on: The inputs that these were measured on.
        candidates: Candidate ids of whole-model placements, by name, and of the result.
        sqnr_db: SQNR of candidates, by id, as far as it was measured.
        missing: What could not be recorded, and why.
    """

    KIND: ClassVar[str] = "report"
    SCHEMA: ClassVar[int] = SCHEMAS["report"]

    folder: str = ""
    model: str = ""
    graph: GraphView | None = None
    layers: tuple[LayerChange, ...] = ()
    patterns: tuple[PatternRow, ...] = ()
    tensors: tuple[TensorRow, ...] = ()
    tensors_on: str = ""
    candidates: Mapping[str, str] = field(default_factory=dict)
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, value: object, name: str = "The report's data") -> ReportDetails:
        """Read the JSON form; see `Record.from_dict`.

        Raises:
            NewerSchemaError: If a newer version wrote it.
            KeyError: If a field is missing.
            TypeError: If there is an unknown field.
            ValueError: If a field has an invalid value.
        """
        return super().from_dict(versioned(value, cls.KIND, name))


@dataclass(frozen=True)
class TrialView:
    """A measurement of a candidate in a search.

    Attributes:
        candidate: Its id.
        at_s: Seconds since the first run in the folder began.
        stage: The stage of the search; empty if unknown.
        gain: Log speedup over the float model; None if it failed, or if its reference is unknown.
        error: Standard error of that.
        confirms: Whether it was a long comparison.
        failure: Why it failed; empty if it did not.
        latency_ms: Its latency; None if it failed.
    """

    candidate: str
    at_s: float
    stage: str
    gain: float | None
    error: float
    confirms: bool
    failure: str
    latency_ms: float | None


@dataclass(frozen=True)
class RunView:
    """A run as a report shows it.

    Attributes:
        result: The figures of a tuning run, or of one-shot quantization.
        folder: The folder or file to name in commands.
        trials: The measurements of the search, in order.
        details: Everything else; None if it was not recorded.
        origin: Names and values that identify a call of one-shot quantization.
    """

    result: Summary | QuantizeReport
    folder: str = ""
    trials: tuple[TrialView, ...] = ()
    details: ReportDetails | None = None
    origin: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, repr=False)
class PageReport(Result):
    """A report that was written.

    Attributes:
        output: The file.
        runs: The runs in it.
        bytes: Its size.
    """

    KIND: ClassVar[str] = "page"

    output: str
    runs: tuple[str, ...]
    bytes: int

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        count = len(self.runs)
        return f"{count} run{'s' * (count != 1)}, output {self.output}"
