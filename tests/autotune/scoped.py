"""Models whose nodes say which module they are in, as both exporters of torch write them."""

from __future__ import annotations

import numpy as np
import onnx

from qdqtune.search.regions._scopes import NAME_SCOPES
from tests.conftest import model_from_text

WIDTH = 8
_LAYER = """
    {n}1 = LayerNormalization(x{i}, g)
    {n}q = MatMul({n}1, wq) {n}qb = Add({n}q, g)
    {n}k = MatMul({n}1, wk) {n}kb = Add({n}k, g)
    {n}v = MatMul({n}1, wv) {n}vb = Add({n}v, g)
    {n}t = Transpose<perm = [0, 2, 1]>({n}kb)
    {n}s = MatMul({n}qb, {n}t)
    {n}p = Softmax({n}s)
    {n}c = MatMul({n}p, {n}vb)
    {n}o = MatMul({n}c, w) {n}ob = Add({n}o, g)
    {n}r = Add({n}ob, x{i})
    {n}2 = LayerNormalization({n}r, g)
    {n}f = MatMul({n}2, w) {n}fb = Add({n}f, g)
    {n}d = Div({n}fb, g) {n}e = Erf({n}d) {n}a = Mul({n}fb, {n}e)
    {n}h = MatMul({n}a, w) {n}hb = Add({n}h, g)
    x{j} = Add({n}r, {n}hb)
"""
_MODULES = (
    "norm1", *["attn.q_proj"] * 2, *["attn.k_proj"] * 2, *["attn.v_proj"] * 2, *["attn"] * 4,
    *["attn.o_proj"] * 2, "", "norm2", *["mlp.fc1"] * 2, *["mlp.act"] * 3, *["mlp.fc2"] * 2, "",
)  # fmt: skip


def encoder(exporter: str, layers: int = 2) -> onnx.ModelProto:
    """A pre-norm transformer encoder with a head."""
    body = "".join(_LAYER.format(n=f"l{i}", i=i, j=i + 1) for i in range(layers))
    text = f"""g (float[1,4,{WIDTH}] x0) => (float[1,4,{WIDTH}] y) {{
        {body}
        n = LayerNormalization(x{layers}, g)
        y = MatMul(n, w)
    }}"""
    eye = np.eye(WIDTH, dtype=np.float32)
    weights = {"w": eye, "wq": 2 * eye, "wk": 3 * eye, "wv": 4 * eye}
    model = model_from_text(text, **weights, g=np.full(WIDTH, 2, np.float32))
    scopes = [
        f"encoder.layer.{layer}.{module}".rstrip(".")
        for layer in range(layers)
        for module in _MODULES
    ]
    return with_scopes(model, [*scopes, "norm", "head"], exporter)


def with_scopes(
    model: onnx.ModelProto, scopes: list[str], exporter: str = "legacy"
) -> onnx.ModelProto:
    """The model with nodes that are in these modules, one for each node; `legacy` or `dynamo`."""
    for number, (node, scope) in enumerate(zip(model.graph.node, scopes, strict=True)):
        if exporter == "dynamo":
            parts = scope.split(".") if scope else []
            outer = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
            listed = str([*outer, f"{node.op_type.lower()}_{number}"])
            node.name = f"node_{node.op_type}_{number}"
            node.metadata_props.add(key=NAME_SCOPES, value=listed)
        else:
            node.name = f"/{scope.replace('.', '/')}/{node.op_type}_{number}".replace("//", "/")
    return model
