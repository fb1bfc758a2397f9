"""What is known of an engine without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DialectChoice:
    """A dialect that an engine speaks, and when.

    Attributes:
        name: The dialect.
        saturating: Whether it is for CPUs that sum products of uint8 and int8 with saturation, or
            for those that don't; None is for both.
        before_version: It is for major versions below this one; None is for all.
    """

    name: str
    saturating: bool | None = None
    before_version: int | None = None

    def fits(self, saturating: bool, version: int | None) -> bool:
        """Whether it applies to such a CPU in that major version; None is the newest."""
        if self.saturating is not None and self.saturating != saturating:
            return False
        return self.before_version is None or (
            version is not None and version < self.before_version
        )


@dataclass(frozen=True)
class EngineEntry:
    """An engine, as data.

    Attributes:
        name: Name on the command line and in records.
        install: The command that brings it, or where to get it.
        title: What people call it; empty if that is its name.
        module: Module whose presence means that it is installed; empty for a program.
        distributions: Packages that may have brought the module, for its version.
        program: Program whose presence means that it is installed; empty for a module.
        worker_class: ``module:Class`` that measures with it; empty when this version cannot.
        measures: Whether its times are measured. An engine that makes them up is never chosen
            unless it is named.
        dialects: What it speaks: the first that fits counts. By default, what the reference engine
            speaks.
        dialect_function: ``module:function`` that takes the engine's options and returns the name
            of a dialect, instead of `dialects`.
        isa_option: Option that keeps its kernels from newer instructions, in oneDNN's words.
        isa_variables: Environment variables that do the same; the first that is set counts.
        float32_options: Options with which it computes float32 in float32, if it may choose another
            type by itself; the first is the one to tell users.
        runs_bfloat16: Whether it runs models in bfloat16, at least in some versions; where it
            turns out that it doesn't, the reference engine computes their outputs.
        takes_plugins: Whether it loads libraries with custom ops: those in its option `plugins`.
        has_timing_cache: Whether it keeps what it learned about kernels in a file: the one in its
            option `timing_cache`.
        takes_shape_ranges: Whether it is told the smallest and largest shapes of inputs, by its
            options `min_shapes`, `opt_shapes` and `max_shapes`.
        writes_layers: Whether `SessionOptions.optimized_model_path` gets a file with its layers.
        needs_gpu: Whether it measures on an NVIDIA GPU only.
        lists_layers_anywhere: Whether it can list the layers of a model without that GPU.
        path_option: Option that says where its program is, if that isn't on PATH.
        arguments_option: Option with more arguments for its program.
        version_function: ``module:function`` that takes the path of its program and returns the
            version of that.
        build_line_function: ``module:function`` that tells the command which builds a model as it
            was measured; see `qdqtune.engines.registry.build_line`.
        open_limit_s: How long it may take to open a model before that counts as a hang.
        small_limit_s: The same for a model that is in one small file; None is `open_limit_s`.
        recorded_options: Options that may be taken from a run's record, with a pattern of the
            values: plain choices and small numbers. What names a file, a program, a library or an
            argument, or takes threads or memory, is not among them: a record may be a stranger's.
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
    writes_layers: bool = False
    needs_gpu: bool = False
    lists_layers_anywhere: bool = False
    path_option: str = ""
    arguments_option: str = ""
    version_function: str = ""
    build_line_function: str = ""
    open_limit_s: float = 300.0
    small_limit_s: float | None = None
    recorded_options: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def takes_threads(self) -> bool:
        """Whether it runs models on a number of threads that can be chosen."""
        return not (self.needs_gpu or self.program)
