from __future__ import annotations

import itertools
import json
import time

import pytest
from onnx import parser

from qdqtune.engines._interface import thread_clock_is_fine
from qdqtune.engines._onnxruntime import layer_times_of
from qdqtune.records._measurement import LayerTime


def event(name, start_us, duration_us, **details):
    return {"name": name, "ts": start_us, "dur": duration_us, "args": details}


def kernel(name, start_us, duration_us, op_type="Conv", reads=("float",), index="0"):
    details = {
        "op_name": op_type,
        "provider": "CPUExecutionProvider",
        "node_index": index,
        "input_type_shape": [{kind: [1, 4]} for kind in reads],
        "output_type_shape": [{"float": [1, 4]}],
    }
    return event(f"{name}_kernel_time", start_us, duration_us, **details)


# The engine writes the event of a run after those of its kernels.
PROFILE = [
    event("session_initialization", 0, 50),
    kernel("a", 110, 900),
    event("model_run", 100, 1000),
    kernel("b", 2040, 10),
    kernel("a", 2010, 20),
    kernel("a", 2060, 20),
    event("model_run", 2000, 100),
    event("a_fence_before", 3005, 7),
    kernel("a", 3010, 60),
    kernel("b", 3080, 20),
    event("model_run", 3000, 110),
    kernel("a", 4010, 5000),
    kernel("b", 9080, 40),
    event("model_run", 4000, 5200),
]


def times(layers):
    return {layer.name: layer.ms for layer in layers}


def test_kernel_times_are_those_of_the_quicker_runs_that_count():
    layers = layer_times_of(json.dumps(PROFILE), skip_runs=1)
    assert layers == [
        LayerTime("a", "Conv", 0.05, "CPUExecutionProvider", "float32"),
        LayerTime("b", "Conv", 0.015, "CPUExecutionProvider", "float32"),
    ]


@pytest.mark.parametrize(
    ("op_type", "reads", "precision"),
    [
        ("QLinearConv", ("uint8", "float", "uint8", "int8"), "uint8"),
        ("Where", ("bool", "double", "double"), "float64"),
        ("Gather", ("float16", "int64"), "float16"),
        ("RandomNormal", (), "float32"),
    ],
)
def test_the_precision_is_the_type_that_is_read(op_type, reads, precision):
    events = [kernel("a", 110, 9, op_type, reads), event("model_run", 100, 20)]
    assert [layer.precision for layer in layer_times_of(json.dumps(events))] == [precision]


def test_kernels_in_a_body_count_with_the_op_that_has_it():
    events = [
        kernel("inner", 120, 20),
        kernel("inner", 150, 20),
        kernel("loop", 110, 80, "Loop", index="1"),
        kernel("behind", 190, 5, index="2"),
        event("model_run", 100, 100),
    ]
    assert times(layer_times_of(json.dumps(events))) == {"loop": 0.08, "behind": 0.005}


def test_wiring_comes_from_the_optimized_graph():
    text = "g (float[4] x) => (float[4] y) { t = Relu(x) u = Relu(t) v = Neg(u) y = Relu(v) }"
    optimized = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    for node, name in zip(optimized.graph.node, ["twin", "", "", "twin"], strict=True):
        node.name = name
    events = [
        kernel("twin", 110, 1, "Relu", index="4"),
        kernel("Relu_5", 120, 2, "Relu", index="5"),
        kernel("Neg_8", 130, 3, "Neg", index="8"),
        kernel("twin", 140, 4, "Relu", index="2"),
        event("model_run", 100, 100),
    ]
    layers = layer_times_of(json.dumps(events), optimized=optimized)
    assert [(layer.origins, layer.inputs, layer.outputs) for layer in layers] == [
        (("twin",), ("x",), ("t",)),
        ((), ("t",), ("u",)),
        ((), ("u",), ("v",)),
        (("twin",), ("v",), ("y",)),
    ]


def test_a_profile_without_runs_is_refused():
    with pytest.raises(ValueError, match="no run"):
        layer_times_of(json.dumps(PROFILE), skip_runs=4)


def test_a_coarse_thread_clock_is_not_used(monkeypatch):
    thread_clock_is_fine.cache_clear()
    calls = itertools.count()
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(calls) // 1000 * 10_000_000)
    assert not thread_clock_is_fine()
    thread_clock_is_fine.cache_clear()


def test_a_clock_that_stands_still_is_not_used(monkeypatch):
    thread_clock_is_fine.cache_clear()
    monkeypatch.setattr(time, "thread_time_ns", lambda: 5)
    assert not thread_clock_is_fine()
    thread_clock_is_fine.cache_clear()
