"""Finds the nodes of a model in the names of TensorRT layers.

A layer that executes several nodes is called `a + b`, `a + b || c`, `PWN(PWN(a), b)` or
`a+b_myl0_3`, and each of these can also be part of a node's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qdqtune.graph.index import GraphIndex

_BETWEEN = re.compile(r" \+ | \|\| |\+|, |\.\.\.|[()\[\]{}]")
_FOREIGN = re.compile(r"^\{ForeignNode\[(?P<ends>.*)\]\}", re.DOTALL)
_TO = "..."
_PROFILE = re.compile(r" \[profile \d+\]")
_KERNEL = re.compile(r"_myl\d+_\d+$")
_COPY = re.compile(r"_clone_\d+$")
_NUMBER = re.compile(r"_\d+$")
_UNNAMED = "node_of_"
_HELPER = re.compile(r"\(Unnamed Layer\* \d+\) \[\w+\]")
_AROUND = (
    "reshape_before_", "reshape_after_", "unsqueeze_node_after_", "copied_squeeze_after_",
    "squeeze_after_", "unsqueeze_after_",
)  # fmt: skip
# Names with more separators are not searched for; every end is tried for each start.
_MOST_SEPARATORS = 40


def is_foreign(name: str) -> bool:
    """Whether a layer is a part of the network that was compiled as a whole."""
    return _FOREIGN.match(name) is not None


class NodeNames:
    """The node names of a model, for matching.

    Args:
        index: The model.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        # Weights are listed with the nodes that read them, and may be called anything as well.
        self._node: dict[str, str] = dict.fromkeys(index.model.graph.initializers, "")
        self._node.update((name, name) for name in index.node)
        self._longest = max(map(len, self._node), default=0)
        separators = (sum(1 for _ in _BETWEEN.finditer(name)) for name in self._node)
        self._most = min(max(separators, default=0), _MOST_SEPARATORS)

    def node(self, name: str) -> str:
        """Return the node that a name in metadata refers to; empty if none."""
        return self._exact(name) or self._unnamed(name) or ""

    def nodes(self, layer: str) -> tuple[str, ...]:
        """Return the nodes in the name of a layer, each once."""
        text = _KERNEL.sub("", _PROFILE.sub("", _HELPER.sub("", layer)))
        return tuple(dict.fromkeys(filter(None, self._terms(text))))

    def ends(self, layer: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the nodes in the first and the last name of a part compiled as a whole."""
        first, last = self._ends(layer)
        return self.nodes(first), self.nodes(last)

    def readers_at_start(self, layer: str) -> tuple[str, ...]:
        """Return the nodes that read the weight at the start of such a part."""
        first, _ = self._ends(layer)
        edges = self._index.readers(first) if self._node.get(first) == "" else ()
        return tuple(dict.fromkeys(edge.node for edge in edges if edge.node))

    def _ends(self, layer: str) -> tuple[str, str]:
        found = _FOREIGN.match(layer)
        text = found["ends"] if found else ""
        places = [match.start() for match in re.finditer(re.escape(_TO), text)]
        known = (place for place in places if self._is_between_names(text, place))
        place = next(known, places[0] if places else len(text))
        return text[:place], text[place + len(_TO) :]

    def _is_between_names(self, text: str, place: int) -> bool:
        """Whether the text before or after a position is a name of the model."""
        behind = place + len(_TO)
        # Texts are not copied to be looked up if no name is as long.
        return (place <= self._longest and text[:place] in self._node) or (
            len(text) - behind <= self._longest and text[behind:] in self._node
        )

    def _terms(self, text: str) -> Iterator[str]:
        """Yield terms of the text; the longest known name at each position is taken."""
        marks = [match.span() for match in _BETWEEN.finditer(text)]
        ends = [*(start for start, _ in marks), len(text)]
        starts = [0, *(end for _, end in marks)]
        at = 0
        while at < len(starts):
            found = self._term(text, starts[at], ends[at : at + self._most + 1])
            if found is None:
                at += 1
            else:
                yield found[0]
                at += found[1]

    def _term(self, text: str, start: int, ends: list[int]) -> tuple[str, int] | None:
        """Return the node at a position and the number of text parts it takes."""
        for resolve in (self._exact, self._similar):
            for count in range(len(ends), 0, -1):
                node = resolve(text[start : ends[count - 1]])
                if node is not None:
                    return node, count
        return None

    def _exact(self, name: str) -> str | None:
        return self._node.get(name)

    def _unnamed(self, name: str) -> str | None:
        tensor = name.removeprefix(_UNNAMED)
        if tensor == name or tensor not in self._index.value:
            return None
        producer = self._index.value[tensor].producer()
        return producer.name if producer is not None else None

    def _similar(self, name: str) -> str | None:
        """Return the node that TensorRT derived a name from."""
        original = _COPY.sub("", name)
        for prefix in _AROUND:
            original = original.removeprefix(prefix)
        if original in self._node:
            return self._node[original]
        return self._unnamed(original) or self._node.get(_NUMBER.sub("", original))
