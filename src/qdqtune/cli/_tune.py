"""`qdqtune tune`: find the Q/DQ placement that makes a model fastest, by measuring."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

from qdqtune.cli._flags import add_config, add_model, chosen_engine, config_from
from qdqtune.cli._runner import INTERRUPTED, OK, show
from qdqtune.config import EngineFlagsConfig, OutputConfig, TuneConfig
from qdqtune.options import SWITCH, Config, option

DESCRIPTION = (
    "Try Q/DQ placements, measure each on the engine that will run the model, and "
    "write the fastest correct model found, with calibrated scales. A model that is not faster "
    "than the one given is never written. Ctrl-C keeps the best found so far."
)
EXAMPLES = (
    "qdqtune tune model.onnx --calibration_data samples.npz",
    "qdqtune tune model.onnx --engine onnxruntime --threads 1 --budget 10m -o run",
)


@dataclass(frozen=True, kw_only=True)
class DryRunConfig(Config):
    """The option that plans a run without starting it."""

    TITLE: ClassVar[str] = OutputConfig.TITLE

    dry_run: bool = option(
        False, SWITCH, "say what would be done, and how long it may take; write nothing"
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    add_config(parser, TuneConfig, DryRunConfig, EngineFlagsConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    engine, engine_options = chosen_engine(options)
    config = config_from(options, TuneConfig, engine=engine, engine_options=engine_options)
    if config_from(options, DryRunConfig).dry_run:
        return _plan(options, config)
    from qdqtune.report._progress import show_progress
    from qdqtune.report._tuning import tune_text

    with show_progress(quiet=options.quiet, eager=True, first=f"reading {options.model}") as watch:
        from qdqtune.workflows.tuning._tune import tune

        result = tune(options.model, config, callbacks=[watch], command=options.command_line)
    show(options, result, lambda: tune_text(result))
    return INTERRUPTED if result.summary.stopped == "interrupted" else OK


def _plan(options: argparse.Namespace, config: TuneConfig) -> int:
    from qdqtune.report._progress import show_progress
    from qdqtune.report._tuning import plan_text

    with show_progress(quiet=options.quiet, first=f"reading {options.model}") as watch:
        from qdqtune.workflows.tuning._tune import plan_tune

        plan = plan_tune(options.model, config, callbacks=[watch])
    show(options, plan, lambda: plan_text(plan))
    return OK
