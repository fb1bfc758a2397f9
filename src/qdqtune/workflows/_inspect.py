"""`inspect`: show a model as the search sees it, or as an engine runs and fuses it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdqtune._command_configs import GroupsConfig, InspectConfig, LayersConfig
from qdqtune.calibration._random_inputs import measured_inputs
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._reference_engine import advice_on
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.engines.layers._files import WRITTEN_BY, map_layers, read_layer_info
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import resolve_shapes
from qdqtune.graph._precision import convert_precision
from qdqtune.graph._shapes import at_shapes, infer_shapes
from qdqtune.options import configured, shared
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import EngineError
from qdqtune.records._inputs import request_of
from qdqtune.records._layers import GroupRecord, GroupsRecord, LayersRecord, MappedLayer
from qdqtune.records._placement import Placement
from qdqtune.records._precision import AUTO, FLOAT_TYPES, Precision
from qdqtune.records._results import (
    Inspection,
    PatternRecord,
    RegionRecord,
)
from qdqtune.search.patterns._insertion_points import (
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
    has_quantizable_operations,
)
from qdqtune.search.patterns._region_pattern import RegionPattern
from qdqtune.search.regions._canonical import CanonicalRegion, canonical_region
from qdqtune.search.regions._region import Region, walk
from qdqtune.search.regions._scope_search import division_of, find_regions
from qdqtune.search.regions._scopes import Scope, scope_of_region, title_of
from qdqtune.search.subgraphs._fusion_groups import fusion_groups
from qdqtune.search.subgraphs._quantizable_groups import content_of
from qdqtune.workflows._arguments import AnyModel, as_file, choose_dialect, name_of
from qdqtune.workflows._bench import engine_info
from qdqtune.workflows._benchmarks import TrtExecBenchmark
from qdqtune.workflows._convert import told_options, wanted_type
from qdqtune.workflows._inspect_answers import answer_of
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._sample_provider import (
    check_takes_ranges,
    options_with_ranges,
    timed_request,
)
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._folder import BUILD_LOG, LAYER_FILE
from qdqtune.workflows.tuning._layer_groups import (
    check_mentions,
    spent_by_group,
    write_layer_file,
)
from qdqtune.workflows.tuning._preflight import copy_log

_SEE_BENCH = "`qdqtune bench` says whether it runs the model at all."
_SHORT_KEY = 10

_FLOAT16 = next(name for name, each in FLOAT_TYPES.items() if each is Precision.FP16)
_HINT = "Give the fusion groups another way, or see `qdqtune doctor` and the log {}."


@configured(InspectConfig)
def inspect(model: AnyModel, config: InspectConfig) -> Inspection:
    """Report a model's regions and patterns, what can be quantized in it, and why the rest can't.

    Args:
        model: A path, a proto or an `onnx_ir.Model`; Q/DQ are removed first.
        config: The settings; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    quant_type = config.quant_type
    _, dialect_choice = choose_dialect(config.engine, config.dialect)
    opset = dialect_choice.format_of(quant_type).least_opset
    with as_file(model) as path:
        source = open_source(path, opset, float_types=dialect_choice.float_types)
        with at_shapes(source.model, resolve_shapes(source.model, config.input_request)):
            index = GraphIndex(source.model)
            planner = QuantizationPlanner(index, dialect_choice, quant_type)
            why = answer_of(config.why, planner, path) if config.why is not None else None
            divided_by = division_of(index, config.regions)
            regions = find_regions(index, divided_by, config.max_sequence_size)
            tree = _Tree(regions, index, by_shape=config.by_shape)
            known = {*planner.units, *planner.left_float}
            found = source.reading.placement if source.reading is not None else Placement()
            return Inspection(
                model=name_of(model),
                dialect=dialect_choice.name,
                quant_type=quant_type,
                nodes=len(index.nodes),
                pairs=source.reading.pairs if source.reading is not None else 0,
                by_shape=config.by_shape,
                regions=tree.regions,
                patterns=tree.patterns,
                quantizable=_by_op_type(planner),
                fused=sum(node.name not in known for node in index.nodes),
                left_float=_by_reason(planner),
                dynamic=len(found.dynamic),
                unfused=len(found.unfused),
                at_run_time=len(planner.may_be_dynamic),
                why=why,
                converted_from=source.converted_from,
                divided_by=divided_by,
            )


