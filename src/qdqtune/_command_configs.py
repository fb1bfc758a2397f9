"""Configs of the smaller functions and commands; see `qdqtune.config`.

They lie apart so that `qdqtune tune` starts without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from qdqtune._image_config import ImageConfig
from qdqtune.config import (
    FLOAT_TYPE,
    INPUTS,
    REGIONS,
    CalibrationConfig,
    EngineConfig,
    InputConfig,
    OutputConfig,
    Path,
    ProgressConfig,
    QuantizationConfig,
    ShapeRangeConfig,
    SizeConfig,
    float_type_named,
)
from qdqtune.options import (
    ANYTHING,
    MODEL,
    NAME,
    NAMES,
    PATH,
    SWITCH,
    Config,
    one_of,
    option,
    whole,
)
from qdqtune.records._inputs import ShapesOrRequest
from qdqtune.records._precision import AUTO, QUANT_TYPES, Precision
from qdqtune.records._results import EXCLUSION_TOOLS


@dataclass(frozen=True, kw_only=True)
class OverwriteConfig(Config):
    """Whether existing files may be replaced."""

    TITLE: ClassVar[str] = OutputConfig.TITLE

    force: bool = option(False, SWITCH, "replace files that exist")


@dataclass(frozen=True, kw_only=True)
class DialectConfig(Config):
    """Options for the dialect, for functions that need not run the model."""

    TITLE: ClassVar[str] = QuantizationConfig.TITLE

    engine: str = option("auto", NAME, "the engine whose dialect is used; it need not be installed")
    dialect: str | None = option(
        None, NAME, "a dialect by name, instead of the engine's own on this machine"
    )
    quant_type: str = option(
        "int8", one_of(QUANT_TYPES), "what to quantize to, as the dialect offers"
    )


@dataclass(frozen=True, kw_only=True)
class InsertConfig(
    DialectConfig, CalibrationConfig, ImageConfig, InputConfig, OverwriteConfig, ProgressConfig
):
    """All options of `qdqtune.insert`."""

    TITLE: ClassVar[str] = "what to quantize (all of these together)"

    ops: Sequence[str] = option((), replace(NAMES, metavar="OP"), "all ops of these types")
    nodes: Sequence[str] = option((), replace(NAMES, metavar="NODE"), "the nodes of these names")
    tensors: Sequence[str] = option(
        (), replace(NAMES, metavar="TENSOR"), "the tensors of these names"
    )
    dynamic: Sequence[str] = option(
        (), replace(NAMES, metavar="OP"),
        "op types or nodes whose input is quantized at run time, without calibration",
    )  # fmt: skip
    placement: Path | None = option(None, PATH, "a placement.json, exactly as it is")
    high_precision_dtype: Precision | str | None = option(
        None, FLOAT_TYPE, "float type of what is not quantized", default_text="the model's own",
        title=QuantizationConfig.TITLE,
    )  # fmt: skip
    save_placement: Path | None = option(
        None, PATH, "also write the placement", title=OverwriteConfig.TITLE
    )

    @property
    def float_type(self) -> Precision | None:
        """The float type of ops that are not quantized; None keeps the model's type."""
        return float_type_named(self.high_precision_dtype)


@dataclass(frozen=True, kw_only=True)
class StripConfig(InputConfig, OverwriteConfig):
    """All options of `qdqtune.strip`."""

    TITLE: ClassVar[str] = OverwriteConfig.TITLE

    weights_from: Any = option(None, MODEL, "the float model that has the original weights")
    save_placement: Path | None = option(None, PATH, "also write the placement: what was quantized")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(InputConfig, OverwriteConfig):
    """All options of `qdqtune convert`."""

    TITLE: ClassVar[str] = "precision"

    to: str | None = option(None, FLOAT_TYPE, "the type to convert to", required=True)
    keep_io: bool = option(True, SWITCH, "inputs and outputs keep their types", default_text="yes")
    keep_nodes: Sequence[str] = option(
        (), replace(NAMES, metavar="NODE"), "names of nodes that keep their precision"
    )
    keep_ops: Sequence[str] = option(
        (), replace(NAMES, metavar="OP"), "op types that keep their precision"
    )


@dataclass(frozen=True, kw_only=True)
class ShapesConfig(OverwriteConfig):
    """All options of `qdqtune shapes`."""

    TITLE: ClassVar[str] = "sizes to fix"

    batch_size: int | None = option(None, whole(1), "the leading dim of every input")
    inputs: ShapesOrRequest | None = option(
        None, INPUTS, "the shapes to fix", "--set", "--shapes", "--dim"
    )


