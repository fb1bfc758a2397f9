"""Tuning and timing as functions, which measure with the process's one benchmark object."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune.autotune import QDQAutotuner
from qdqtune.config import STRUCTURE, SUBGRAPH
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import load_model, model_from_proto, save_model, without_graphsurgeon
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import Dims, PreparedModel, extract
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._dialect import Dialect
from qdqtune.records._errors import EngineError, ModelError, UsageError
from qdqtune.records._ranges import Ranges
from qdqtune.records._tuning import TuneResult
from qdqtune.records._untrusted_files import read_text
from qdqtune.search._config import Config, get_node_filter_list, preset_for_schemes
from qdqtune.search.patterns._state_file import read_state
from qdqtune.workflows._arguments import as_file
from qdqtune.workflows._benchmarks import (
    DEFAULT_TIMING_RUNS,
    Benchmark,
    EngineBenchmark,
    TensorRTPyBenchmark,
    TrtExecBenchmark,
    benchmark_onnx_model,
    current_benchmark,
    init_benchmark_instance,
)
from qdqtune.workflows._inspect import generate_graph_json, groups_of, guides_program
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._folder import RANGES, STATE
from qdqtune.workflows.tuning._tune import tune

_logger = logging.getLogger(__name__)

__all__ = [
    "Benchmark",
    "EngineBenchmark",
    "TensorRTPyBenchmark",
    "TrtExecBenchmark",
    "benchmark_onnx_model",
    "extract_subgraph",
    "generate_graph_json",
    "groups_of",
    "init_benchmark_instance",
    "region_pattern_autotuning_workflow",
    "subgraph_autotuning_workflow",
]


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
    """Tune a model on the engine of the benchmark that `init_benchmark_instance` created.

    The search is that of `qdqtune.tune`: calibrated, and the written model is never slower than the
    original.

    Args:
        model_or_path: The model, or its file; also an onnx_graphsurgeon graph.
        output_dir: The folder for all files; None for one that is deleted at the end.
        num_schemes_per_region: Maximum number of candidates per pattern, as a total over all
            patterns; it also determines how thorough the search is.
        pattern_cache_file: A pattern cache of an earlier run; a missing one only causes a warning.
        state_file: Where the state is written, and resumed from if it exists; None for a file in
            `output_dir`.
        quant_type: One of the quant types of the engine's dialect.
        default_dq_dtype: Setting of the returned autotuner.
        qdq_baseline_model: A Q/DQ model from another tool, as an additional starting point.
        node_filter_list: Wildcards of node names, or a file of them, one per line: regions without
            a matching node are skipped, unless they have the pattern of one with a match.
        verbose: Whether to log every step.
        model_path: Another name for `model_or_path`.
        calibration_data: As in `qdqtune.tune`; None for random inputs.
        budget_s: Seconds after which the search ends.
        seed: Seed of the search and of random inputs.

    Returns:
        An autotuner with the run's measurements; `export_onnx` writes the chosen model.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    model = _the_model(model_or_path, model_path)
    if num_schemes_per_region < 1:
        raise UsageError(
            f"num_schemes_per_region is {num_schemes_per_region}.",
            "It must be a whole number of at least 1.",
        )
    benchmark = _current_benchmark()
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
            regions=STRUCTURE,  # as the autotuner that is returned finds them
            region_filter=_patterns(node_filter_list),
            output_dir=folder,
        )
        dialect = native_dialect(benchmark.engine, options=benchmark.engine_options)
        if result.summary.converted_from:
            opset = dialect.format_of(quant_type).least_opset
            source = open_source(path, opset, float_types=dialect.float_types)
            return _autotuner(source.model, config, dialect, result, state_file)
        return _autotuner(model, config, dialect, result, state_file)


def _current_benchmark() -> EngineBenchmark:
    benchmark = current_benchmark()
    if benchmark is None:
        raise EngineError(
            "There is nothing to measure with: the benchmark could not be created.",
            "See the log; call init_benchmark_instance with an engine that can measure here.",
        )
    return benchmark


def existing_cache(path: _Path | None) -> Path | None:
    """Return the path of a pattern cache if it exists; a missing one only costs time."""
    if path is not None and Path(path).is_file():
        return Path(path)
    if path is not None:
        _logger.warning("there is no pattern cache %s: the search begins without one", path)
    return None


def existing_baseline(path: _Path | None) -> Path | None:
    """Return the path of a quantized model to start from.

    Raises:
        ModelError: If it does not exist.
    """
    if path is not None and not Path(path).is_file():
        raise ModelError(f"The Q/DQ baseline {path} does not exist.", "Check the path.")
    return None if path is None else Path(path)


