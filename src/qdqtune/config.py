"""Configs: one field per user option, grouped into parts that commands share.

`TuneConfig(threads=2, preset="quick")` holds what `qdqtune.tune` takes as keywords and what
`qdqtune tune` takes as flags. An option is added here, and used where it has an effect.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from qdqtune._image_config import ImageConfig
from qdqtune.options import (
    ANYTHING,
    CALLBACKS,
    ENGINE_SPECIFIC,
    KEY_VALUES,
    NAME,
    NAMES,
    PATH,
    REGEXES,
    SECONDS,
    SWITCH,
    WILDCARDS,
    Config,
    Identity,
    Kind,
    keyword,
    number,
    one_of,
    option,
    whole,
)
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest, ShapesOrRequest, request_of
from qdqtune.records._precision import AUTO, CHOICES, FLOAT_TYPES, QUANT_TYPES, Precision
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._untrusted_files import read_text

if TYPE_CHECKING:
    from qdqtune.records._tuning import TuneEvent

Path = str | os.PathLike[str]
Callback = Callable[["TuneEvent"], None]

# Below this, task metrics suffer: a MiniLM's sentences have cosines of 0.97 to float at 10 dB,
# 0.993 at 15 dB.
DEFAULT_MIN_SQNR_DB = 15.0
DEFAULT_THRESHOLD = 1.02

REGION, SUBGRAPH = "region", "subgraph"
WORKFLOWS = (REGION, SUBGRAPH)
PRESETS = ("quick", "default", "extensive")
RESUME = ("auto", "never")
AUTO_STRATEGY = "auto"
NONE = "none"
ACCURACY_MEASURES = ("auto", NONE)
STRUCTURE, SCOPE = "structure", "scope"
REGIONS = (AUTO, STRUCTURE, SCOPE)
LATENCY, ACCURACY = "latency", "accuracy"
OBJECTIVES = (LATENCY, ACCURACY)
FROM_PYTHON = "qdqtune.tune (Python)"

INPUTS = Kind(
    "an InputRequest, or shapes by the names of inputs",
    lambda value: isinstance(value, InputRequest | Mapping),
)
SHAPES = Kind(
    "shapes by the names of inputs", lambda _: True, str, InputRequest.from_text,
    metavar="NAME:1x3x224x224",
)  # fmt: skip
DIR = replace(PATH, metavar="DIR")
FILES = replace(NAMES, must_be="a list of paths", metavar="FILE")


def wildcards_in(path: str | os.PathLike[str]) -> list[str]:
    """Read wildcards of node names, one per line; skip blank lines and `#` comments.

    Raises:
        UsageError: If the file can't be read, or contains none.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(
            f"The node filter list {path} can't be read: {why}.",
            "It is a text file with one pattern per line.",
        ) from None
    lines = (line.strip() for line in text.splitlines())
    patterns = [line for line in lines if line and not line.startswith("#")]
    if not patterns:
        raise UsageError(
            f"The node filter list {path} holds no pattern.",
            "Write one wildcard per line, such as layer1.*, or leave the list out to tune every "
            "region.",
        )
    return patterns


def _command_line(text: str) -> str:
    shlex.split(text)  # an open quote is a ValueError
    return text


WILDCARD_FILE = replace(
    WILDCARDS,
    collect=lambda files: tuple(each for file in files for each in wildcards_in(file)),
    metavar="FILE",
)
COMMAND_LINE = Kind(
    "a command line with every quote closed", lambda value: isinstance(value, str), _command_line,
    metavar="'ARGS'",
)  # fmt: skip
_FUNCTION = Kind(
    "a function, or module:function",
    lambda value: isinstance(value, str) or callable(value),
    metavar="module:function",
)


def _method_name(text: str) -> str:
    """Return the current name of a range method; unknown names are reported by the caller."""
    try:
        return RangeMethod(text).value
    except ValueError:
        return text


