"""The layers that an engine ran, and which nodes of the opened model each of them executes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from qdqtune.records.measurement import EngineInfo
from qdqtune.records.result import Result

NAMED = "named"
"""The engine's names say which nodes the layer executes, or some of them."""
CLOSED = "closed"
"""No name does; what it reads and writes tells."""
BETWEEN = "between"
"""It changes type or layout for another layer, and executes no node itself."""
PART = "part"
"""It does a part of what another layer is known to execute."""
UNKNOWN = ""
"""Nothing tells what it is for."""


@dataclass(frozen=True)
class MappedLayer:
    """A layer of an engine's graph, in terms of the opened model.

    Attributes:
        name: Name in the engine's graph.
        op_type: What the engine calls its kind.
        ms: Typical milliseconds per run.
        precision: The type it computes in; empty if unknown.
        nodes: Names of the nodes that it executes, in the model's order; of a layer that executes
            none, those of the layer that it serves.
        node_types: Op types of the nodes.
        how: How that was found: `NAMED`, `CLOSED`, `BETWEEN`, `PART` or `UNKNOWN`.
        converts: Whether it only changes the type of values.
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
        """Whether the nodes are its own; no node is executed by two layers."""
        return self.how in (NAMED, CLOSED)


@dataclass(frozen=True, repr=False)
class LayersRecord(Result):
    """What an engine made of a model, layer by layer.

    Attributes:
        model: The model file.
        engine: What ran it.
        runs: Runs that the times are from.
        nodes: Number of nodes in the model.
        layers: In order of execution.
        unexecuted: Names of the nodes that no layer executes: they were folded away.
        is_timed: Whether the model was run; else the layers are known, but not their times.
    """

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
        """The part of the time that nodes are known for; 0 if no time was spent."""
        return self.share(layer for layer in self.layers if layer.nodes)

    @property
    def ms_by_precision(self) -> dict[str, float]:
        """Milliseconds by the type that is computed in, the largest first."""
        spent: dict[str, float] = {}
        for layer in self.layers:
            spent[layer.precision] = spent.get(layer.precision, 0.0) + layer.ms
        return dict(sorted(spent.items(), key=lambda item: -item[1]))

    @property
    def layers_by_precision(self) -> dict[str, int]:
        """How many layers compute in each type, the most first."""
        counts = Counter(layer.precision for layer in self.layers)
        return dict(counts.most_common())

    @property
    def conversions(self) -> tuple[MappedLayer, ...]:
        """The layers that only change the type of values."""
        return tuple(layer for layer in self.layers if layer.converts)

    def share(self, layers: Iterable[MappedLayer]) -> float:
        """The part of the whole time that these layers take."""
        return sum(layer.ms for layer in layers) / self.total_ms if self.total_ms else 0.0

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        times = f", {self.total_ms:.3f} ms" if self.is_timed else ""
        where = f"{self.engine.name} {self.engine.version}"
        return f"{self.model} on {where}: {len(self.layers)} layers of {self.nodes} nodes{times}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "kind": "layers",
            "schema": 1,
            "model": self.model,
            "engine": self.engine.to_dict(),
            "runs": self.runs,
            "is_timed": self.is_timed,
            "nodes": self.nodes,
            "total_ms": self.total_ms,
            "mapped_share": self.mapped_share,
            "ms_by_precision": self.ms_by_precision,
            "conversions": {
                "layers": len(self.conversions),
                "share": self.share(self.conversions),
            },
            "layers": [asdict(layer) for layer in self.layers],
            "unexecuted": list(self.unexecuted),
        }