def regions_of(
    model: str | Path, max_sequence_size: int = 10, regions: str = AUTO
) -> tuple[list[Region], tuple[RegionRecord, ...]]:
    """Return the regions of a model and their records, independent of the engine.

    Args:
        model: A float model, or one with Q/DQ, which are removed first.
        max_sequence_size: Maximum number of nodes in a sequence inside a composite.
        regions: What divides it into regions.

    Returns:
        The outermost regions, and the records of all regions, parents before children.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    source = open_source(model)
    infer_shapes(source.model)
    index = GraphIndex(source.model)
    found = find_regions(index, regions, max_sequence_size)
    return found, _Tree(found, index, by_shape=False).regions


@dataclass
class _Pattern:
    """A pattern among regions: its number, their first, their number by shape, their scopes."""

    number: int
    form: CanonicalRegion
    variants: Counter[str] = field(default_factory=Counter)
    scopes: list[Scope] = field(default_factory=list)


class _Tree:
    """The records of a tree of regions."""

    def __init__(self, regions: Sequence[Region], index: GraphIndex, *, by_shape: bool) -> None:
        self._index = index
        self._by_shape = by_shape
        self._patterns: dict[str, _Pattern] = {}
        self.regions = tuple(self._record(region) for region in walk(regions))
        self.patterns = tuple(
            sorted(map(self._pattern, self._patterns.values()), key=lambda each: -each.regions)
        )

    def _record(self, region: Region) -> RegionRecord:
        nodes = [self._index.nodes[position] for position in region.get_nodes(sort=True)]
        return RegionRecord(
            id=region.id,
            type=region.type.value,
            level=region.level,
            parent=region.parent.id if region.parent is not None else None,
            children=tuple(child.id for child in region.children),
            nodes=tuple(node.name or "" for node in nodes),
            op_types=tuple(node.op_type for node in nodes),
            size=region.get_size_of_region_and_descendants(),
            inputs=tuple(region.inputs),
            outputs=tuple(region.outputs),
            pattern=None if region.children else self._number(region),
            quantizable=has_quantizable_operations(region, self._index),
            scope=".".join(scope_of_region(region, self._index)),
        )

    def _number(self, region: Region) -> int:
        form = canonical_region(region, self._index)
        signature = form.signature(shapes=self._by_shape)
        found = self._patterns.setdefault(signature, _Pattern(len(self._patterns), form))
        found.variants[form.signature(shapes=True)] += 1
        found.scopes.append(scope_of_region(region, self._index))
        return found.number

    def _pattern(self, found: _Pattern) -> PatternRecord:
        form = found.form
        points = [
            *NodeInputInsertionPoint.collect_in(form, self._index),
            *RegionOutputInsertionPoint.collect_in(form, self._index),
        ]
        pattern = RegionPattern(form.signature(shapes=self._by_shape), len(form.nodes))
        return PatternRecord(
            number=found.number,
            signature=pattern.signature,
            hash=pattern.get_hash(),
            regions=found.variants.total(),
            op_types=tuple(self._index.nodes[position].op_type for position in form.nodes),
            points=len(points),
            variants=len(found.variants),
            title=title_of(found.scopes),
        )


def _by_op_type(planner: QuantizationPlanner) -> dict[str, tuple[int, int]]:
    nodes = planner.index.nodes
    present = Counter(node.op_type for node in nodes)
    can = Counter(node.op_type for node in nodes if node.name in planner.units)
    return {op_type: (can[op_type], count) for op_type, count in present.most_common()}


def _by_reason(planner: QuantizationPlanner) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for name, reason in planner.left_float.items():
        found.setdefault(reason, []).append(name)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return {reason: tuple(names) for reason, names in ordered}


@configured(LayersConfig)
def layers_of(model: AnyModel, config: LayersConfig) -> LayersRecord:
    """Run a model on random inputs, and report which of its nodes each layer executes.

    An engine that can't run models here may still build them; times are then missing.

    Args:
        model: A path, a proto or an `onnx_ir.Model`, float or with Q/DQ; it is run unchanged.
        config: The settings; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    request = config.input_request
    least = request_of(config.min_shapes, "min_shapes")
    most = request_of(config.max_shapes, "max_shapes")
    given, runs = config.engine_options or {}, config.runs
    name = registry.resolve(config.engine, given, only_layers=True)
    is_timed = registry.available(name, given).usable
    check_takes_ranges(name, least, most)
    reporter = ProgressReporter(config.callbacks)
    with as_file(model) as path:
        reporter.tell("model", f"reading {path.name}")
        source = load_model(path)
        infer_shapes(source)
        index = GraphIndex(source)
        feeds = measured_inputs(source, timed_request(source, request, least, most))
        shapes = {each: array.shape for each, array in feeds.items()}
        options = options_with_ranges(given, name, source, shapes, least, most)
        with Worker(name, SessionOptions(config.threads, options)) as worker:
            info = engine_info(worker, name)
            reporter.tell("engine", f"building the model with {registry.title(name)}")
            try:
                opened = worker.open(path)
                worker.feed(opened, feeds)
                reporter.tell("layers", f"timing the layers in {runs} runs")
                layers = worker.layers(opened, runs)
            except WorkerFailure as failure:
                raise EngineError(
                    f"{name} does not report the layers of {path}: {str(failure).strip()}",
                    advice_on(failure, source, name, _SEE_BENCH),
                ) from None
        mapped = tuple(nodes_of_layers(index, layers))
    executed = {node for layer in mapped if layer.executes for node in layer.nodes}
    unexecuted = tuple(node.name or "" for node in index.nodes if node.name not in executed)
    return LayersRecord(name_of(model), info, runs, len(index.nodes), mapped, unexecuted, is_timed)


