"""Names of nodes that stay float, in the formats of other quantization tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

ListForm = list[str] | dict[str, list[str]]


def _plain(names: Sequence[str]) -> ListForm:
    return list(names)


def _anchored(names: Sequence[str]) -> ListForm:
    # ModelOpt matches regular expressions at the beginning of names.
    return [f"^{re.escape(name)}$" for name in names]


def _scope(names: Sequence[str]) -> ListForm:
    return {"names": list(names)}


_FORMS: dict[str, Callable[[Sequence[str]], ListForm]] = {
    "onnxruntime": _plain,
    "modelopt": _anchored,
    "nncf": _scope,
}

#: Tools that can be told: `nodes_to_exclude` of ONNX Runtime's `quantize_static`, the same of
#: ModelOpt, and the arguments of NNCF's `IgnoredScope`.
TOOLS = tuple(_FORMS)


def exclusion_list(tool: str, names: Sequence[str]) -> ListForm:
    """Return a list of nodes not to quantize, in the format that a tool takes.

    Args:
        tool: One of `TOOLS`.
        names: Names of nodes.
    """
    return _FORMS[tool](names)


def exclusion_text(tool: str, names: Sequence[str]) -> str:
    """Format the same list as a JSON file."""
    return json.dumps(exclusion_list(tool, names), indent=1)
