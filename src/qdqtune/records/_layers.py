"""The layers that an engine ran, the nodes that each executes, and the fusion groups of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from qdqtune.records._measurement import EngineInfo
from qdqtune.records._results import Result

NAMED = "named"
"""The engine's names say which nodes the layer executes, or some of them."""
CLOSED = "closed"
"""No name says so; the nodes follow from the tensors that the layer reads and writes."""
BETWEEN = "between"
"""It converts type or layout for another layer, and executes no node itself."""
PART = "part"
"""It executes part of a node that is attributed to another layer."""
UNKNOWN = ""
"""Its purpose is unknown."""


@dataclass(frozen=True)
class MappedLayer:
    """A layer of an engine's graph, in terms of the opened model.

    Attributes:
        name: Name in the engine's graph.
        op_type: The engine's name for its type.
        ms: Typical milliseconds per run.
        precision: The type it computes in; empty if unknown.
        nodes: Names of the nodes that it executes, in model order; for a layer that executes none,
            those of the layer that it serves.
        node_types: Op types of the nodes.
        how: How the nodes were found: `NAMED`, `CLOSED`, `BETWEEN`, `PART` or `UNKNOWN`.
        converts: Whether it only converts the type of values.
    """

    name: str
    op_type: str
    ms: float
    precision: str = ""
    nodes: tuple[str, ...] = ()
    node_types: tuple[str, ...] = ()
    how: str = UNKNOWN
    converts: bool = False

    @property
    def executes(self) -> bool:
        """Whether it executes its nodes itself; no node is executed by two layers."""
        return self.how in (NAMED, CLOSED)


@dataclass(frozen=True, repr=False)
class LayersRecord(Result):
    """The layers of a model as an engine runs it.

    Attributes:
        model: The model file.
        engine: The engine that ran it.
        runs: Number of runs that the times come from.
        nodes: Number of nodes in the model.
        layers: In order of execution.
        unexecuted: Names of nodes that no layer executes because they were folded away.
        is_timed: Whether the model was run; otherwise the layers have no times.
    """

    KIND: ClassVar[str] = "layers"
    JSON: ClassVar[str] = (
        "model engine runs is_timed nodes total_ms mapped_share ms_by_precision "
        "conversions=conversion_share layers unexecuted"
    )

    model: str
    engine: EngineInfo
    runs: int
    nodes: int
    layers: tuple[MappedLayer, ...]
    unexecuted: tuple[str, ...]
    is_timed: bool = True

    @property
    def total_ms(self) -> float:
        """Milliseconds of all layers together."""
        return sum(layer.ms for layer in self.layers)

    @property
    def mapped_share(self) -> float:
        """Share of the time spent in layers with known nodes; 0 if no time was spent."""
        return self.share(layer for layer in self.layers if layer.nodes)

    @property
    def ms_by_precision(self) -> dict[str, float]:
        """Milliseconds by the type that layers compute in, the largest first."""
        spent: dict[str, float] = {}
        for layer in self.layers:
            spent[layer.precision] = spent.get(layer.precision, 0.0) + layer.ms
        return dict(sorted(spent.items(), key=lambda item: -item[1]))

    @property
    def layers_by_precision(self) -> dict[str, int]:
        """Number of layers that compute in each type, the most first."""
        counts = Counter(layer.precision for layer in self.layers)
        return dict(counts.most_common())

    @property
    def conversions(self) -> tuple[MappedLayer, ...]:
        """The layers that only convert the type of values."""
        return tuple(layer for layer in self.layers if layer.converts)

    @property
    def conversion_share(self) -> dict[str, float]:
        """How many layers only convert the type of values, and their share of the time."""
        found = self.conversions
        return {"layers": len(found), "share": self.share(found)}

    def share(self, layers: Iterable[MappedLayer]) -> float:
        """Share of the total time that these layers take."""
        return sum(layer.ms for layer in layers) / self.total_ms if self.total_ms else 0.0

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        times = f", {self.total_ms:.3f} ms" if self.is_timed else ""
        where = f"{self.engine.name} {self.engine.version}"
        return f"{self.model} on {where}: {len(self.layers)} layers of {self.nodes} nodes{times}"


@dataclass(frozen=True)
class GroupRecord:
    """A group of nodes that the engine runs as one.

    Attributes:
        number: Its position in graph order.
        nodes: Node names, in graph order.
        op_types: Op type of each node.
        layers: Names of the engine layers that it comes from.
        ms: Milliseconds that these layers take; None if no times are known.
        share: Their share of the total time; None if no times are known.
        structural: Whether the nodes were grouped by graph structure alone, without a layer.
        quantizable: Number of nodes that can be quantized.
        alike: Number of groups with equal content, including this one.
        key: Short hash of that content: structure, attributes, shapes and types.
    """

    number: int
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    layers: tuple[str, ...]
    ms: float | None
    share: float | None
    structural: bool
    quantizable: int
    alike: int
    key: str


@dataclass(frozen=True, repr=False)
class GroupsRecord(Result):
    """A model divided into the groups that an engine runs as one.

    Attributes:
        model: The model file.
        engine: The engine that ran it; None if the layers come from a file.
        source: Where the layers come from: the engine's name, or that file.
        dialect: The dialect that determines which ops can be quantized.
        nodes: Number of nodes in the model as it was run.
        unmentioned: Number of nodes that no layer mentions.
        groups: In graph order; every node is in exactly one of them.
    """

    KIND: ClassVar[str] = "groups"
    JSON: ClassVar[str] = (
        "model engine source dialect nodes unmentioned covered structural distinct total_ms groups"
    )

    model: str
    engine: EngineInfo | None
    source: str
    dialect: str
    nodes: int
    unmentioned: int
    groups: tuple[GroupRecord, ...]

    @property
    def structural(self) -> int:
        """Number of groups that come from graph structure, without a layer."""
        return sum(group.structural for group in self.groups)

    @property
    def covered(self) -> float:
        """Share of the nodes that layers mention; 1 if there are no nodes."""
        return 1.0 - self.unmentioned / self.nodes if self.nodes else 1.0

    @property
    def distinct(self) -> int:
        """Number of groups with distinct content."""
        return len({group.key for group in self.groups})

    @property
    def total_ms(self) -> float | None:
        """Milliseconds of all groups together; None if no times are known."""
        known = [group.ms for group in self.groups if group.ms is not None]
        return sum(known) if known else None

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        return (
            f"{self.model} by {self.source}: {len(self.groups)} groups of {self.nodes} nodes, "
            f"{self.distinct} distinct"
        )
