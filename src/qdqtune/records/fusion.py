"""The subgraphs of a model that an engine runs as one, and what is known of each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from qdqtune.records.measurement import EngineInfo
from qdqtune.records.result import Result


@dataclass(frozen=True)
class GroupRecord:
    """Nodes that are run as one.

    Attributes:
        number: Its place in the graph's order.
        nodes: Names, in the graph's order.
        op_types: Of each node.
        layers: Names of the engine's layers that it comes from.
        ms: Milliseconds that these take; None if no times are known.
        share: The part of the whole time; None likewise.
        structural: Whether the graph alone, and no layer, says that the nodes belong together.
        quantizable: How many of the nodes can be quantized.
        alike: How many groups have equal content, this one counted.
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
    """A model, divided into the subgraphs that an engine runs as one.

    Attributes:
        model: The model file.
        engine: What ran it; None if the layers are from a file.
        source: Where the layers are from: the engine's name, or that file.
        dialect: Whose kernels decide what can be quantized.
        nodes: Number of nodes in the model as it was run.
        unmentioned: How many of them no layer mentions.
        groups: In the graph's order; every node is in one of them.
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
        """How many groups no layer tells of."""
        return sum(group.structural for group in self.groups)

    @property
    def covered(self) -> float:
        """The part of the nodes that layers mention; 1 if there are no nodes."""
        return 1.0 - self.unmentioned / self.nodes if self.nodes else 1.0

    @property
    def distinct(self) -> int:
        """How many groups differ in content."""
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
