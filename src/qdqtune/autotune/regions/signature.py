"""Signatures: a structure in canonical order as text that describes it completely."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qdqtune.autotune.regions.layout import Layout, Tensor, tensor_of
from qdqtune.autotune.regions.structure import EXTERNAL, FIXED, Structure

EMPTY = "EMPTY"
COMPOSITE_PREFIX = "COMPOSITE("

# Skip quoted attribute text, since it can contain anything.
_LABEL = r"(?:\w+|\?)\[[\dx?*]*\]"
_QUOTED_OR_SHAPES = re.compile(
    rf"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    rf"|(?<!:):{_LABEL}"
    rf"|(?<=\))=(?!>)(?:{_LABEL}|-)(?:;(?:{_LABEL}|-))*"
)


def write_signature(
    structure: Structure, layout: Layout, texts: Sequence[str], *, shapes: bool
) -> str:
    """Write the signature of a structure.

    A leaf is written `Conv[kernel_shape=3x3](e0,c,c)->Relu(%0)=>%1`: e0 is the first external
    tensor, c a constant, - an omitted input, %0 the first node's output (%0.1 its second one), and
    the outputs used outside follow =>. A composite is written
    `COMPOSITE(leaf+leaf){e0;#0.0}=>#1.0`: the braces list, for each child, the sources of its
    inputs; #0.0 is the first output of the first child. Types and shapes follow a colon; those of a
    node's outputs follow an equals sign.

    Args:
        structure: The structure.
        layout: Its canonical order.
        texts: Text by label.
        shapes: Whether to include types and shapes.
    """
    if not structure.nodes:
        return EMPTY
    return "".join(_Writer(structure, layout, texts, shapes=shapes).parts())


def without_shapes(signature: str) -> str:
    """Remove types and shapes from a signature; one without them is returned unchanged."""
    return _QUOTED_OR_SHAPES.sub(lambda found: found.group(1) or "", signature)


class _Writer:
    def __init__(
        self, structure: Structure, layout: Layout, texts: Sequence[str], *, shapes: bool
    ) -> None:
        self._structure = structure
        self._layout = layout
        self._texts = texts
        self._shapes = shapes
        self._place = {
            number: place for group in layout.groups for place, number in enumerate(group.nodes)
        }
        self._child_place = {
            child: place for group in layout.groups for place, child in enumerate(group.children)
        }

    def parts(self) -> list[str]:
        """Yield the text in parts; iterative, since trees may be deep."""
        parts: list[str] = []
        waiting: list[str | int] = [0]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                parts.append(item)
                continue
            group = self._layout.groups[item]
            nodes = "->".join(self._node(item, number) for number in group.nodes)
            outputs = "=>" + ",".join(self._ref(item, tensor) for tensor in group.outputs)
            if not group.children:
                parts.append(nodes + outputs)
                continue
            parts.append(f"{COMPOSITE_PREFIX}{nodes}|" if nodes else COMPOSITE_PREFIX)
            waiting.append(f"){{{self._child_inputs(item)}}}{outputs}")
            for place, child in reversed(list(enumerate(group.children))):
                waiting += [child, "+"] if place else [child]
        return parts

    def _child_inputs(self, group: int) -> str:
        return ";".join(
            ",".join(self._ref(group, tensor) for tensor in self._layout.groups[child].inputs)
            for child in self._layout.groups[group].children
        )

    def _ref(self, group: int, tensor: Tensor) -> str:
        """Return how a group refers to a tensor."""
        border = self._layout.groups[group]
        if tensor in border.inputs:
            return f"e{border.inputs[tensor]}"
        number, output = tensor
        if self._structure.nodes[number].group == group:
            return f"%{self._place[number]}" + (f".{output}" if output else "")
        child = border.made_by[tensor]
        return f"#{self._child_place[child]}.{self._layout.groups[child].outputs[tensor]}"

    def _node(self, group: int, number: int) -> str:
        node = self._structure.nodes[number]
        operands = ",".join(
            self._operand(group, number, position) for position in self._layout.operands[number]
        )
        text = f"{self._texts[node.token]}({operands})"
        if self._shapes:
            kinds = (self._texts[out.label] if out.label >= 0 else "-" for out in node.outputs)
            text += "=" + ";".join(kinds)
        return text

    def _operand(self, group: int, number: int, position: int) -> str:
        slot = self._structure.nodes[number].slots[position]
        tensor = tensor_of(self._structure, number, position)
        text = self._ref(group, tensor) if tensor else "c" if slot.kind == FIXED else "-"
        if self._shapes and slot.kind in (EXTERNAL, FIXED):
            text += f":{self._texts[slot.label]}"
        return text