def _the_model(
    one: onnx.ModelProto | _Path | None, other: onnx.ModelProto | _Path | None
) -> onnx.ModelProto | _Path:
    model = without_graphsurgeon(one if one is not None else other)
    if model is None or (one is not None and other is not None):
        raise UsageError(
            "There is no model." if model is None else "Two models are given.",
            "Pass either model_or_path or model_path.",
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
    """Create an autotuner with the measurements, shapes and scales of a run."""
    state = Path(state_file) if state_file is not None else result.output_dir / STATE
    measured = state.is_file()  # missing if nothing in the model can be quantized
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
    """Warn if the schemes of the state differ from the placement that was measured and written."""
    written = autotuner.graph.effective(result.placement)
    known = autotuner.graph.effective(autotuner.placement())
    if written != known:
        _logger.warning(
            "what the autotuner exports differs from %s in %d places; that file is what was "
            "measured",
            result.model,
            len(written ^ known),
        )


def subgraph_autotuning_workflow(
    model_path: _Path,
    output_dir: _Path,
    graph_json_path: _Path | None = None,
    quant_type: str = "int8",
    plugin_libraries: Sequence[str] | None = None,
    schemes_per_group: int | None = None,
    strongly_typed: bool = True,
    extra_trtexec_args: Sequence[str] | None = None,
    incremental_validation: bool = True,
    *,
    calibration_data: Any = None,
    seed: int = 0,
) -> str:
    """Tune a model along the engine's fusion groups: `qdqtune.tune(workflow="subgraph")`.

    It measures with the benchmark that `init_benchmark_instance` created. With `plugin_libraries`,
    `extra_trtexec_args` or `strongly_typed=False` it measures with the guides' program instead.

    Args:
        model_path: The float model.
        output_dir: The folder for all files.
        graph_json_path: A file with the layers of a build, as `generate_graph_json` writes it; None
            queries the engine.
        quant_type: One of the quant types of the engine's dialect.
        plugin_libraries: Libraries with custom ops to load.
        schemes_per_group: Maximum number of candidates per pattern, as a total over all patterns.
        strongly_typed: Whether the program takes types as written, if its version can.
        extra_trtexec_args: Additional arguments for the program.
        incremental_validation: Whether groups are tried one after the other on the whole model.
        calibration_data: As in `qdqtune.tune`; None for random inputs.
        seed: Seed of the search and of random inputs.

    Returns:
        The path of the chosen model.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    asks_for_program = plugin_libraries or extra_trtexec_args or not strongly_typed
    benchmark = (
        guides_program(plugin_libraries, strongly_typed, extra_trtexec_args)
        if asks_for_program
        else _current_benchmark()
    )
    result = tune(
        Path(model_path),
        engine=benchmark.engine,
        engine_options=benchmark.engine_options,
        threads=benchmark.threads,
        inputs=benchmark.inputs,
        workflow=SUBGRAPH,
        graph_json=graph_json_path if graph_json_path is None else Path(graph_json_path),
        incremental_validation=incremental_validation,
        schemes_per_region=schemes_per_group,
        quant_type=quant_type,
        calibration_data=calibration_data,
        seed=seed,
        output_dir=Path(output_dir),
    )
    return str(result.model)


def extract_subgraph(
    model: onnx.ModelProto | _Path,
    input_names: Sequence[str],
    output_names: Sequence[str],
    shapes: Mapping[str, Dims] | None = None,
) -> onnx.ModelProto:
    """Extract a subgraph from a model, with the weights that it needs.

    Args:
        model: The model, or its file; also an onnx_graphsurgeon graph.
        input_names: Input tensors of the subgraph.
        output_names: Output tensors of the subgraph.
        shapes: Shapes of these tensors, where they differ from the model's.

    Raises:
        UsageError: If the model has no such tensor, or the subgraph needs further inputs.
        ModelError: If the subgraph is not a valid model.
    """
    model = without_graphsurgeon(model)
    loaded = model_from_proto(model) if isinstance(model, onnx.ModelProto) else load_model(model)
    infer_shapes(loaded)
    nodes = _between(GraphIndex(loaded), input_names, output_names)
    with TemporaryFolder() as folder:
        base = PreparedModel(loaded, folder)
        known = {name: base.index.shape(name) for name in (*input_names, *output_names)}
        dims: dict[str, Dims] = {name: dim for name, dim in known.items() if dim is not None}
        subgraph = extract(base, nodes, input_names, output_names, {**dims, **(shapes or {})})
        return onnx.load(save_model(subgraph, folder / "subgraph.onnx"))


def _between(index: GraphIndex, inputs: Sequence[str], outputs: Sequence[str]) -> set[str]:
    """Return the nodes that compute some tensors from others."""
    for name in (*inputs, *outputs):
        if name not in index.value:
            raise UsageError(f"The model has no tensor {name!r}.", "Tensors go by their names.")
    found: set[str] = set()
    tensors, seen = list(outputs), {*inputs, *outputs}
    while tensors:
        tensor = tensors.pop()
        node = index.value[tensor].producer()
        if node is None:
            raise UsageError(
                f"The subgraph also needs {tensor!r}.", "Name it among the subgraph's inputs."
            )
        found.add(node.name or "")
        read = [value.name for value in node.inputs if value is not None and value.name]
        more = [name for name in read if name not in seen and not index.is_constant(name)]
        seen.update(more)
        tensors += more
    return found
