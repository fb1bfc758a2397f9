"""The Q/DQ placement of a model: the only description of Q/DQ that insertion accepts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._untrusted_files import SCHEMAS, parse_json, versioned

_DIGEST_BYTES = 16
# The first schema, which has edges and outputs only; what needs no more is still written in it.
_STATIC_SCHEMA = 1
_MADE_BY = "Such files are made by `qdqtune insert … --save_placement FILE`."


class Edge(NamedTuple):
    """One reader of a tensor.

    Attributes:
        tensor: Name of the tensor that is read.
        node: Name of the node that reads it; empty for the graph's own output.
        position: Which input of that node, or which of the graph's outputs.
    """

    tensor: str
    node: str
    position: int


@dataclass(frozen=True)
class Placement:
    """What is quantized in one model, by its names: positions of Q/DQ pairs, and dynamic ops.

    With an edge, only that reader sees the quantized value. With an output, every reader of the
    tensor does. The effective placement is the union of both. A dynamic op multiplies integers
    without any pair: its weight is stored quantized, and its input gets a scale at run time. An
    unfused op stays float, but is written so that the engine runs it as a kernel of its own.

    Attributes:
        edges: Readers that see a quantized value.
        outputs: Tensors that are quantized right after their producer.
        dynamic: Names of the dynamic ops.
        unfused: Names of the unfused ops.
    """

    edges: frozenset[Edge] = frozenset()
    outputs: frozenset[str] = frozenset()
    dynamic: frozenset[str] = frozenset()
    unfused: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        edges: Iterable[Edge | tuple[str, str, int]] = (),
        outputs: Iterable[str] = (),
        dynamic: Iterable[str] = (),
        unfused: Iterable[str] = (),
    ) -> Placement:
        """Build a placement from any iterables."""
        places = frozenset(Edge(*edge) for edge in edges)
        return cls(places, *map(frozenset, (outputs, dynamic, unfused)))

    def __or__(self, other: Placement) -> Placement:
        return Placement(
            self.edges | other.edges,
            self.outputs | other.outputs,
            self.dynamic | other.dynamic,
            self.unfused | other.unfused,
        )

    def __bool__(self) -> bool:
        return bool(self.edges or self.outputs or self.dynamic or self.unfused)

    @property
    def tensors(self) -> frozenset[str]:
        """Every tensor that gets a pair."""
        return frozenset(edge.tensor for edge in self.edges) | self.outputs

    def digest(self) -> str:
        """A hash of the placement: the same for equal placements in every process."""
        text = self.to_json().encode()
        return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()

    def to_json(self, model_fingerprint: str = "") -> str:
        """Write the file form, `placement.json`: sorted, so that equal placements are equal files.

        Args:
            model_fingerprint: Fingerprint of the model whose names these are.
        """
        body: dict[str, object] = {
            "kind": "placement",
            "schema": SCHEMAS["placement"] if self.dynamic or self.unfused else _STATIC_SCHEMA,
            "model": model_fingerprint,
            "outputs": sorted(self.outputs),
            "edges": [list(edge) for edge in sorted(self.edges)],
        }
        if self.dynamic or self.unfused:
            body |= {"dynamic": sorted(self.dynamic), "unfused": sorted(self.unfused)}
        return json.dumps(body, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "placement") -> Placement:
        """Read the file form.

        Args:
            text: The file's content.
            source: The file's name in an error message.

        Raises:
            UsageError: If the text is not a placement of a schema that this version knows.
        """
        try:
            body = versioned(parse_json(text, source), "placement", source)
        except LimitError:
            raise
        except ValueError as error:
            raise UsageError(f"{source} is not a placement file: {error}.", _MADE_BY) from None
        edges = body.get("edges", [])
        if not isinstance(edges, list):
            raise UsageError(f'{source}: "edges" must be a list.', _MADE_BY)
        for edge in edges:
            if not (isinstance(edge, list) and [type(part) for part in edge] == [str, str, int]):
                raise UsageError(
                    f"{source}: {edge!r} is not an edge.",
                    "An edge is [tensor name, reader's node name, input index].",
                )
        kinds = {"outputs": "tensor", "dynamic": "node", "unfused": "node"}
        names = {field: body.get(field, []) for field in kinds}
        for field, given in names.items():
            if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
                what = f'"{field}" must be a list of {kinds[field]} names'
                raise UsageError(f"{source}: {what}.", _MADE_BY)
        return cls.of(edges, **names)