@configured(GroupsConfig)
def groups_of(model: AnyModel, config: GroupsConfig) -> GroupsRecord:
    """Divide a model into the subgraphs that an engine runs as one.

    Args:
        model: A path, a proto or an `onnx_ir.Model`; Q/DQ are removed first. It is cleaned up as
            for tuning; with `graph_json` it is taken unchanged.
        config: The settings; any of its fields can be given as a keyword instead. The engine runs
            the model, and its kernels determine what can be quantized; with `graph_json` only the
            latter applies, and ``auto`` is the engine that writes such files.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    with as_file(model) as path:
        found = _groups_of_file(path, config) if config.graph_json else _groups_run(path, config)
    return replace(found, model=name_of(model))


def _groups_run(path: Path, config: GroupsConfig) -> GroupsRecord:
    """Build the groups from a run of the model."""
    name = registry.resolve(config.engine, config.engine_options, only_layers=True)
    dialect = native_dialect(name, options=config.engine_options)
    with TemporaryFolder() as folder:
        reporter = ProgressReporter(config.callbacks)
        reporter.tell("model", f"reading and folding {path.name}")
        source = open_source(path, dialect.format_of(config.quant_type).least_opset)
        written = save_model(source.model, folder / "model.onnx")
        try:
            ran = layers_of(written, shared(LayersConfig, config, engine=name))
        except EngineError as error:
            raise EngineError(error.what.replace(str(written), str(path)), error.hint) from None
        ends = (request_of(config.min_shapes), request_of(config.max_shapes))
        timed = timed_request(source.model, config.input_request, *ends)
        with at_shapes(source.model, resolve_shapes(source.model, timed)):
            planner = QuantizationPlanner(GraphIndex(source.model), dialect, config.quant_type)
            found = _grouped(planner, ran.layers, name, has_times=ran.is_timed)
    return replace(found, engine=ran.engine)


def _groups_of_file(path: Path, config: GroupsConfig) -> GroupsRecord:
    """Build the groups from a file with the model's node names: nothing may be folded."""
    graph_json = os.fspath(config.graph_json or "")
    dialect = native_dialect(WRITTEN_BY if config.engine == registry.AUTO else config.engine)
    dialect.format_of(config.quant_type)
    info = read_layer_info(graph_json)
    model = load_model(path)
    with at_shapes(model, resolve_shapes(model, config.input_request)):
        index = GraphIndex(model)
        layers = map_layers(index, info)
        check_mentions(index, layers, graph_json)
        planner = QuantizationPlanner(index, dialect, config.quant_type)
        return _grouped(planner, layers, graph_json, has_times=False)


