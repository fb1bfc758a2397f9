"""What OpenVINO's runtime model tells about the layers that it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qdqtune.records.measurement import LayerTime

# What an executed layer computes in, by the words in which OpenVINO writes types.
_PRECISIONS = {
    "bf16": "bfloat16",
    "boolean": "bool",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
}
_NOT_LAYERS = frozenset({"Const", "Input", "Output", "Constant", "Parameter", "Result"})


def layer_times_of(runtime_model: Any, counters: Iterable[Any]) -> list[LayerTime]:
    """The layers of a compiled model, with the mean times of its runs so far.

    Args:
        runtime_model: What `CompiledModel.get_runtime_model` returns.
        counters: What `InferRequest.profiling_info` returns.
    """
    ms = {each.node_name: each.real_time.total_seconds() * 1e3 for each in counters}
    layers = []
    for op in runtime_model.get_ordered_ops():
        facts = {key: str(value.value) for key, value in dict(op.get_rt_info()).items()}
        kind = facts.get("layerType", op.get_type_name())
        if kind in _NOT_LAYERS:
            continue
        name = op.get_friendly_name()
        precision = facts.get("runtimePrecision", "")
        origins = facts.get("originalLayersNames", "")
        layers.append(
            LayerTime(
                name=name,
                op_type=kind,
                ms=ms.get(name, 0.0),
                provider=facts.get("primitiveType", ""),
                precision=_PRECISIONS.get(precision, precision),
                origins=tuple(origin for origin in origins.split(",") if origin),
                inputs=tuple(_port(each.get_source_output()) for each in op.inputs()),
                outputs=tuple(_port(each) for each in op.outputs()),
            )
        )
    return layers


def _port(output: Any) -> str:
    return f"{output.get_node().get_friendly_name()}:{output.get_index()}"
