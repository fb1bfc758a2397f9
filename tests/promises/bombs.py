"""Small hostile inputs, and what to run on them."""

from __future__ import annotations

from pathlib import Path

from tests.promises.bomb_files import FILES, WEIGHTS, sound_model
from tests.promises.bomb_models import MODELS

NAMES = (*MODELS, *WEIGHTS, *FILES)


def lay(name: str, folder: Path) -> list[list[str]]:
    """Write a bomb into an empty folder.

    Returns:
        Every command line that meets it.
    """
    folder.mkdir()
    if name in MODELS:
        (folder / "m.onnx").write_bytes(MODELS[name]().SerializeToString())
        return list(MODEL_LINES)
    sound_model(folder)
    if name in WEIGHTS:
        WEIGHTS[name](folder)
        return list(MODEL_LINES)
    return FILES[name](folder)


_TUNE = ["tune", "m.onnx", "--budget", "10", "--preset", "quick"]

MODEL_LINES = (
    ["bench", "m.onnx", "--runs", "2"],
    ["bench", "m.onnx", "--runs", "2", "--engine", "openvino"],
    ["bench", "m.onnx", "--runs", "2", "--engine", "simulated"],
    ["compare", "m.onnx", "m.onnx"],
    ["convert", "m.onnx", "--to", "fp16", "-o", "half.onnx"],
    ["export", "m.onnx", "--lists", "onnxruntime", "-o", "lists.json"],
    ["insert", "m.onnx", "--ops", "MatMul,Conv", "-o", "inserted.onnx"],
    ["inspect", "m.onnx"],
    ["inspect", "m.onnx", "--layers"],
    ["inspect", "m.onnx", "--groups"],
    ["optimize", "m.onnx", "-o", "optimized.onnx"],
    ["quantize", "m.onnx", "-o", "quantized.onnx"],
    ["quantize", "m.onnx", "--engine", "tensorrt", "-o", "for_tensorrt.onnx"],
    ["shapes", "m.onnx", "-o", "shaped.onnx"],
    ["strip", "m.onnx", "-o", "stripped.onnx"],
    ["verify", "m.onnx", "--against", "m.onnx", "--runs", "2"],
    [*_TUNE, "-o", "run"],
    [*_TUNE, "-o", "pieces", "--workflow", "subgraph"],
    ["python", "-m", "qdqtune.autotune.region_inspect", "-m", "m.onnx"],
)
