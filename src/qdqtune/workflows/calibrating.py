"""What a model is run on, and the ranges that follow from it."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtune.calibration.clipping import clip_ranges
from qdqtune.calibration.data import open_samples
from qdqtune.calibration.expected import expected_inputs
from qdqtune.calibration.inputs import Feeds, random_inputs
from qdqtune.calibration.minmax import collect_ranges
from qdqtune.engines.isolated import Worker
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import resolve_shapes
from qdqtune.graph.prepared import PreparedModel
from qdqtune.qdq.dialect import QuantFormat
from qdqtune.qdq.given import tells_range
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.workflows.source import Source, float32_twin, ranges_behind_casts

_logger = logging.getLogger(__name__)

_RANDOM_SAMPLES = 8
_JUDGED_SAMPLES = 8

Progress = Callable[[int, "int | None"], None]


@dataclass(frozen=True)
class Feeding:
    """What the model is run on.

    Attributes:
        shapes: Concrete input shapes.
        samples: Makes the calibration samples.
        judged: Makes the samples that the result is judged on.
        source: Data, or random inputs.
        describe: Says what the samples are; how many is known when they were read.
    """

    shapes: Mapping[str, tuple[int, ...]]
    samples: Callable[[], Iterable[Feeds]]
    judged: Callable[[], Iterable[Feeds]]
    source: CalibrationSource
    describe: Callable[[], str]

    @property
    def is_data(self) -> bool:
        """Whether somebody gave data."""
        return self.source is CalibrationSource.DATA


def feeding_of(source: Source, request: InputRequest, data: Any, limit: int | None) -> Feeding:
    """Where the inputs come from.

    Args:
        source: The model.
        request: Shapes, and ranges and seed of random inputs.
        data: Calibration data, as `qdqtune.calibration.data.open_samples` takes it; None is random.
        limit: Use at most this many samples of the data.

    Raises:
        UsageError: If the data does not fit the model, or a limit is given without data.
    """
    index = GraphIndex(source.model)
    if data is None:
        if limit is not None:
            raise UsageError(
                "A number of calibration samples was given, but no calibration data.",
                "Give some: --calibration_data SOURCE.",
            )
        shapes = resolve_shapes(source.model, request)
        request = replace(request, shapes=shapes, dims={})
        other = replace(request, seed=request.seed + 1)
        return Feeding(
            shapes,
            lambda: random_inputs(index, _RANDOM_SAMPLES, request),
            lambda: random_inputs(index, 2, other),
            CalibrationSource.RANDOM,
            lambda: f"{_RANDOM_SAMPLES} random samples",
        )
    samples = open_samples(data, expected_inputs(source.model), limit=limit)
    shapes = {name: tuple(array.shape) for name, array in samples.first.items()}
    return Feeding(
        shapes,
        lambda: samples,
        lambda: itertools.islice(samples, _JUDGED_SAMPLES),
        CalibrationSource.DATA,
        samples.describe,
    )


def ranges_in_every_way(
    source: Source,
    base: PreparedModel,
    worker: Worker,
    placement: Placement,
    feeding: Feeding,
    layout: QuantFormat,
    method: RangeMethod | None,
    progress: Progress | None,
) -> Iterator[tuple[RangeMethod, Ranges]]:
    """Ranges of what is quantized and came without scales, in every way that was asked for."""
    given = source.reading.encodings if source.reading is not None else {}
    edges = [
        edge
        for edge in base.index.effective(placement)
        if not (edge.tensor in given and tells_range(given[edge.tensor]))
        and not base.index.is_constant(edge.tensor)
    ]
    if not edges:
        yield RangeMethod.MINMAX, Ranges({}, source.scales_from)
        return
    if given:
        _logger.warning(
            "what has no scale in %s is calibrated on %s: %d of the tensors",
            source.path, feeding.describe(), len({edge.tensor for edge in edges}),
        )  # fmt: skip
    _logger.info("calibrating on %s", feeding.describe())
    with _runnable(source, base) as runnable:
        watched = Placement.of(edges) if runnable is base else None
        whole = collect_ranges(
            runnable, worker, feeding.samples(), feeding.source, watched, progress
        )
        ways = {RangeMethod.MINMAX: whole}
        if _may_clip(feeding, layout, method):
            ways |= clip_ranges(runnable, worker, feeding.samples(), whole, layout.activation)
    for way, ranges in ways.items():
        if method in (None, way) or len(ways) == 1:
            found = ranges_behind_casts(ranges, base.index)
            yield way, replace(found, source=_weakest(source, feeding) if given else found.source)


def _may_clip(feeding: Feeding, layout: QuantFormat, method: RangeMethod | None) -> bool:
    """Whether clipped ranges are worth a try: float8 has digits enough at both ends."""
    is_integer = layout.activation.dtype.is_integer()
    return method is not RangeMethod.MINMAX and is_integer and feeding.is_data


@contextmanager
def _runnable(source: Source, base: PreparedModel) -> Iterator[PreparedModel]:
    """The base, or its float32 twin while it is needed."""
    twin = float32_twin(source.model)
    if twin is source.model:
        yield base
        return
    with tempfile.TemporaryDirectory(prefix="twin-", dir=base.store.folder) as folder:
        yield PreparedModel(twin, Path(folder))


def _weakest(source: Source, feeding: Feeding) -> CalibrationSource:
    """What to call scales that partly came with the model and partly were calibrated."""
    if CalibrationSource.RANDOM in (source.scales_from, feeding.source):
        return CalibrationSource.RANDOM
    return feeding.source
