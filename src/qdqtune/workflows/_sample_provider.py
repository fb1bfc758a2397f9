"""The inputs of a model: shapes and their ranges, samples, and the calibrated tensor ranges."""

from __future__ import annotations

import contextlib
import itertools
import logging
import operator
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qdqtune._command_configs import VerifyConfig
from qdqtune._image_config import ImageConfig
from qdqtune._version import __version__
from qdqtune.calibration._expected_inputs import expected_inputs
from qdqtune.calibration._instrumentation import (
    Progress,
    collect_statistics,
    observe_shapes,
    unknown_tensors,
    warn_of,
    watched_tensors,
)
from qdqtune.calibration._preprocessor_files import beside_model
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.calibration._ranges import (
    Calibrated,
    RangeCache,
    SampleDigest,
    key_of,
    ranges_by_way,
    user_cache,
)
from qdqtune.calibration._sample_set import open_samples
from qdqtune.config import TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._options import MAX, MIN, OPT, Shapes, range_options, shapes_text
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import input_dims, resolve_shapes
from qdqtune.graph._measured_shapes import check_runs, measured_shapes, with_sizes_from
from qdqtune.graph._op_classes import COPY_OPS, is_op
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes, infer_shapes
from qdqtune.qdq._dialect import QuantFormat
from qdqtune.qdq._encoding import TensorFormat, tells_range
from qdqtune.records._errors import QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest, ShapesOrRequest, shape_text
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.records._tuning import DATA_FLAG
from qdqtune.workflows._source_model import Source, float32_twin, ranges_behind_casts

_logger = logging.getLogger(__name__)

_RANDOM_SAMPLES = 8
_EVALUATION_SAMPLES = 8
_RANDOM_EVALUATION_SAMPLES = 2