@dataclass(frozen=True, kw_only=True)
class ExportConfig(OverwriteConfig):
    """All options of `qdqtune export`."""

    is_list: bool = option(False, SWITCH, "list the candidates", "--list")
    candidate: str | None = option(
        None, replace(NAME, metavar="ID"), "the candidate to write; see --list"
    )
    pareto: int | None = option(
        None, whole(1), "the point of the run's front to write; 1 is the fastest"
    )
    exclusion_list: str | None = option(
        None, one_of(EXCLUSION_TOOLS),
        "write the nodes that stay float, in the form in which this tool takes nodes to exclude",
    )  # fmt: skip
    against: Any = option(
        None, MODEL, "with --exclusion_list: the float model whose node names are used",
        default_text="that of the run",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReportConfig(OverwriteConfig):
    """All options of `qdqtune report`."""


@dataclass(frozen=True, kw_only=True)
class CacheConfig(OverwriteConfig):
    """All options of `qdqtune cache`."""

    TITLE: ClassVar[str] = "what to remove"

    engine: str | None = option(
        None, NAME, "prune: remove what was found out on this engine", default_text="none"
    )
    most: int | None = option(
        None, whole(0), "prune: keep the newest of the patterns and of the subgraphs, so many each",
        default_text="all",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CompareConfig(EngineConfig, ImageConfig, InputConfig, ProgressConfig):
    """All options of `qdqtune.compare`."""

    TITLE: ClassVar[str] = "data"

    engine: str | None = option(  # type: ignore[assignment]
        None, NAME, "the engine whose kernels compute the outputs",
        default_text="each op is run as it is written",
    )  # fmt: skip
    data: Any = option(
        None, ANYTHING,
        "data to run on: an .npy or .npz file, a folder of them or of images, or module:function",
        "--data", "--calibration_data", default_text="random inputs",
    )  # fmt: skip
    samples: int | None = option(
        None, whole(1), "use this many samples", "--samples", "--calibration_samples",
        default_text="at most 32 of the data, or 8 random ones",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(EngineConfig, ImageConfig, InputConfig, ProgressConfig):
    """All options of `qdqtune.verify`."""

    TITLE: ClassVar[str] = "what to check with"

    engine: str | None = option(  # type: ignore[assignment]
        None, NAME, "the engine that runs the models",
        default_text="that of the run, else the one usable here",
    )  # fmt: skip
    against: Any = option(
        None, MODEL, "the float model", default_text="baseline.onnx beside the model"
    )
    runs: int | None = option(
        None, whole(1), "timed runs per model",
        default_text="as many as take a few seconds per model",
    )  # fmt: skip
    calibration_data: Any = option(
        None, ANYTHING,
        "the calibration data of the run, to measure the error on: an .npy or .npz file, a folder "
        "of them or of images, or module:function", "--calibration_data", "--data",
        default_text="random inputs like those of the run",
    )  # fmt: skip
    calibration_samples: int | None = option(
        None, whole(1), "use at most this many samples, as the run did", "--calibration_samples",
        "--samples",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InspectConfig(DialectConfig, SizeConfig):
    """All options of `qdqtune.inspect`."""

    TITLE: ClassVar[str] = "regions"

    engine: str = option(
        "auto", NAME, "the engine whose dialect is used, and that runs the model if it is run"
    )
    regions: str = option(
        AUTO, one_of(REGIONS),
        "what divides the model into regions: its structure, or the modules that exporters record "
        "as scopes of nodes; auto takes scopes where they are recorded",
    )  # fmt: skip
    max_sequence_size: int = option(
        10, whole(1), "longest sequence of ops inside a composite region"
    )
    by_shape: bool = option(
        False, SWITCH, "tell patterns apart by types and shapes, too, as tuning does"
    )
    why: str | None = option(
        None, replace(NAME, metavar="NAME"),
        "show only where this tensor or node can be quantized, and why not elsewhere",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LayersConfig(EngineConfig, SizeConfig, ShapeRangeConfig, ProgressConfig):
    """All options of `qdqtune.layers_of`."""

    TITLE: ClassVar[str] = "layers and groups"

    runs: int = option(20, whole(1), "timed runs")


@dataclass(frozen=True, kw_only=True)
class GroupsConfig(LayersConfig):
    """All options of `qdqtune.groups_of`."""

    quant_type: str = option(
        "int8", one_of(QUANT_TYPES), "what to quantize to, as the dialect offers"
    )
    graph_json: Path | None = option(
        None, PATH, "with --groups: read TensorRT's layers from this file, and run nothing"
    )
