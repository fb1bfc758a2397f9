"""Small sizes for every architecture, and what the tests do with a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"width": 8, "image": 32},
    "resnet34": {"width": 8, "image": 32},
    "resnet50": {"width": 8, "image": 32},
    "mobilenet_v2": {"width": 0.25, "image": 32},
    "efficientnet": {"width": 0.25, "image": 32},
    "shufflenet_v2": {"image": 32},
    "convnext": {"depths": (1, 1), "dims": (16, 32), "image": 32},
    "vit": {"layers": 2, "width": 32, "head_width": 16, "image": 32},
    "bert": {"layers": 2, "width": 32, "head_width": 16, "sequence": 16, "vocabulary": 100},
    "gpt": {"layers": 2, "width": 32, "head_width": 16, "sequence": 16, "vocabulary": 100},
    "unet": {"width": 4, "image": 32},
    "yolo": {"width": 4, "image": 64},
    "chain": {"nodes": 50},
}

# Probabilities, masks, box coordinates and BERT's products of queries and keys, before they are
# divided by the root of the head width, have a scale of their own.
_OWN_SCALE = (
    "softmax_output",
    "mask.",
    "scores.masked",
    "attention.scores_output",
    "decode.",
    "dfl.",
    "detections",
)


def random_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            inputs[value.name] = rng.standard_normal(shape, np.float32)
        elif value.name == "attention_mask":
            inputs[value.name] = np.ones(shape, np.int64)
            inputs[value.name][:, shape[1] * 3 // 4 :] = 0
        else:
            high = 2 if value.name == "token_type_ids" else 100
            inputs[value.name] = rng.integers(0, high, shape)
    return inputs


def run(
    model: onnx.ModelProto, seed: int = 0, inputs: dict[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    feeds = random_inputs(model, seed) if inputs is None else inputs
    return dict(zip(names, session.run(names, feeds), strict=True))


def activations(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Runs the model; returns every float value that it computes."""
    typed = onnx.shape_inference.infer_shapes(model)
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    for value in typed.graph.value_info:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            probed.graph.output.append(value)
    return run(probed)


def has_own_scale(name: str) -> bool:
    return any(mark in name for mark in _OWN_SCALE)


def parameters(model: onnx.ModelProto) -> int:
    """Trained numbers: weights and biases, without BatchNorm's statistics and scalar constants."""
    return sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.name.endswith((".weight", ".bias", "class_token", "pos_embed", "layer_scale"))
    )


def count(model: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph.node)
