"""Records of a model divided into fusion groups: nodes that an engine runs as one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from qdqtune.records.measurement import EngineInfo
from qdqtune.records.result import Result


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

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "kind": "groups",
            "schema": 1,
            "model": self.model,
            "engine": self.engine.to_dict() if self.engine is not None else None,
            "source": self.source,
            "dialect": self.dialect,
            "nodes": self.nodes,
            "unmentioned": self.unmentioned,
            "covered": self.covered,
            "structural": self.structural,
            "distinct": self.distinct,
            "total_ms": self.total_ms,
            "groups": [asdict(group) for group in self.groups],
        }
