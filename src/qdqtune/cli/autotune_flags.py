"""The flags of `python -m qdqtune.autotune`, with all their known spellings."""

from __future__ import annotations

import argparse
from typing import Any

from qdqtune.autotune.config import DQ_DTYPES
from qdqtune.autotune.presets import MODE_PRESETS, StoreWithExplicitFlag
from qdqtune.cli.config_flags import SaidOnce, add_config
from qdqtune.cli.engine_flags import add_plugins, add_trtexec_arguments
from qdqtune.cli.flags import add_format, add_limits, natural, positive
from qdqtune.cli.parser import Parser, group_titled
from qdqtune.config import ENGINE_SPECIFIC, WORKFLOWS, TuneConfig
from qdqtune.graph.temporary_dir import temporary_place

_DEFAULTS = MODE_PRESETS["default"]


class _Mode(SaidOnce):
    """Stores a preset, a workflow, or one of each; a second value must match the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Store the value under its kind."""
        kind = "workflow" if values in WORKFLOWS else "_preset"
        self.keep(namespace, kind, values)
        namespace.mode = getattr(namespace, "_preset", None) or values


def get_parser() -> argparse.ArgumentParser:
    """Build the parser; long flags accept dashes for underscores."""
    parser = Parser(
        prog="python -m qdqtune.autotune",
        description="Find where Q/DQ pays in an ONNX model, by measuring, and write the fastest "
        "correct model found, with calibrated scales. The flags are those that autotuners of this "
        "kind have, and those of `qdqtune tune`, which does the same.",
        examples=(
            "python -m qdqtune.autotune --onnx_path model.onnx --output_dir run",
            "python -m qdqtune.autotune --onnx_path model.onnx --mode quick --engine onnxruntime",
        ),
    )
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="log everything that is done, on stderr"
    )
    _add_model(parser)
    _add_strategy(parser)
    _add_quantization(parser)
    _add_benchmark(parser)
    add_config(parser, TuneConfig, without=("preset",))  # called mode here
    add_limits(parser)
    add_format(parser)
    parser.set_defaults(command_line="python -m qdqtune.autotune")
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and output")
    group.add_argument(
        "--onnx_path", "--model", "-m", required=True, metavar="MODEL", help="the ONNX model"
    )
    group.add_argument(
        "--output_dir",
        "--output",
        "-o",
        default="./autotuner_output",
        metavar="DIR",
        help="folder for everything that is written; an earlier run in it is resumed "
        "(default: %(default)s)",
    )


def _add_strategy(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("strategy")
    group.add_argument(
        "--mode",
        action=_Mode,
        default="default",
        choices=(*MODE_PRESETS, *WORKFLOWS),
        help="how thorough to be (default: %(default)s). region and subgraph name the workflow, as "
        "--workflow does; give --mode twice, or both flags, to choose both",
    )
    group.add_argument(
        "--schemes_per_region",
        "-s",
        dest="num_schemes",
        type=positive,
        action=StoreWithExplicitFlag,
        explicit_attr="_explicit_num_schemes",
        default=_DEFAULTS["schemes_per_region"],
        metavar="N",
        help="measure at most N candidates for each pattern of the model, taken together: the "
        "search spends them where they help most. Without it, as the mode says. No effect in "
        "the subgraph workflow, which tries all of the few schemes of each subgraph",
    )
    group.add_argument(
        "--pattern_cache",
        dest="pattern_cache_file",
        metavar="FILE",
        help="a pattern cache of an earlier run, whose schemes are tried first",
    )
    group.add_argument(
        "--state_file",
        metavar="FILE",
        help="where the state is written, and what to resume from if it exists, also in another "
        "DIR (default: DIR/autotuner_state.yaml)",
    )
    group.add_argument(
        "--node_filter_list",
        metavar="FILE",
        help="a file of wildcards for node names, one per line: regions without a matching node "
        "are skipped, unless they have the pattern of one with a match",
    )


def _add_quantization(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("quantization")
    group.add_argument(
        "--default_dq_dtype",
        action=StoreWithExplicitFlag,
        explicit_attr="_explicit_default_dq_dtype",
        default="float32",
        choices=DQ_DTYPES,
        help="the float type where it can't be deduced; it always can be here, so this has no "
        "effect",
    )


def _add_benchmark(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("benchmark")
    for name, what in (
        ("warmup_runs", "no effect: every block of timed runs begins with warmup runs of its own"),
        ("timing_runs", "timed runs per candidate; without it, as many as the mode needs"),
    ):
        group.add_argument(
            f"--{name}",
            type=positive if name == "timing_runs" else natural,
            action=StoreWithExplicitFlag,
            explicit_attr=f"_explicit_{name}",
            default=_DEFAULTS[name],
            metavar="N",
            help=what,
        )
    group = group_titled(parser, ENGINE_SPECIFIC)
    group.add_argument("--use_trtexec", action="store_true", help="the same as --engine trtexec")
    group.add_argument(
        "--timing_cache",
        action=StoreWithExplicitFlag,
        explicit_attr="_explicit_timing_cache",
        default=str(temporary_place() / "trtexec_timing.cache"),
        metavar="FILE",
        help="TensorRT's timing cache; without it, one of qdqtune's for each GPU and version",
    )
    add_plugins(group)
    add_trtexec_arguments(group)
    parser.set_defaults(
        _explicit_num_schemes=False,
        _explicit_warmup_runs=False,
        _explicit_timing_runs=False,
        _explicit_timing_cache=False,
        _explicit_default_dq_dtype=False,
    )
