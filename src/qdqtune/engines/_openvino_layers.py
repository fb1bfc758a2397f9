"""Reads layers from OpenVINO's runtime model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qdqtune.records._measurement import LayerTime

PRECISIONS = {
    "bf16": "bfloat16", "boolean": "bool", "f16": "float16", "f32": "float32", "f64": "float64",
    "i8": "int8", "i32": "int32", "i64": "int64", "u8": "uint8",
}  # fmt: skip
"""Our names of types, by OpenVINO's names."""
_FACTS = (
    "layerType", "originalLayersNames", "outputPrecisions", "primitiveType", "runtimePrecision",
)  # fmt: skip
_CONSTANTS = frozenset({"Const", "Constant"})
# For these, the runtime precision is that of the condition or of the trip count.
_WITH_BODIES = frozenset({"If", "Loop", "TensorIterator"})
_NOT_LAYERS = frozenset({"Input", "Output", "Parameter", "Result"})


def layer_times_of(
    runtime_model: Any,
    counters: Iterable[Any],
    earlier: Iterable[Any] = (),
    earlier_runs: int = 0,
    runs: int = 1,
) -> list[LayerTime]:
    """Return the layers of a compiled model, with the mean times of its last runs.

    OpenVINO's counters are means over all runs so far, in whole microseconds. The counters after
    the first runs are subtracted from those after all runs.

    Args:
        runtime_model: What `CompiledModel.get_runtime_model` returns.
        counters: What `InferRequest.profiling_info` returns after all runs.
        earlier: What it returned after the first runs, which don't count.
        earlier_runs: Number of first runs.
        runs: Number of runs after them.

    Returns:
        The layers in order of execution, without those that OpenVINO ran only once because they
        depend on constants only.
    """
    before = _milliseconds(earlier)
    spent = {
        name: max(0.0, ms + (ms - before.get(name, ms)) * earlier_runs / runs)
        for name, ms in _milliseconds(counters).items()
    }
    layers = []
    constants: set[str] = set()
    for op in runtime_model.get_ordered_ops():
        given = dict(op.get_rt_info())
        facts = {key: str(given[key].value) for key in _FACTS if key in given}
        kind = facts.get("layerType", op.get_type_name())
        inputs = tuple(_port(each.get_source_output()) for each in op.inputs())
        outputs = tuple(_port(each) for each in op.outputs())
        if kind in _CONSTANTS or (inputs and constants.issuperset(inputs)):
            constants.update(outputs)
        elif kind not in _NOT_LAYERS:
            name = op.get_friendly_name()
            precision = facts.get("runtimePrecision", "")
            if kind in _WITH_BODIES:
                precision = facts.get("outputPrecisions", precision).partition(",")[0]
            origins = facts.get("originalLayersNames", "")
            layers.append(
                LayerTime(
                    name=name,
                    op_type=kind,
                    ms=spent.get(name, 0.0),
                    provider=facts.get("primitiveType", ""),
                    precision=PRECISIONS.get(precision, precision),
                    origins=tuple(origin for origin in origins.split(",") if origin),
                    inputs=tuple(tensor for tensor in inputs if tensor not in constants),
                    outputs=outputs,
                )
            )
    return layers


def _milliseconds(counters: Iterable[Any]) -> dict[str, float]:
    return {each.node_name: each.real_time.total_seconds() * 1e3 for each in counters}


def _port(output: Any) -> str:
    """Return a name for a tensor, which never matches one in the model."""
    return f"{output.get_node().get_friendly_name()} output {output.get_index()}"