def _grouped(
    planner: QuantizationPlanner, layers: Sequence[MappedLayer], source: str, *, has_times: bool
) -> GroupsRecord:
    """Group the nodes of a model by its layers, which come from `source`."""
    index = planner.index
    groups = fusion_groups(index, layers)
    keys = [content_of(index, group.nodes).key for group in groups]
    alike = Counter(keys)
    spent = spent_by_group(groups, layers)
    total = sum(layer.ms for layer in layers) or 1.0
    records = tuple(
        GroupRecord(
            number=group.number,
            nodes=group.nodes,
            op_types=tuple(index.node[name].op_type for name in group.nodes),
            layers=tuple(layers[number].name for number in group.layers),
            ms=ms if has_times else None,
            share=ms / total if has_times else None,
            structural=group.is_structural,
            quantizable=sum(name in planner.units for name in group.nodes),
            alike=alike[key],
            key=key[:_SHORT_KEY],
        )
        for group, key, ms in zip(groups, keys, spent, strict=True)
    )
    mentioned = {name for layer in layers for name in layer.nodes}
    unmentioned = sum(node.name not in mentioned for node in index.nodes)
    nodes = len(index.nodes)
    return GroupsRecord("", None, source, planner.dialect.name, nodes, unmentioned, records)


def generate_graph_json(
    onnx_path: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    plugin_libraries: Sequence[str] | None = None,
    strongly_typed: bool = True,
    extra_trtexec_args: Sequence[str] | None = None,
) -> str:
    """Build a model once in float16 and write its layers.

    Args:
        onnx_path: The float model.
        output_dir: The folder for `MODEL.fp16.graph.json` and `MODEL.fp16.build.log`.
        plugin_libraries: Libraries with custom ops to load.
        strongly_typed: Whether types are taken as written, if the version supports it: the model is
            converted to float16 first. Otherwise the engine chooses where to use float16.
        extra_trtexec_args: Further program arguments; those about shapes apply to the build.

    Returns:
        The path of the file with the layers, which `tune(graph_json=…)` takes.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    path, folder = Path(onnx_path), Path(output_dir)
    benchmark = guides_program(plugin_libraries, strongly_typed, extra_trtexec_args)
    load_model(path)  # an invalid file is not the engine's fault
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LAYER_FILE.format(path.stem, Precision.FP16.value)
    log = folder / BUILD_LOG.format(path.stem, Precision.FP16.value)
    target.unlink(missing_ok=True)
    with TemporaryFolder() as scratch:
        printed = scratch / "engine.log"
        options = SessionOptions(benchmark.threads, benchmark.engine_options)
        with Worker(benchmark.engine, options, log_path=printed) as worker:
            half = _in_half(path, worker, benchmark.engine, scratch)
            model = load_model(half)
            infer_shapes(model)
            feeds = worker.store(measured_inputs(model, benchmark.inputs))
            is_written = write_layer_file(worker, half, feeds, target)
        copy_log(printed.parent / benchmark.engine / f"{half.stem}.log", log)
    if not is_written:
        raise EngineError(
            f"{benchmark.engine} writes no layers of {path}: it does not build the model.",
            _HINT.format(log),
        )
    return str(target)


def guides_program(
    plugin_libraries: Sequence[str] | None,
    strongly_typed: bool,
    extra_trtexec_args: Sequence[str] | None,
) -> TrtExecBenchmark:
    """Return the program that the guides measure with.

    Raises:
        EngineError: If it can't be used here.
    """
    benchmark = TrtExecBenchmark(
        plugin_libraries=plugin_libraries, trtexec_args=list(extra_trtexec_args or ())
    )
    if not strongly_typed:
        benchmark.engine_options["typing"] = "weak"
    return benchmark


def _in_half(path: Path, worker: Worker, engine: str, scratch: Path) -> Path:
    """Return the file to build: converted if the engine takes types as written."""
    info = engine_info(worker, engine)
    given: Mapping[str, str] = worker.options.engine_options
    worker.options = replace(
        worker.options, engine_options=dict(told_options(_FLOAT16, info, given))
    )
    source = open_source(path, optimize=False)
    if wanted_type(_FLOAT16, info, source) is None:
        return path
    convert_precision(source.model, Precision.FP16)
    return save_model(source.model, scratch / f"{path.stem}.onnx")