@dataclass(frozen=True)
class SampleProvider:
    """The inputs that a model is run on.

    Attributes:
        shapes: Concrete input shapes.
        first: Generates the first calibration sample.
        samples: Generates all of them.
        evaluation_samples: Generates the samples that the result is evaluated on.
        source: Data, or random inputs.
        describe: Describes the samples; their number is known once they have been read.
    """

    shapes: Mapping[str, tuple[int, ...]]
    first: Callable[[], Feeds]
    samples: Callable[[], Iterable[Feeds]]
    evaluation_samples: Callable[[], Iterable[Feeds]]
    source: CalibrationSource
    describe: Callable[[], str]

    @property
    def evaluation_sample_count(self) -> int:
        """The maximum number of samples that the result is evaluated on."""
        return _EVALUATION_SAMPLES if self.is_data else _RANDOM_EVALUATION_SAMPLES

    @property
    def is_data(self) -> bool:
        """Whether the user provided data."""
        return self.source is CalibrationSource.DATA

    def unevaluated_samples(self) -> Iterable[Feeds]:
        """Return samples that the result is not evaluated on; all if there are few others."""
        samples = self.samples()
        first = self.evaluation_sample_count
        has_others = operator.length_hint(samples) >= 2 * first
        return itertools.islice(samples, first, None) if has_others else samples

    def evaluation_digest(self) -> str:
        """Return a hash of the samples that the result is evaluated on."""
        return self._evaluated()[0]

    def _evaluated(self) -> tuple[str, int]:
        """Return a hash of these samples, and how many there are."""
        digest, count = SampleDigest(), 0
        for feeds in self.evaluation_samples():
            digest.add(feeds)
            count += 1
        return digest.hexdigest(), count

    def evaluation_inputs(
        self, ranges: Mapping[str, tuple[float, float]], flags: Iterable[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """Describe them in the form of `qdqtune.records._tuning.Summary.error_inputs`.

        Args:
            ranges: Lowest and highest value of random inputs, as requested.
            flags: Flags that name and prepare data; see `data_flags`.
        """
        asked = {} if self.is_data else {name: list(pair) for name, pair in ranges.items()}
        digest, count = self._evaluated()
        found = {"source": self.source.value, "digest": digest, "ranges": asked, "samples": count}
        return {**found, "flags": dict(flags)} if self.is_data else found


def data_flags(
    config: TuneConfig | VerifyConfig, model: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the flags that name and prepare a command's data; arrays and functions have no name.

    Args:
        config: The command's options.
        model: The model's file, if the flags will be used without it: a preprocessor file beside
            it then has to be named.
    """
    data = config.calibration_data
    if isinstance(data, (str, os.PathLike)):
        yield DATA_FLAG, os.fspath(data)
    if config.calibration_samples is not None:
        yield "--calibration_samples", str(config.calibration_samples)
    yield from config.image_flags()
    if model is not None and data is not None and config.image_preprocessor is None:
        with contextlib.suppress(QdqtuneError, OSError, ValueError):  # it may be no such file
            if (beside := beside_model(model)) is not None:
                yield "--image_preprocessor", str(beside)


def sample_provider(
    source: Source,
    request: InputRequest,
    data: Any,
    limit: int | None,
    images: ImageConfig | None = None,
) -> SampleProvider:
    """Return a provider of a model's inputs.

    Args:
        source: The model.
        request: Shapes, and ranges and seed of random inputs.
        data: Calibration data, in any form that `qdqtune.calibration._sample_set.open_samples`
            accepts; None for random inputs.
        limit: Maximum number of samples from the data.
        images: How images in the data are prepared.

    Raises:
        UsageError: If the data does not fit the model, a limit is given without data, or neither
            data nor the request determines the sizes that the model leaves open.
        ModelError: If a tensor of the model is too large for memory.
    """
    index = GraphIndex(source.model)
    if data is None:
        if limit is not None:
            raise UsageError(
                "A number of calibration samples was given, but no calibration data.",
                "Give some: --calibration_data SOURCE.",
            )
        shapes = measured_shapes(source.model, request, takes_data=True)
        request = replace(request, shapes=shapes, dims={})
        other = replace(request, seed=request.seed + 1)
        return SampleProvider(
            shapes,
            lambda: next(random_inputs(index, 1, request)),
            lambda: random_inputs(index, _RANDOM_SAMPLES, request),
            lambda: random_inputs(index, _RANDOM_EVALUATION_SAMPLES, other),
            CalibrationSource.RANDOM,
            lambda: f"{_RANDOM_SAMPLES} random samples",
        )
    samples = open_samples(
        data, expected_inputs(source.model), limit=limit, images=images, model=source.path
    )
    shapes = {name: tuple(array.shape) for name, array in samples.first.items()}
    check_runs(source.model, shapes)
    return SampleProvider(
        shapes,
        lambda: samples.first,
        lambda: samples,
        lambda: itertools.islice(samples, _EVALUATION_SAMPLES),
        CalibrationSource.DATA,
        samples.describe,
    )


def check_method(method: RangeMethod | None, data: Any) -> None:
    """Make sure that there is data for a method that needs it.

    Raises:
        UsageError: If there is none.
    """
    if data is None and method not in (None, RangeMethod.MAX):
        raise UsageError(
            f"The calibration method {method.value!r} looks at data, but none was given.",
            "Give some: --calibration_data SOURCE.",
        )


def ranges_in_every_way(
    source: Source,
    base: PreparedModel,
    worker: Worker,
    placement: Placement,
    provider: SampleProvider,
    layout: QuantFormat,
    method: RangeMethod | None,
    progress: Progress | None,
) -> dict[RangeMethod, Ranges]:
    """Return ranges of quantized tensors that came without scales, by every requested method."""
    given = source.encodings
    effective = base.index.effective(placement)
    if all(is_copied_constant(base.index, effective, edge.tensor) for edge in effective):
        return {RangeMethod.MAX: Ranges({}, CalibrationSource.NONE)}
    edges = [
        edge
        for edge in effective
        if not (edge.tensor in given and tells_range(given[edge.tensor]))
        and not base.index.is_constant(edge.tensor)
    ]
    if not edges:
        return {RangeMethod.MAX: Ranges({}, source.scales_from)}
    if given:
        _logger.warning(
            "what came without a scale is calibrated on %s: %d of the tensors",
            provider.describe(), len({edge.tensor for edge in edges}),
        )  # fmt: skip
    _logger.info("calibrating on %s", provider.describe())
    with _runnable(source, base) as runnable:
        watched = Placement.of(edges) if runnable is base else None
        tensors = watched_tensors(runnable.index, watched)
        ways = _ways(provider, layout, method) if tensors else (RangeMethod.MAX,)
        found = _calibrate(runnable, worker, provider, tensors, layout.activation, ways, progress)
    warn_of(found.strange)
    is_partly_random = given and source.scales_from is CalibrationSource.RANDOM
    origin = CalibrationSource.RANDOM if is_partly_random else provider.source
    return {
        way: ranges_behind_casts(Ranges(found.ways[way], origin, found.samples), base.index)
        for way in ways
        if method in (None, way) or len(ways) == 1
    }


def is_copied_constant(index: GraphIndex, quantized: Collection[Edge], tensor: str) -> bool:
    """Whether a tensor is a constant, or values that quantized ops took from one unchanged."""
    while not index.is_constant(tensor):
        node = index.value[tensor].producer()
        if node is None or not is_op(node, *COPY_OPS) or node.inputs[0] is None:
            return False
        tensor = node.inputs[0].name or ""
        if Edge(tensor, node.name or "", 0) not in quantized:
            return False
    return True


def _ways(
    provider: SampleProvider, layout: QuantFormat, method: RangeMethod | None
) -> tuple[RangeMethod, ...]:
    """Return the methods that are worth trying: clipped ranges, too, if they can gain anything.

    Random inputs reveal nothing about rare values, and float8 has enough digits at both ends.
    """
    is_integer = layout.activation.dtype.is_integer()
    if method is RangeMethod.MAX or not is_integer or not provider.is_data:
        return (RangeMethod.MAX,)
    return tuple(RangeMethod)


def _calibrate(
    base: PreparedModel,
    worker: Worker,
    provider: SampleProvider,
    tensors: Collection[str],
    layout: TensorFormat,
    ways: Collection[RangeMethod],
    progress: Progress | None,
) -> Calibrated:
    """Compute ranges, or load them from the cache."""
    samples = provider.samples()
    total = operator.length_hint(samples) if provider.is_data else _RANDOM_SAMPLES
    cache = user_cache()
    engine: EngineInfo | None = None
    try:
        engine = worker.info()
    except WorkerFailure:  # opening the model will fail, too, with advice
        cache = RangeCache(None)
    model = base.fingerprint
    key = key_of(provider.first(), model, sorted(tensors), layout, engine, __version__)
    if cache.may_have(key):
        digest = SampleDigest()
        for done, _ in enumerate(digest.through(samples), 1):
            if progress is not None:
                progress(done, total or None)
        found = cache.load(key, digest.hexdigest(), ways)
        if found is not None:
            _logger.info("the ranges are known from an earlier calibration on the same samples")
            return found
        samples = provider.samples()
    digest = SampleDigest()
    seen = collect_statistics(
        base, worker, digest.through(samples), tensors,
        with_values=len(ways) > 1, total=total, progress=progress,
    )  # fmt: skip
    found = Calibrated(ranges_by_way(seen, layout), seen.samples, seen.strange)
    cache.store(key, digest.hexdigest(), found)
    return found


@contextmanager
def _runnable(source: Source, base: PreparedModel) -> Iterator[PreparedModel]:
    """Provide the base, or its float32 twin while that is needed."""
    twin = float32_twin(source.model)
    if twin is source.model:
        yield base
        return
    with tempfile.TemporaryDirectory(prefix="twin-", dir=base.store.folder) as folder:
        yield PreparedModel(twin, Path(folder))


def timed_request(
    model: ir.Model, inputs: InputRequest, least: InputRequest | None, most: InputRequest | None
) -> InputRequest:
    """Return the request that a model is timed at: missing sizes are those of the largest shapes.

    Args:
        model: The model.
        inputs: The user's request for the timed shapes.
        least: The smallest shapes; None if not given.
        most: The largest shapes; None if not given.

    Raises:
        UsageError: If one of them does not fit the model.
    """
    if least is None and most is None:
        return inputs
    return with_sizes_from(model, inputs, (most, least))


def _check_order(least: Shapes, usual: Shapes, most: Shapes) -> None:
    """Make sure that the smallest, usual and largest shapes are in order.

    Raises:
        UsageError: If one is larger than the next, or has another rank.
    """
    for name, opt in usual.items():
        for low, high, what in ((least[name], opt, "min"), (opt, most[name], "opt")):
            fits = len(low) == len(high)
            if not fits or any(a > b for a, b in zip(low, high, strict=True)):
                raise UsageError(
                    f"The {what} shape {shape_text(low)} of the input {name!r} is not within "
                    f"{shape_text(high)}.",
                    "Sizes grow from min_shapes over shapes to max_shapes.",
                )


def shape_arguments(shapes: Mapping[str, Shapes]) -> list[str]:
    """Return command-line arguments for a subgraph's inputs: one each for min, opt and max.

    Args:
        shapes: By `MIN`, `OPT` and `MAX`: shapes by input.
    """
    return [f"--{label}Shapes={shapes_text(found)}" for label, found in shapes.items()]


def options_with_ranges(
    options: Mapping[str, str],
    engine: str,
    model: ir.Model,
    usual: Shapes,
    least: InputRequest | None,
    most: InputRequest | None,
) -> dict[str, str]:
    """Return an engine's options with ranges of the model's input shapes, if it takes such.

    Args:
        options: The user's options, which take precedence.
        engine: The engine's name.
        model: The model.
        usual: The shapes at which it is run.
        least: The smallest shapes; None if not given.
        most: The largest shapes; None if not given.

    Raises:
        UsageError: If the shapes don't fit the model, or are not in order.
    """
    if least is None and most is None:
        return dict(options)
    shapes = {
        MIN: usual if least is None else resolve_shapes(model, least),
        OPT: usual,
        MAX: usual if most is None else resolve_shapes(model, most),
    }
    _check_order(shapes[MIN], usual, shapes[MAX])
    if not registry.entry(engine).takes_shape_ranges:
        return dict(options)
    is_open = {
        name: any(not isinstance(dim, int) for dim in dims or (None,))
        for name, dims in input_dims(model).items()
    }
    of_open = {
        label: {name: shape for name, shape in found.items() if is_open.get(name)}
        for label, found in shapes.items()
    }
    return {**range_options(of_open), **options}


def check_takes_ranges(
    engine: str, least: ShapesOrRequest | None, most: ShapesOrRequest | None
) -> None:
    """Make sure that an engine supports ranges of shapes, if there are any.

    Raises:
        UsageError: If it doesn't.
    """
    for name, asked in (("min_shapes", least), ("max_shapes", most)):
        if asked is not None and not registry.entry(engine).takes_shape_ranges:
            raise UsageError(
                f"{registry.title(engine)} does not take ranges of shapes: {name} means nothing to "
                "it.",
                f"Leave --{name} out: it takes any shape; --shapes are those that it is timed at.",
            )


@contextmanager
def static_shapes(
    base: PreparedModel, runner: Worker, shapes: Shapes, samples: Iterable[Feeds]
) -> Iterator[GraphIndex]:
    """Make every shape in a model known temporarily, including those of its inputs and outputs.

    Args:
        base: The model; on exit, every shape is restored.
        runner: A worker of the reference engine, for shapes that can't be inferred.
        shapes: Shapes of the model's inputs.
        samples: Inputs of these shapes; one is run if not everything can be inferred.

    Yields:
        An index with these shapes.
    """
    graph = base.index.model.graph
    with at_shapes(base.index.model, shapes):
        for value in graph.inputs:
            if (shape := shapes.get(value.name or "")) is not None:
                value.shape = ir.Shape(shape)
        for value in graph.outputs:
            if value.producer() is not None:
                value.shape = None
        infer_shapes(base.index.model)
        if unknown_tensors(base.index):
            for name, shape in observe_shapes(base, runner, next(iter(samples))).items():
                base.index.value[name].shape = ir.Shape(shape)
        yield GraphIndex(base.index.model)
