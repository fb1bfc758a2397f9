"""Small models cut into the subgraphs of subgraph mode, for tests of everything that follows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune import zoo
from qdqtune.engines.layers._latency import split_at_borders
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._prepared_model import PreparedModel, extract
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._measurement import LayerTime
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.records._tuning import BY_LAYERS, SchemeTimes, SubgraphTimes
from qdqtune.rules._order import draft_placement
from qdqtune.search._space import Form
from qdqtune.search.subgraphs._fusion_groups import FusionGroup, fusion_groups
from qdqtune.search.subgraphs._quantizable_groups import (
    NONE,
    Content,
    Subgraph,
    content_of,
    find_subgraphs,
    placement_inside,
)
from qdqtune.testing.simulated import PROFILES, Profile, kernels_of

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"blocks": (1, 1), "width": 8, "image": 32, "classes": 10},
    "bert": {"layers": 1, "width": 32, "head_width": 16, "sequence": 8, "vocabulary": 50},
    "convnext": {"depths": (1, 1), "dims": (8, 16), "image": 32, "classes": 10},
    "shufflenet_v2": {"image": 32, "classes": 10},
    "efficientnet": {"width": 0.25, "depth": 0.25, "image": 32, "classes": 10},
    "vit": {"layers": 1, "width": 32, "head_width": 16, "image": 32, "classes": 10},
    "yolo": {"width": 4, "image": 64, "classes": 4},
}
"""Settings of the zoo's models with which they are quickly built and run."""


@dataclass(frozen=True)
class Cut:
    """A model, and what it is cut into.

    Attributes:
        base: The float model.
        completion: What can be quantized.
        inserter: Writes candidates; every range is from -1 to 1.
        groups: Fusion groups, as the simulated engine fuses.
        profile: The simulated machine.
    """

    base: PreparedModel
    planner: QuantizationPlanner
    inserter: Inserter
    groups: tuple[FusionGroup, ...]
    profile: Profile

    @property
    def index(self) -> GraphIndex:
        return self.base.index

    @cached_property
    def ruled(self) -> frozenset[str]:
        return frozenset(draft_placement(self.planner, "int8").chosen)

    @cached_property
    def subgraphs(self) -> list[Subgraph]:
        planner = self.planner
        may = {
            Form.WHOLE: planner.units,
            Form.DYNAMIC: planner.dynamic,
            Form.UNFUSED: planner.unfused,
        }
        return find_subgraphs(self.index, self.groups, planner, self.ruled, may)

    @property
    def contents(self) -> list[Content]:
        """Every group in which something can be quantized."""
        return [content for subgraph in self.subgraphs for content in subgraph.contents]

    def content(self, *nodes: str) -> Content:
        return content_of(self.index, nodes)

    def times(self) -> dict[str, SubgraphTimes]:
        """The subgraphs' times as a profile without noise would have them, by key."""
        return {subgraph.key: self._times_of(subgraph) for subgraph in self.subgraphs}

    def _times_of(self, subgraph: Subgraph) -> SubgraphTimes:
        content = subgraph.content
        inserter = self.inserter.of_part(self.extracted(content))
        forms = {NONE: Placement()}
        for scheme in subgraph.schemes:
            placement = scheme.placement(content, self.planner)
            forms[scheme.name] = placement_inside(placement, content, self.planner)
        found = []
        for name, places in forms.items():
            layers = layers_of(inserter.proto(places), self.profile)
            index = GraphIndex(inserter.model(places))
            borders = split_at_borders(index, layers, content.inputs, content.outputs)
            tensors = (*content.inputs, *content.outputs)
            found.append(
                SchemeTimes(
                    name,
                    borders.total_ms,
                    borders.inside_ms,
                    tuple(borders.conversion_ms.get(tensor, 0.0) for tensor in tensors),
                    tuple(borders.layout_ms.get(tensor, 0.0) for tensor in tensors),
                )
            )
        return SubgraphTimes(subgraph.key, BY_LAYERS, tuple(found))

    def extracted(self, content: Content) -> PreparedModel:
        """A subgraph as a model of its own, beside the others."""
        borders = (*content.inputs, *content.outputs)
        dims = {name: shape for name in borders if (shape := self.index.shape(name)) is not None}
        model = extract(self.base, content.nodes, content.inputs, content.outputs, dims)
        return PreparedModel(model, self.base.store.folder, store=self.base.store)


def layers_of(proto: onnx.ModelProto, profile: Profile) -> list[LayerTime]:
    """The layers that the simulated engine runs a model as."""
    return [
        LayerTime(
            kernel.name, kernel.op_type, kernel.ms, precision=kernel.precision,
            origins=kernel.nodes,
        )
        for kernel in kernels_of(proto, profile)
    ]  # fmt: skip


def cut(
    model: onnx.ModelProto,
    folder: Path,
    dialect: str = "onnxruntime",
    profile: Profile | None = None,
) -> Cut:
    """Cut a model as the simulated engine fuses it."""
    machine = profile or PROFILES["cpu-vnni"]
    loaded = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    fold(loaded)
    name_nodes(loaded)
    base = PreparedModel(loaded, folder)
    index = base.index
    floats = [name for name in index.value if index.is_float(name)]
    ranges = Ranges(dict.fromkeys(floats, (-1.0, 1.0)), CalibrationSource.RANDOM, 1)
    rules = dialect_named(dialect)
    whole = onnx.ModelProto.FromString(base.whole())
    groups = fusion_groups(index, nodes_of_layers(index, layers_of(whole, machine)))
    return Cut(
        base,
        QuantizationPlanner(index, rules),
        Inserter(base, rules, "int8", ranges),
        groups,
        machine,
    )


def cut_zoo(name: str, folder: Path, dialect: str = "onnxruntime") -> Cut:
    """Cut a small model of the zoo."""
    return cut(zoo.build(name, **SMALL[name]), folder, dialect)
