"""Static description of an engine, available without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        writes_layers: Whether it writes its layers to `SessionOptions.optimized_model_path`.
        needs_gpu: Whether it measures only on an NVIDIA GPU.
        lists_layers_anywhere: Whether it can list the layers of a model without that GPU.
        path_option: Option with the path of its program, if that isn't on PATH.
        arguments_option: Option with additional arguments for its program.
        version_function: ``module:function`` that takes the path of its program and returns its
            version.
        build_line_function: ``module:function`` that returns the command to build a model as it was
            measured; see `qdqtune.engines.registry.build_line`.
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
        """Whether the number of threads can be set."""
        return not (self.needs_gpu or self.program)
