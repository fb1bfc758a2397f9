"""Small models of which it is known what pays on the simulated engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.conftest import model_from_text


def _weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.normal(size=shape) * np.sqrt(2.0 / np.prod(shape[1:]))).astype(np.float32)


def four_convs() -> onnx.ModelProto:
    """Convs n0, n2, n4 and n6, of four shapes: four choices, each of which pays (1.57x in all)."""
    rng = np.random.default_rng(0)
    return model_from_text(
        """g (float[1,32,32,32] x) => (float[1,128,8,8] y) {
            a = Conv<pads=[1,1,1,1]>(x, w0)
            b = Relu(a)
            c = Conv<pads=[1,1,1,1], strides=[2,2]>(b, w1)
            d = Relu(c)
            e = Conv<pads=[1,1,1,1], strides=[2,2]>(d, w2)
            f = Relu(e)
            y = Conv<pads=[1,1,1,1]>(f, w3)
        }""",
        w0=_weight(rng, 64, 32, 3, 3),
        w1=_weight(rng, 64, 64, 3, 3),
        w2=_weight(rng, 128, 64, 3, 3),
        w3=_weight(rng, 128, 128, 3, 3),
    )


def two_convs() -> onnx.ModelProto:
    """Convs n0 and n2, each of which pays."""
    rng = np.random.default_rng(0)
    return model_from_text(
        """g (float[1,64,32,32] x) => (float[1,64,16,16] y) {
            a = Conv<pads=[1,1,1,1]>(x, w0)
            b = Relu(a)
            y = Conv<pads=[2,2,2,2], strides=[2,2]>(b, w1)
        }""",
        w0=_weight(rng, 64, 64, 3, 3),
        w1=_weight(rng, 64, 64, 5, 5),
    )


def one_matmul() -> onnx.ModelProto:
    """As little as can be quantized."""
    return model_from_text(
        "g (float[4,16] x) => (float[4,16] y) { a = MatMul(x, w) y = Relu(a) }",
        w=_weight(np.random.default_rng(0), 16, 16),
    )


def tree(folder: Path) -> set[str]:
    """Everything below a folder, by its path from there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
