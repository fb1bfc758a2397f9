"""Static descriptions of engines, available without importing them.

The built-in ones, and those of other packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class DialectChoice:
    """A dialect of an engine, and the conditions under which it applies.

    Attributes:
        name: The dialect.
        saturating: Whether it applies to CPUs that sum products of uint8 and int8 with saturation,
            or to those that don't; None for both.
        before_version: Applies to major versions below this one; None for all.
    """

    name: str
    saturating: bool | None = None
    before_version: int | None = None

    def fits(self, saturating: bool, version: int | None) -> bool:
        """Whether it applies to such a CPU and major version; None is the newest."""
        if self.saturating is not None and self.saturating != saturating:
            return False
        return self.before_version is None or (
            version is not None and version < self.before_version
        )


@dataclass(frozen=True)
class EngineEntry:
    """The static description of an engine.

    Attributes:
        name: Name on the command line and in records.
        install: The command that installs it, or where to get it.
        title: Its display name; empty if that is its name.
        module: Module whose presence means that it is installed; empty for a program.
        distributions: Packages that may provide the module, used to find its version.
        program: Program whose presence means that it is installed; empty for a module.
        worker_class: ``module:Class`` that measures with it; empty if this version can't.
        measures: Whether its times are measured. An engine with simulated times is never chosen
            automatically.
        dialects: Its dialects: the first that applies is used. By default, those of the reference
            engine.
        dialect_function: ``module:function`` that takes the engine's options and returns the name
            of a dialect, instead of `dialects`.
        isa_option: Option that limits its kernels' instruction set, in oneDNN's notation.
        isa_variables: Environment variables that do the same; the first that is set counts.
        float32_options: Options that make it compute float32 in float32, if it may choose another
            type by itself; the first is the one to recommend to users.
        runs_bfloat16: Whether it runs models in bfloat16, at least in some versions; where it turns
            out that it doesn't, the reference engine computes their outputs.
        takes_plugins: Whether it loads libraries with custom ops, from its option `plugins`.
        has_timing_cache: Whether it keeps kernel timings in a file, set by its option
            `timing_cache`.
        takes_shape_ranges: Whether it needs the smallest and largest input shapes, in its options
            `min_shapes`, `opt_shapes` and `max_shapes`.
        keeps_builds: Whether opening a model means to build it, which takes long, and what was
            built is kept: to open it again takes little.
        writes_layers: Whether it writes its layers to `SessionOptions.optimized_model_path`.
        needs_gpu: Whether it measures only on an NVIDIA GPU.
        lists_layers_anywhere: Whether it can list the layers of a model without that GPU.
        path_option: Option with the path of its program, if that isn't on PATH.
        arguments_option: Option with additional arguments for its program.
        version_function: ``module:function`` that takes the path of its program and returns its
            version.
        build_line_function: ``module:function`` that returns the command to build a model as it was
            measured; see `qdqtune.engines._registry.build_line`.
        refusal_function: ``module:function`` that takes a model file and the message with which the
            engine refused it, and returns the names of the ops that it has no kernel for.
        open_limit_s: Time to open a model after which it counts as hung.
        small_limit_s: The same for a model in one small file; None means `open_limit_s`.
        recorded_options: Options that may be taken from a run's record, with a pattern for their
            values: plain choices and small numbers. Options that name a file, program, library or
            argument, or set threads or memory, are excluded, since a record may be untrusted.
    """

    name: str
    install: str
    title: str = ""
    module: str = ""
    distributions: tuple[str, ...] = ()
    program: str = ""
    worker_class: str = ""
    measures: bool = True
    dialects: tuple[DialectChoice, ...] = ()
    dialect_function: str = ""
    isa_option: str = ""
    isa_variables: tuple[str, ...] = ()
    float32_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    runs_bfloat16: bool = False
    takes_plugins: bool = False
    has_timing_cache: bool = False
    takes_shape_ranges: bool = False
    keeps_builds: bool = False
    writes_layers: bool = False
    needs_gpu: bool = False
    lists_layers_anywhere: bool = False
    path_option: str = ""
    arguments_option: str = ""
    version_function: str = ""
    build_line_function: str = ""
    refusal_function: str = ""
    open_limit_s: float = 300.0
    small_limit_s: float | None = None
    recorded_options: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def takes_threads(self) -> bool:
        """Whether the number of threads can be set."""
        return not (self.needs_gpu or self.program)


# Small models usually take seconds; a small file that takes minutes was designed to.
_SMALL_LIMIT_S = 30.0
# Options that may be taken from a record; see `EngineEntry.recorded_options`.
_SWITCH, _NUMBER = "[01]", r"\d{1,9}(\.\d{1,9})?(e-\d\d)?"
_TENSORRT = EngineEntry(
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
    worker_class="qdqtune.engines.tensorrt._engine:TensorRtEngine",
    dialects=(DialectChoice("tensorrt-8", before_version=10), DialectChoice("tensorrt")),
    build_line_function="qdqtune.engines.tensorrt._trtexec_arguments:build_line",
    refusal_function="qdqtune.engines.tensorrt._refusals:refused_nodes",
    runs_bfloat16=True,
    takes_plugins=True,
    has_timing_cache=True,
    takes_shape_ranges=True,
    keeps_builds=True,
    writes_layers=True,
    needs_gpu=True,
    open_limit_s=3600.0,  # builds of large models can take many minutes
    recorded_options={
        "typing": "strong|weak",
        "precision": "fp16|bf16|fp32",
        "level": "[0-5]",
        "cuda_graph": _SWITCH,
        "device": r"\d{1,3}",
    },
)
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
        worker_class="qdqtune.engines._onnxruntime:OnnxRuntimeEngine",
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
        worker_class="qdqtune.engines._openvino:OpenVinoEngine",
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
    _TENSORRT,
    replace(
        _TENSORRT,
        name="trtexec",
        install="trtexec comes with TensorRT; put it on PATH",
        title="",
        module="",
        distributions=(),
        program="trtexec",
        path_option="path",
        arguments_option="args",
        version_function="qdqtune.engines.tensorrt._trtexec_program:version_of",
        worker_class="qdqtune.engines.tensorrt._trtexec:TrtexecEngine",
        needs_gpu=False,
    ),
    replace(
        _TENSORRT,
        name="tensorrt_rtx",
        install="pip install 'qdqtune[tensorrt-rtx]'",
        title="TensorRT-RTX",
        module="tensorrt_rtx",
        distributions=("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
        worker_class="qdqtune.engines.tensorrt._engine:TensorRtRtxEngine",
        dialects=(DialectChoice("tensorrt"),),
        build_line_function="",
        runs_bfloat16=False,
        has_timing_cache=False,
        lists_layers_anywhere=True,
    ),
    EngineEntry(
        "simulated",
        "it is part of qdqtune",
        title="The simulated engine",
        module="qdqtune",
        worker_class="qdqtune.testing.simulated:SimulatedEngine",
        measures=False,
        dialect_function="qdqtune.testing.simulated._machine:dialect_of",
        recorded_options={
            "profile": r"[a-z][\w-]{1,39}",
            "fusion": _SWITCH,
            "layout": _SWITCH,
            **dict.fromkeys(_SIMULATED_NUMBERS, _NUMBER),
        },
    ),
)
"""In display order."""


def entry_fault(entry: EngineEntry, name: str) -> str:
    """Return what is wrong with the entry of another package; empty if nothing is.

    Args:
        entry: The entry.
        name: The name under which it is announced.
    """
    from qdqtune.qdq.dialects import dialects  # slow to import, and plugins are rare

    if entry.name != name:
        return f"it is announced as '{name}', but its entry is called '{entry.name}'"
    if not (entry.module or entry.program):
        return "its entry names neither a module nor a program"
    for what in ("worker_class", "dialect_function"):
        path: str = getattr(entry, what)
        if path and len([part for part in path.split(":") if part]) != 2:
            return f"its {what} is '{path}', which is not like 'module:name'"
    known = dialects()
    unknown = [choice.name for choice in entry.dialects if choice.name not in known]
    if unknown:
        return f"there is no dialect '{unknown[0]}'; there are {', '.join(known)}"
    return ""
