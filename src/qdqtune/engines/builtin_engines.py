"""The built-in engines, as data."""

from __future__ import annotations

from qdqtune.engines.engine_entry import DialectChoice, EngineEntry

# Builds of large models can take many minutes.
_BUILD_LIMIT_S = 3600.0
# Small models usually take seconds; a small file that takes minutes was designed to.
_SMALL_LIMIT_S = 30.0
_BUILD_LINE = "qdqtune.engines.trtexec.deployment:build_line"
_TENSORRT_DIALECTS = (DialectChoice("tensorrt-8", before_version=10), DialectChoice("tensorrt"))
# Options that may be taken from a record; see `EngineEntry.recorded_options`.
_SWITCH, _NUMBER = "[01]", r"\d{1,9}(\.\d{1,9})?(e-\d\d)?"
_TENSORRT_RECORDED = {
    "typing": "strong|weak",
    "precision": "fp16|bf16|fp32",
    "level": "[0-5]",
    "cuda_graph": _SWITCH,
    "device": r"\d{1,3}",
}
_SIMULATED_NUMBERS = (
    "build_s", "build_kernel_s", "seed", "noise", "correlation", "drift", "drift_s", "spikes",
    "spike_size", "offset",
)  # fmt: skip
BUILTIN_ENGINES = (
    EngineEntry(
        "onnxruntime",
        "pip install 'qdqtune[onnxruntime]'",
        title="ONNX Runtime",
        module="onnxruntime",
        distributions=("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
        worker_class="qdqtune.engines.onnxruntime:OnnxRuntimeEngine",
        dialects=(DialectChoice("onnxruntime-novnni", True), DialectChoice("onnxruntime")),
        small_limit_s=_SMALL_LIMIT_S,
        recorded_options={
            "graph_optimization_level": "all|extended|basic|disable_all",
            "enable_mem_pattern": _SWITCH,
        },
    ),
    EngineEntry(
        "openvino",
        "pip install 'qdqtune[openvino]'",
        title="OpenVINO",
        module="openvino",
        distributions=("openvino",),
        worker_class="qdqtune.engines.openvino:OpenVinoEngine",
        dialects=(DialectChoice("openvino-novnni", True), DialectChoice("openvino")),
        small_limit_s=_SMALL_LIMIT_S,
        isa_option="max_cpu_isa",
        isa_variables=("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
        float32_options={"inference_precision": "f32", "INFERENCE_PRECISION_HINT": "f32"},
        runs_bfloat16=True,
        recorded_options={
            "device": "CPU|GPU|NPU",
            "inference_precision": "f32|f16|bf16",
            "execution_mode": "ACCURACY|PERFORMANCE",
            "performance_hint": "LATENCY|THROUGHPUT",
            "max_cpu_isa": "[A-Z][A-Z0-9_]{1,39}",
        },
    ),
    EngineEntry(
        "tensorrt",
        "pip install 'qdqtune[tensorrt]'",
        title="TensorRT",
        module="tensorrt",
        distributions=(
            "tensorrt",
            "tensorrt-cu13",
            "tensorrt-cu12",
            "tensorrt-bindings",
            "tensorrt-cu13-bindings",
            "tensorrt-cu12-bindings",
        ),
        worker_class="qdqtune.engines.tensorrt.engine:TensorRtEngine",
        dialects=_TENSORRT_DIALECTS,
        build_line_function=_BUILD_LINE,
        runs_bfloat16=True,
        takes_plugins=True,
        has_timing_cache=True,
        takes_shape_ranges=True,
        writes_layers=True,
        needs_gpu=True,
        open_limit_s=_BUILD_LIMIT_S,
        recorded_options=_TENSORRT_RECORDED,
    ),
    EngineEntry(
        "trtexec",
        "trtexec comes with TensorRT; put it on PATH",
        program="trtexec",
        path_option="path",
        arguments_option="args",
        version_function="qdqtune.engines.trtexec.version:version_of",
        worker_class="qdqtune.engines.trtexec.engine:TrtexecEngine",
        dialects=_TENSORRT_DIALECTS,
        build_line_function=_BUILD_LINE,
        runs_bfloat16=True,
        takes_plugins=True,
        has_timing_cache=True,
        takes_shape_ranges=True,
        writes_layers=True,
        open_limit_s=_BUILD_LIMIT_S,
        recorded_options=_TENSORRT_RECORDED,
    ),
    EngineEntry(
        "tensorrt_rtx",
        "pip install 'qdqtune[tensorrt-rtx]'",
        title="TensorRT-RTX",
        module="tensorrt_rtx",
        distributions=("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
        worker_class="qdqtune.engines.tensorrt.engine:TensorRtRtxEngine",
        dialects=(DialectChoice("tensorrt"),),
        takes_plugins=True,
        takes_shape_ranges=True,
        writes_layers=True,
        needs_gpu=True,
        lists_layers_anywhere=True,
        open_limit_s=_BUILD_LIMIT_S,
        recorded_options=_TENSORRT_RECORDED,
    ),
    EngineEntry(
        "simulated",
        "it is part of qdqtune",
        title="The simulated engine",
        module="qdqtune",
        worker_class="qdqtune.engines.simulated:SimulatedEngine",
        measures=False,
        dialect_function="qdqtune.engines.simulated.dialects:dialect_of",
        recorded_options={
            "profile": r"[a-z][\w-]{1,39}",
            "fusion": _SWITCH,
            "layout": _SWITCH,
            **dict.fromkeys(_SIMULATED_NUMBERS, _NUMBER),
        },
    ),
)
"""In display order."""
