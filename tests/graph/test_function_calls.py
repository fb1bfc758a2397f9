"""Functions that stand for more nodes than any memory holds are refused, not expanded."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtune.graph._files import load_model
from qdqtune.graph._opset import raise_opset
from qdqtune.records._errors import ModelError

HEAD = '<ir_version: 8, opset_import: ["" : {opset}, "d" : 1]>'
GRAPH = "g (float[1,8] x) => (float[1,8] y) {{ y = d.f{last}(x) }}"
FUNCTION = """
<domain: "d", opset_import: ["" : {opset}, "d" : 1]>
f{number} (x) => (y) {{ t = {inner}(x) y = {inner}(t) }}
"""
IN_A_BODY = """
<domain: "d", opset_import: ["" : {opset}, "d" : 1]>
f{number} (x) => (y) {{
    c = Constant<value = bool {{1}}>()
    y = If (c) <
        then_branch = a () => (p) {{ q = {inner}(x) p = {inner}(q) }},
        else_branch = b () => (r) {{ r = Identity(x) }}
    >
}}
"""


def doubling(levels: int, function: str = FUNCTION, opset: int = 17) -> onnx.ModelProto:
    """Each function calls the one below twice."""
    texts = [HEAD.format(opset=opset), GRAPH.format(last=levels - 1)]
    for number in range(levels):
        inner = f"d.f{number - 1}" if number else "Relu"
        texts.append(function.format(number=number, inner=inner, opset=opset))
    return onnx.parser.parse_model("\n".join(texts))


@pytest.mark.parametrize("levels", [22, 60, 100])
@pytest.mark.parametrize("function", [FUNCTION, IN_A_BODY], ids=["straight", "in a body"])
def test_functions_that_double_are_refused(tmp_path: Path, levels: int, function: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(doubling(levels, function), path)
    assert path.stat().st_size < 30_000
    with pytest.raises(ModelError, match=r"expand to .* nodes"):
        load_model(path)


def test_functions_that_stay_small_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(doubling(10), path)
    assert len(load_model(path).functions) == 10


def test_what_can_be_read_but_not_inlined_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(doubling(15, opset=12), path)
    with pytest.raises(ModelError, match="'f0' is called 16384 times"):
        raise_opset(load_model(path), 13)


def test_what_is_inlined_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(doubling(4, opset=12), path)
    model = load_model(path)
    raise_opset(model, 13)
    assert [node.op_type for node in model.graph] == ["Relu"] * 16
