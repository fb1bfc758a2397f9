"""The user's manual selection of what to quantize."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.op_units import merge
from qdqtune.qdq.selection import Selection, select_nodes, select_ops, select_tensors
from qdqtune.records.errors import UsageError
from qdqtune.records.placement import Placement
from qdqtune.records.untrusted_files import parse_json, read_text

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What the user selected to quantize; the fields add up.

    Attributes:
        ops: Op types.
        nodes: Node names.
        tensors: Tensor names.
        placement: A placement file, used unchanged.
    """

    ops: Sequence[str] = ()
    nodes: Sequence[str] = ()
    tensors: Sequence[str] = ()
    placement: str | os.PathLike[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.ops or self.nodes or self.tensors or self.placement is not None)


def select(index: GraphIndex, dialect: Dialect, quant_type: str, choice: Choice) -> Selection:
    """Turn a selection into one placement.

    Raises:
        UsageError: If nothing was selected, or the model lacks something in the selection.
    """
    parts = []
    if choice.ops:
        parts.append(select_ops(index, dialect, choice.ops, quant_type))
    if choice.nodes:
        parts.append(select_nodes(index, dialect, choice.nodes, quant_type))
    if choice.tensors:
        parts.append(select_tensors(index, dialect, choice.tensors))
    if choice.placement is not None:
        parts.append(Selection(_read_placement(choice.placement, index)))
    if not parts:
        raise UsageError(
            "Nothing was chosen to be quantized.",
            "Name op types (--ops Conv,MatMul), nodes, tensors, or a placement file.",
        )
    left_float = {name: reason for part in parts for name, reason in part.left_float.items()}
    quantized = tuple(dict.fromkeys(name for part in parts for name in part.quantized))
    return Selection(merge(part.placement for part in parts), quantized, left_float)


def _read_placement(path: str | os.PathLike[str], index: GraphIndex) -> Placement:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The placement file {path} can't be read: {error}.", "Check the path."
        ) from None
    placement = Placement.from_json(text, str(path))
    made_for = parse_json(text, str(path)).get("model")
    if made_for and made_for != fingerprint(index.model):
        _logger.warning("%s was made for another model, or another version of this one", path)
    return placement
