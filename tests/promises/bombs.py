"""Small hostile inputs, and what to run on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from tests.promises.bomb_files import FILES, WEIGHTS, sound_model
from tests.promises.bomb_models import MODELS

NAMES = (*MODELS, *WEIGHTS, *FILES)

_TUNE = ["tune", "m.onnx", "--budget", "10", "--preset", "quick"]
_WEIGHTED = ("MatMul", "Conv", "ConvTranspose", "Add", "Relu")


def lay(name: str, folder: Path) -> list[list[str]]:
    """Write a bomb into an empty folder.

    Returns:
        Every command line that meets it.
    """
    folder.mkdir()
    sound_model(folder)
    if name in FILES:
        return FILES[name](folder)
    if name in MODELS:
        (folder / "m.onnx").write_bytes(MODELS[name]().SerializeToString())
    else:
        WEIGHTS[name](folder)
    return _model_lines(folder)


def _model_lines(folder: Path) -> list[list[str]]:
    """Every command that takes a model, with Q/DQ in it for those that ask for that."""
    op = _quantize_input(folder)
    return [
        ["bench", "m.onnx", "--runs", "2"],
        ["bench", "m.onnx", "--runs", "2", "--engine", "openvino"],
        ["bench", "m.onnx", "--runs", "2", "--engine", "simulated"],
        ["compare", "m.onnx", "q.onnx"],
        ["convert", "m.onnx", "--to", "fp16", "-o", "half.onnx"],
        ["export", "q.onnx", "--exclusion_list", "onnxruntime", "-o", "lists.json"],
        ["insert", "m.onnx", "--ops", op, "-o", "inserted.onnx"],
        ["inspect", "m.onnx"],
        ["inspect", "m.onnx", "--groups"],
        ["inspect", "m.onnx", "--layers"],
        ["optimize", "m.onnx", "-o", "optimized.onnx"],
        ["quantize", "m.onnx", "-o", "quantized.onnx", "--report", "quantized.html"],
        ["shapes", "m.onnx", "--batch_size", "2", "-o", "shaped.onnx"],
        ["strip", "q.onnx", "-o", "stripped.onnx"],
        ["verify", "q.onnx", "--against", "m.onnx", "--runs", "2"],
        [*_TUNE, "-o", "run"],
        ["report", "run"],
        [*_TUNE, "-o", "pieces", "--workflow", "subgraph"],
    ]


def _quantize_input(folder: Path) -> str:
    """Write the model with Q/DQ behind its input; returns the type of an op that it has."""
    path = folder / "m.onnx"
    quantized = folder / "q.onnx"
    model = onnx.ModelProto()
    if path.is_file() and path.stat().st_size < 1 << 30:
        try:
            model.ParseFromString(path.read_bytes())
        except DecodeError:
            quantized.write_bytes(path.read_bytes())
    if not model.graph.node:
        if not quantized.exists():
            quantized.hardlink_to(path)  # the same pipe, or the same hole
        return "Relu"
    types = {node.op_type for node in model.graph.node}
    for node in model.graph.node:
        for position, read in enumerate(node.input):
            if read == "x":
                node.input[position] = "x.dequantized"
    scale = numpy_helper.from_array(np.float32(0.1), "x.scale")
    zero = numpy_helper.from_array(np.int8(0), "x.zero")
    model.graph.initializer.extend([scale, zero])
    ends = ("x", "x.quantized"), ("x.quantized", "x.dequantized")
    for op, (source, target) in zip(("QuantizeLinear", "DequantizeLinear"), ends, strict=True):
        node = helper.make_node(op, [source, scale.name, zero.name], [target], name=target)
        model.graph.node.append(node)
    order = [*model.graph.node[-2:], *model.graph.node[:-2]]
    del model.graph.node[:]
    model.graph.node.extend(order)
    quantized.write_bytes(model.SerializeToString())
    return next((op for op in _WEIGHTED if op in types), "Relu")