@dataclass(frozen=True, kw_only=True)
class ProgressConfig(Config):
    """Who is told about a command's progress."""

    callbacks: Sequence[Callback] = keyword(
        (), CALLBACKS, "called with every step, and with how far long ones are"
    )


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Config):
    """Options for the engine that runs the model."""

    TITLE: ClassVar[str] = "engine"

    engine: str = option("auto", NAME, "the engine that runs the model")
    engine_options: Mapping[str, str] | None = option(
        None, KEY_VALUES, "options of the engine's own", "--engine_option", title=ENGINE_SPECIFIC
    )
    threads: int | None = option(None, whole(1), "threads per run", default_text="the engine's own")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(Config):
    """Options for measuring on several workers."""

    TITLE: ClassVar[str] = "workers (see docs/guides/workers.md)"

    workers: int = option(
        1, whole(1),
        "build and time this many candidates side by side: on a GPU each, or on cores of their own",
    )  # fmt: skip
    cluster: str | None = option(
        None, NAME, "measure on the nodes of a Ray cluster: auto, HOST:PORT or ray://HOST:PORT",
        default_text="on this machine",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig(Config):
    """Options for the quantized types."""

    TITLE: ClassVar[str] = "quantization"

    quant_type: str = option(
        "int8", one_of(QUANT_TYPES), "what to quantize to, as the engine's dialect offers"
    )
    optimize: bool = option(
        True, SWITCH, "fold constants and BatchNorms first", default_text="yes",
        identity=Identity.IF_SET,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SizeConfig(Config):
    """Options for the shapes of the model's inputs."""

    TITLE: ClassVar[str] = "sizes of open dims (see docs/guides/shapes.md)"

    inputs: ShapesOrRequest | None = option(
        None, INPUTS, "shapes to look at", "--shapes", "--opt_shapes", "--dim",
        default_text="as the model has them",
    )  # fmt: skip

    @property
    def input_request(self) -> InputRequest:
        """The requested shapes and dims as an `InputRequest`."""
        return request_of(self.inputs) or InputRequest()


@dataclass(frozen=True, kw_only=True)
class InputConfig(SizeConfig):
    """Options for the model's inputs."""

    TITLE: ClassVar[str] = "inputs (what is not given is chosen; see docs/guides/shapes.md)"

    inputs: ShapesOrRequest | None = option(
        None, INPUTS, "shapes to run at, and the ranges of random inputs",
        "--shapes", "--opt_shapes", "--dim", "--input_range",
        default_text="as the model has them",
    )  # fmt: skip
    seed: int = option(0, whole(0), "seed of everything that is random")

    @property
    def input_request(self) -> InputRequest:
        """The requested shapes, dims, ranges and seed as one `InputRequest`."""
        request = super().input_request
        return replace(request, seed=self.seed or request.seed)


@dataclass(frozen=True, kw_only=True)
class ShapeRangeConfig(Config):
    """Smallest and largest input shapes, for engines that build for a range of shapes."""

    TITLE: ClassVar[str] = ENGINE_SPECIFIC

    min_shapes: ShapesOrRequest | None = option(
        None, SHAPES, "the smallest shapes of inputs; --shapes are timed"
    )
    max_shapes: ShapesOrRequest | None = option(None, SHAPES, "the largest shapes of inputs")


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig(Config):
    """Options for calibration: where tensor ranges come from."""

    TITLE: ClassVar[str] = "calibration (see docs/guides/calibration.md)"

    calibration_data: Any = option(
        None, ANYTHING, "an .npy or .npz file, a folder of them or of images, or module:function",
        default_text="random inputs",
    )  # fmt: skip
    calibration_samples: int | None = option(None, whole(1), "use at most this many samples")
    calibration_method: RangeMethod | str | None = option(
        None, one_of([each.value for each in RangeMethod], _method_name),
        "how ranges follow from the data",
        default_text="all are tried, and the most accurate is used", identity=Identity.YES,
    )  # fmt: skip

    @property
    def range_method(self) -> RangeMethod | None:
        """The range method; None to try all of them."""
        return None if self.calibration_method is None else RangeMethod(self.calibration_method)


@dataclass(frozen=True, kw_only=True)
class NameFilters(Config):
    """Regular expressions that select what is quantized and what stays float."""

    TITLE: ClassVar[str] = "what to quantize (regular expressions; see docs/guides/quantize.md)"

    nodes_to_quantize: Sequence[str] = option(
        (), REGEXES, "quantize these nodes only, and what is between them"
    )
    nodes_to_exclude: Sequence[str] = option((), REGEXES, "nodes that stay float")
    op_types_to_quantize: Sequence[str] = option((), REGEXES, "quantize these op types only")
    op_types_to_exclude: Sequence[str] = option((), REGEXES, "op types that stay float")

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in fields(NameFilters):
            value = getattr(self, each.name)
            object.__setattr__(
                self, each.name, (value,) if isinstance(value, str) else tuple(value)
            )

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(NameFilters))


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Config):
    """Options for the search."""

    TITLE: ClassVar[str] = "search"

    workflow: str = option(
        REGION, one_of(WORKFLOWS),
        "region tries placements on the whole model; subgraph profiles the subgraphs that the "
        "engine fuses and assembles them, with far fewer builds",
        "--workflow", "--mode",
    )  # fmt: skip
    strategy: str = option(
        AUTO_STRATEGY, NAME,
        "what decides which placement to measure next; auto chooses by the number of choices",
        identity=Identity.IF_SET,
    )  # fmt: skip
    regions: str = option(
        AUTO, one_of(REGIONS),
        "what divides the model into regions: its structure, or the modules that exporters record "
        "as scopes of nodes; auto takes scopes where they are recorded, and what an earlier run "
        "in the folder took", identity=Identity.IF_SET,
    )  # fmt: skip
    dynamic_only: bool = option(
        False, SWITCH,
        "quantize only what can be quantized at run time, so that no calibration data is needed",
        default_text="no", mode=REGION, identity=Identity.IF_SET,
    )  # fmt: skip
    precision: str = option(
        AUTO, one_of(CHOICES),
        "the float type to tune the model in; auto is float16 for engines that use types as they "
        "are written, and the model's own type for all others",
    )  # fmt: skip
    preset: str = option("default", one_of(PRESETS), "how thorough to be")
    budget_s: float | None = option(
        None, SECONDS,
        "time for the whole run; the search ends early enough to check and write the best model",
        "--budget", default_text="no limit",
    )  # fmt: skip
    max_benchmarks: int | None = option(
        None, whole(1), "try at most this many candidates", default_text="the preset's number"
    )
    schemes_per_region: int | None = keyword(
        None, whole(1),
        "the same limit as a number for each pattern of the model; max_benchmarks goes first",
    )  # fmt: skip
    timing_runs: int | None = keyword(
        None, whole(1), "timed runs of each candidate, at least", default_text="the preset's number"
    )
    qdq_baseline: Path | None = option(
        None, PATH, "a quantized form of the model: also start from what is quantized in it"
    )
    keep_scales: bool = option(
        False, SWITCH,
        "keep the scales in --qdq_baseline, such as learned ones, instead of calibrating what it "
        "quantizes", default_text="no", identity=Identity.IF_SET,
    )  # fmt: skip
    pattern_cache: Path | None = option(
        None, PATH, "the pattern cache of another run: also try what it suggests"
    )
    cache_dir: Path | None = option(
        None, DIR, "a folder in which runs share what they found out about patterns and subgraphs",
        default_text="nothing is shared",
    )  # fmt: skip
    node_filter: Sequence[str] = option(
        (), WILDCARDS,
        "quantize only ops whose names match one of these wildcards, and ops like them",
        identity=Identity.YES,
    )  # fmt: skip
    region_filter: Sequence[str] = option(
        (), WILDCARD_FILE,
        "wildcards of node names: skip regions without a match, unless they have the pattern of a "
        "region with one; on a command line a file with one wildcard per line",
        "--node_filter_list", identity=Identity.IF_SET,
    )  # fmt: skip
    filters: NameFilters = keyword(
        NameFilters(), Kind("NameFilters", lambda value: isinstance(value, NameFilters)),
        "the same as regular expressions, as quantize has them", identity=Identity.IF_SET,
    )  # fmt: skip
    graph_json: Path | None = option(
        None, PATH, "TensorRT's layers of the model, which tell the fusion groups instead of the "
        "engine", mode=SUBGRAPH,
    )  # fmt: skip
    incremental_validation: bool = option(
        True, SWITCH,
        "compare assemblies on the whole model, and improve the best one by batches of groups; "
        "without, only check that what the subgraphs suggest is faster than the float model",
        default_text="yes", mode=SUBGRAPH,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AccuracyConfig(Config):
    """Accuracy limits that a result must meet."""

    TITLE: ClassVar[str] = "what the result must satisfy"

    min_sqnr_db: float | None = option(
        DEFAULT_MIN_SQNR_DB,
        number("none or a number of dB", metavar="DB", none=True),
        "least signal-to-noise ratio of every output against the float model, in dB, or none",
        "--min_sqnr", identity=Identity.YES,
    )  # fmt: skip
    performance_threshold: float = option(
        DEFAULT_THRESHOLD, number("a ratio of 1 or more, such as 1.02", 1.0),
        "keep the model as given below this speedup", identity=Identity.YES,
    )  # fmt: skip
    bias_correction: str = option(
        ACCURACY_MEASURES[0], one_of(ACCURACY_MEASURES),
        "auto takes the mean errors of quantized ops off their biases where outputs are far from "
        "float, if there is calibration data, and keeps that if it brings them nearer",
        identity=Identity.IF_SET,
    )  # fmt: skip
    smoothing: str = option(
        ACCURACY_MEASURES[0], one_of(ACCURACY_MEASURES),
        "auto also times the model with smoothed inputs of products where outputs are far from "
        "float, if there is calibration data and that brings them nearer",
        identity=Identity.IF_SET,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MetricConfig(Config):
    """Options for a user-defined accuracy metric."""

    TITLE: ClassVar[str] = AccuracyConfig.TITLE

    evaluate: str | Callable[[str], float] | None = option(
        None, _FUNCTION,
        "a function that takes the path of a model and returns a metric; higher is better",
        identity=Identity.YES,
    )  # fmt: skip
    max_drop: float = option(
        0.01, number("a number from 0 up", 0.0),
        "how much lower than the float model's that metric may be", needs="evaluate",
        identity=Identity.YES,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """Which of the models that meet the limits becomes the result."""

    TITLE: ClassVar[str] = AccuracyConfig.TITLE

    objective: str = option(
        LATENCY, one_of(OBJECTIVES),
        "hand over the fastest model that is accurate enough, or the most accurate one that is "
        "faster than the model as given", identity=Identity.IF_SET,
    )  # fmt: skip
    max_latency_ms: float | None = option(
        None, number("a number of milliseconds above 0", 1e-6, metavar="MS"),
        "hand over the most accurate model that takes at most this many milliseconds",
        "--max_latency", default_text="no limit", identity=Identity.IF_SET,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutputConfig(Config):
    """Output folder of a run, and whether to resume or replace an earlier run in it."""

    TITLE: ClassVar[str] = "output"

    output_dir: Path = option(
        "autotuner_output",
        DIR,
        "folder for everything that is written; an earlier run in it is resumed",
        "-o", "--output_dir",
    )  # fmt: skip
    state_file: Path | None = keyword(
        None, PATH, "where the state is written, and what to resume from if it exists",
        default_text="in the output folder",
    )  # fmt: skip
    resume: str = option(
        "auto", one_of(RESUME), "resume an earlier run in DIR, or refuse to",
        exclusive="earlier run",
    )  # fmt: skip
    restart: bool = option(
        False, SWITCH, "start again; an earlier run in DIR is kept in DIR/earlier",
        exclusive="earlier run",
    )  # fmt: skip
    force: bool = option(
        False, SWITCH, "replace what is in DIR, including an earlier run", exclusive="earlier run"
    )
    report: bool = option(
        True, SWITCH, "write report.html, and measure what only it shows", default_text="yes"
    )
    command: str = keyword(FROM_PYTHON, NAME, "what the summary says this call came from")


@dataclass(frozen=True, kw_only=True)
class TuneConfig(
    OutputConfig,
    EngineConfig,
    WorkerConfig,
    QuantizationConfig,
    SearchConfig,
    AccuracyConfig,
    MetricConfig,
    ObjectiveConfig,
    CalibrationConfig,
    ImageConfig,
    InputConfig,
    ShapeRangeConfig,
    ProgressConfig,
):
    """All options of `qdqtune.tune`."""


FLOAT_TYPE = one_of([each.value for each in Precision], lambda text: _precision_name(text))
_AUTOTUNE = Kind(
    f"True, or one of {', '.join(PRESETS)}",
    lambda value: isinstance(value, bool) or value in PRESETS,
    choices=PRESETS,
    bare="default",
)


def _precision_name(text: str) -> str:
    """The short name of a float type, such as fp16 for float16."""
    return FLOAT_TYPES[text].value if text in FLOAT_TYPES else text


def float_type_named(name: str | None) -> Precision | None:
    """Return the float type with a short or long name; None stays None."""
    return None if name is None else Precision(_precision_name(name))


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig(
    EngineConfig,
    QuantizationConfig,
    NameFilters,
    AccuracyConfig,
    CalibrationConfig,
    ImageConfig,
    InputConfig,
    ProgressConfig,
):
    """All options of `qdqtune.quantize`.

    Attributes:
        quantize_mode: Another name of `quant_type`.
        high_precision_dtype: Another name of `precision`.
    """

    TITLE: ClassVar[str] = "output"

    engine: str = option(
        "auto", NAME,
        "whose rules and dialect are used; it need not be installed (tensorrt8 is TensorRT 8)",
    )  # fmt: skip
    quant_type: str = option(
        "int8", one_of(QUANT_TYPES), "what to quantize to, as the dialect offers",
        "--quant_type", "--quantize_mode",
    )  # fmt: skip
    performance_threshold: float | None = option(  # type: ignore[assignment]
        DEFAULT_THRESHOLD, number("none or a ratio of 1 or more, such as 1.02", 1.0, none=True),
        "hand the model back below this speedup; none does not time it",
    )  # fmt: skip
    dialect: str | None = option(
        None, NAME, "a dialect by name, instead of the engine's own on this machine",
        title=QuantizationConfig.TITLE,
    )  # fmt: skip
    per_channel: bool = option(
        True, SWITCH, "one scale per output channel of a weight, instead of one per weight",
        default_text="yes", title=QuantizationConfig.TITLE,
    )  # fmt: skip
    dynamic: bool = option(
        False, SWITCH, "quantize the inputs of products at run time, as far as the dialect can",
        title=QuantizationConfig.TITLE,
    )  # fmt: skip
    precision: Precision | str | None = option(
        None, FLOAT_TYPE, "float type of what is not quantized",
        "--precision", "--high_precision_dtype", default_text="the model's own",
        title=QuantizationConfig.TITLE,
    )  # fmt: skip
    autotune: str | bool | None = option(
        None, _AUTOTUNE, "search for the placement by measuring, as tune does, instead of by rules",
        title="instead of rules (see docs/guides/quantize.md)",
    )  # fmt: skip
    autotune_output_dir: Path | None = option(
        None, DIR, "the folder of that search", default_text="OUT_autotune",
        title="instead of rules (see docs/guides/quantize.md)",
    )  # fmt: skip
    save_placement: Path | None = option(None, PATH, "also write the placement")
    report: Path | None = option(None, PATH, "also write a page that shows the result")
    force: bool = option(False, SWITCH, "replace files that exist")
    command: str = keyword(
        "qdqtune.quantize (Python)", NAME, "what the page says this call came from"
    )
    quantize_mode: InitVar[str | None] = None
    high_precision_dtype: InitVar[Precision | str | None] = None

    def __post_init__(
        self, quantize_mode: str | None, high_precision_dtype: Precision | str | None
    ) -> None:
        if quantize_mode is not None:
            object.__setattr__(self, "quant_type", quantize_mode)
        if high_precision_dtype is not None:
            object.__setattr__(self, "precision", high_precision_dtype)
        super().__post_init__()

    @property
    def float_type(self) -> Precision | None:
        """The float type of ops that are not quantized; None keeps the model's type."""
        return float_type_named(self.precision)


@dataclass(frozen=True, kw_only=True)
class BenchConfig(EngineConfig, InputConfig, ShapeRangeConfig, ProgressConfig):
    """All options of `qdqtune.bench`."""

    TITLE: ClassVar[str] = "timing (see docs/concepts/timing.md)"

    runs: int | None = option(
        None, whole(1), "timed runs per model",
        default_text="what fits into some seconds per model, and fewer if the answer is clear",
    )  # fmt: skip
    min_time_s: float | None = option(
        None, SECONDS, "least time to measure each model for, however clear the answer is",
        "--min_time", default_text="until the answer is clear",
    )  # fmt: skip
    opening: int = keyword(
        0, whole(0), "the number of this call among several whose results are taken together"
    )


@dataclass(frozen=True, kw_only=True)
class EngineFlagsConfig(Config):
    """Settings that a command line turns into options of the engines that have them."""

    TITLE: ClassVar[str] = ENGINE_SPECIFIC

    timing_cache: Path | None = option(
        None, PATH, "where TensorRT keeps what it learned about kernels",
        default_text="one of qdqtune's, for each GPU and version",
    )  # fmt: skip
    plugin_libraries: Sequence[str] = option(
        (), FILES, "TensorRT plugins to load", "--plugin_libraries", "--plugins"
    )
    trtexec_benchmark_args: str | None = option(
        None, COMMAND_LINE,
        "more arguments for trtexec, in one string; what it says of shapes holds for every engine",
        "--trtexec_benchmark_args", "--trtexec_args",
    )  # fmt: skip
