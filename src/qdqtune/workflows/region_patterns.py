"""Tuning in one call that ends in an autotuner, as the autotuning guides have it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune.autotune import QDQAutotuner
from qdqtune.autotune.config import Config
from qdqtune.autotune.patterns.state_file import read_state
from qdqtune.autotune.presets import get_node_filter_list, preset_for_schemes
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.qdq.dialect import Dialect
from qdqtune.records.errors import EngineError, ModelError, UsageError
from qdqtune.records.ranges import Ranges
from qdqtune.records.tuning import TuneResult
from qdqtune.records.untrusted_files import read_text
from qdqtune.workflows.benchmark_instance import current_benchmark
from qdqtune.workflows.benchmarks import DEFAULT_TIMING_RUNS
from qdqtune.workflows.model_argument import as_file
from qdqtune.workflows.source_model import open_source
from qdqtune.workflows.tune import tune
from qdqtune.workflows.tuning.folder import RANGES, STATE

_logger = logging.getLogger(__name__)

_Path = str | os.PathLike[str]


def region_pattern_autotuning_workflow(
    model_or_path: onnx.ModelProto | _Path | None = None,
    output_dir: _Path | None = None,
    num_schemes_per_region: int = 30,
    pattern_cache_file: _Path | None = None,
    state_file: _Path | None = None,
    quant_type: str = "int8",
    default_dq_dtype: str = "float32",
    qdq_baseline_model: _Path | None = None,
    node_filter_list: Sequence[str] | _Path | None = None,
    verbose: bool = False,
    *,
    model_path: onnx.ModelProto | _Path | None = None,
    calibration_data: Any = None,
    budget_s: float | None = None,
    seed: int = 0,
) -> QDQAutotuner:
    """Tune a model on the engine of the benchmark that `init_benchmark_instance` made.

    It is `qdqtune.tune` that searches: calibrated, and what it writes is never slower than the
    model.

    Args:
        model_or_path: The model, or its file.
        output_dir: Where everything is written; None is a folder that is deleted at the end.
        num_schemes_per_region: Measure at most so many candidates for each pattern of the model,
            taken together; it also says how thorough to be.
        pattern_cache_file: A pattern cache of an earlier run; a missing one is only warned of.
        state_file: Where the state is written, and what to go on from if it is there; None is a
            file in `output_dir`.
        quant_type: One of the quant types of the engine's dialect.
        default_dq_dtype: Setting of the autotuner that is returned.
        qdq_baseline_model: The model quantized by somebody else, to begin with as well.
        node_filter_list: Wildcards of node names, or a file of them, one per line: regions
            without a matching node are skipped, unless they have the pattern of one with a match.
        verbose: Whether to log every step.
        model_path: Another name for `model_or_path`.
        calibration_data: As `qdqtune.tune` takes it; None is random.
        budget_s: End the search after so many seconds.
        seed: Of the search and of random inputs.

    Returns:
        An autotuner with what the run measured; `export_onnx` writes what was chosen.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    model = _the_model(model_or_path, model_path)
    if num_schemes_per_region < 1:
        raise UsageError(
            f"num_schemes_per_region is {num_schemes_per_region}.",
            "It is a whole number from 1 on.",
        )
    benchmark = current_benchmark()
    if benchmark is None:
        raise EngineError(
            "There is nothing to measure with: the benchmark could not be made.",
            "See the log; call init_benchmark_instance with an engine that can measure here.",
        )
    if verbose:
        logging.getLogger("qdqtune").setLevel(logging.DEBUG)
    config = Config(
        default_quant_type=quant_type, default_dq_dtype=default_dq_dtype, verbose=verbose
    )
    runs = benchmark.timing_runs
    with as_file(model) as path, _folder(output_dir) as folder:
        result = tune(
            path,
            engine=benchmark.engine,
            engine_options=benchmark.engine_options,
            threads=benchmark.threads,
            preset=preset_for_schemes(num_schemes_per_region),
            seed=seed,
            budget_s=budget_s,
            schemes_per_region=num_schemes_per_region,
            timing_runs=runs if runs != DEFAULT_TIMING_RUNS else None,
            quant_type=quant_type,
            inputs=benchmark.inputs,
            calibration_data=calibration_data,
            qdq_baseline=existing_baseline(qdq_baseline_model),
            pattern_cache=existing_cache(pattern_cache_file),
            state_file=Path(state_file) if state_file is not None else None,
            region_filter=_patterns(node_filter_list),
            output_dir=folder,
        )
        dialect = native_dialect(benchmark.engine, options=benchmark.engine_options)
        if result.summary.converted_from:
            opset = dialect.format_of(quant_type).least_opset
            source = open_source(path, opset, float_types=dialect.float_types)
            return _autotuner(source.model, config, dialect, result, state_file)
        return _autotuner(model, config, dialect, result, state_file)


def existing_cache(path: _Path | None) -> Path | None:
    """A pattern cache, if it is there; its absence costs time, nothing else."""
    if path is None or Path(path).is_file():
        return None if path is None else Path(path)
    _logger.warning("there is no pattern cache %s: the search begins without one", path)
    return None


def existing_baseline(path: _Path | None) -> Path | None:
    """A quantized model to begin with.

    Raises:
        ModelError: If it is not there.
    """
    if path is not None and not Path(path).is_file():
        raise ModelError(f"The Q/DQ baseline {path} does not exist.", "Check the path.")
    return None if path is None else Path(path)


def _the_model(
    one: onnx.ModelProto | _Path | None, other: onnx.ModelProto | _Path | None
) -> onnx.ModelProto | _Path:
    model = one if one is not None else other
    if model is None or (one is not None and other is not None):
        raise UsageError(
            "There is no model." if model is None else "Two models are given.",
            "Give one: as model_or_path, or as model_path.",
        )
    return model


@contextmanager
def _folder(output_dir: _Path | None) -> Iterator[Path]:
    if output_dir is not None:
        yield Path(output_dir)
        return
    with TemporaryFolder() as folder:
        yield folder / "run"


def _patterns(node_filter_list: Sequence[str] | _Path | None) -> Sequence[str]:
    if isinstance(node_filter_list, str | os.PathLike):
        return get_node_filter_list(node_filter_list) or ()
    return node_filter_list or ()


def _autotuner(
    model: onnx.ModelProto | ir.Model | _Path,
    config: Config,
    dialect: Dialect,
    result: TuneResult,
    state_file: _Path | None,
) -> QDQAutotuner:
    """An autotuner that knows what a run measured, at the shapes and with the scales of the run."""
    state = Path(state_file) if state_file is not None else result.output_dir / STATE
    measured = state.is_file()  # there is none if nothing of the model can be quantized
    shapes = read_state(state).header.get("shapes", {}) if measured else {}
    autotuner = QDQAutotuner(model, dialect=dialect, input_shapes=shapes)
    autotuner.initialize(config)
    if not measured:
        autotuner.submit(result.summary.baseline_ms)
        return autotuner
    autotuner.load_state(state)
    ranges = result.output_dir / RANGES
    if ranges.is_file():
        autotuner.use_ranges(Ranges.from_json(read_text(ranges), str(ranges)))
    _check_choice(autotuner, result)
    return autotuner


def _check_choice(autotuner: QDQAutotuner, result: TuneResult) -> None:
    """Warn if the schemes of the state don't come to what was measured and written."""
    written = autotuner.graph.effective(result.placement)
    known = autotuner.graph.effective(autotuner.placement())
    if written != known:
        _logger.warning(
            "what the autotuner exports differs from %s in %d places; that file is what was "
            "measured",
            result.model,
            len(written ^ known),
        )
