"""Find what can be quantized in the model, and calibrate its ranges."""

from __future__ import annotations

import logging
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.graph._op_classes import HALF_TYPES
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.search._space import Grouping
from qdqtune.workflows._sample_provider import SampleProvider, ranges_in_every_way
from qdqtune.workflows._source_model import Source, has_types
from qdqtune.workflows.tuning._baseline import Baseline
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._preflight import find_choices, with_ranges
from qdqtune.workflows.tuning._setup import TuningTarget

_logger = logging.getLogger(__name__)


@dataclass
class BoundedSamples:
    """Samples, as many as there is time for in each pass over them, and at least one.

    Attributes:
        make: Makes all of them.
        most: How many to take, if an earlier run had no time for more; None is all.
        seconds: How long each pass may take.
        count: How many the last pass took.
        is_cut_short: Whether that were not all.
    """

    make: Callable[[], Iterable[Feeds]]
    most: int | None
    seconds: float
    count: int = 0
    is_cut_short: bool = False

    def __iter__(self) -> Iterator[Feeds]:
        began, self.count, self.is_cut_short = time.monotonic(), 0, False
        for feeds in self.make():
            is_late = self.count > 0 and time.monotonic() - began >= self.seconds
            if is_late if self.most is None else self.count >= self.most:
                self.is_cut_short = True
                return
            self.count += 1
            yield feeds

    def __length_hint__(self) -> int:
        return operator.length_hint(self.make())


@dataclass(frozen=True)
class Quantizable:
    """What can be quantized.

    Attributes:
        planner: What each op needs.
        grouping: Which of it belongs together.
        reason: Why there is nothing; empty if there is something.
    """

    planner: QuantizationPlanner
    grouping: Grouping
    reason: str = ""


@dataclass(frozen=True)
class Calibration:
    """Ranges, in every way that they may be found.

    Attributes:
        inserters: Writers of candidates, by where their ranges come from; the search uses the
            first.
        grouping: What can be quantized with them.
        provider: What the model was run on.
        conditions: What a result has to satisfy, as `Summary` has it.
    """

    inserters: Mapping[RangeMethod, Inserter]
    grouping: Grouping
    provider: SampleProvider
    conditions: Mapping[str, Any]

    @property
    def inserter(self) -> Inserter:
        """Writes the candidates of the search."""
        return next(iter(self.inserters.values()))

    @property
    def ranges(self) -> Ranges:
        """Behind their scales."""
        return self.inserter.encoder.ranges


def find_quantizable(ctx: RunContext, target: TuningTarget, baseline: Baseline) -> Quantizable:
    """What can be quantized in the model, with the user's filters and pattern cache.

    Raises:
        UsageError: If nothing that could be quantized matches a filter.
    """
    request, base, tell = target.request, baseline.base, ctx.reporter.tell
    tell("model", "finding what can be quantized")
    planner, grouping = find_choices(
        base, request.dialect, request.config, target.provider, ctx.engines.runner, target.cache
    )
    tell(
        "model",
        f"{len(base.nodes)} ops, {grouping.regions} regions, "
        f"{grouping.patterns} patterns, {len(grouping.groups)} choices",
    )
    _tell_cache(ctx, target, grouping)
    reason = "" if grouping.groups else _why_nothing(planner, target.source)
    return Quantizable(planner, grouping, reason)


def _tell_cache(ctx: RunContext, target: TuningTarget, grouping: Grouping) -> None:
    """How much of a pattern cache the model has."""
    if target.cache is None:
        return
    found, patterns, path = (
        grouping.cached_patterns, target.cache.num_patterns, target.request.config.pattern_cache,
    )  # fmt: skip
    if found:
        what = f"{found} of the {patterns} patterns in {path} occur in this model"
        ctx.reporter.tell("pattern cache", what)
    else:
        _logger.warning("none of the %d patterns in %s occur in this model", patterns, path)


def _why_nothing(planner: QuantizationPlanner, source: Source) -> str:
    reasons = Counter(planner.left_float.values())
    common = "; ".join(reason for reason, _ in reasons.most_common(3))
    hint, unsuited = "", HALF_TYPES.difference(planner.dialect.float_types)
    if not source.converted_from and has_types(source.model, unsuited):
        hint = "; without --precision it is tuned in float32"
    return f"nothing of it can be quantized{': ' + common if common else ''}{hint}"


def calibrate(
    ctx: RunContext,
    target: TuningTarget,
    journal: Journal,
    baseline: Baseline,
    found: Quantizable,
) -> Calibration:
    """Find ranges in every way, and leave out what has none.

    Raises:
        QdqtuneError: If the samples can't be read, or the model does not run on them.
    """
    request, base = target.request, baseline.base
    given = target.source.reading.encodings if target.source.reading is not None else {}
    provider, ways = _ranges(ctx, target, journal, baseline, found.planner)
    ctx.budget.ranges = len(ways)
    first = next(iter(ways.values()))

    def known(tensor: str) -> bool:
        return tensor in first.by_tensor or tensor in given or base.index.is_constant(tensor)

    inserter = Inserter(base, request.dialect, request.config.quant_type, first, given)
    data = "" if first.source is CalibrationSource.RANDOM else inserter.encoder.digest()
    return Calibration(
        {way: inserter.with_ranges(ranges) for way, ranges in ways.items()},
        with_ranges(found.grouping, found.planner, known),
        provider,
        target.identity.conditions(data),
    )


def _ranges(
    ctx: RunContext,
    target: TuningTarget,
    journal: Journal,
    baseline: Baseline,
    planner: QuantizationPlanner,
) -> tuple[SampleProvider, dict[RangeMethod, Ranges]]:
    """Ranges in every way; from some of the samples, if there is no time for all."""
    request, provider, reporter = target.request, target.provider, ctx.reporter
    reporter.tell("calibration", f"on {provider.describe()}")
    layout = request.dialect.format_of(request.config.quant_type)
    bounded = BoundedSamples(provider.samples, journal.samples, ctx.budget.calibration_s)
    show = reporter.progress("calibration")
    ways = dict(
        ranges_in_every_way(
            target.source, baseline.base, ctx.engines.runner, planner.candidate_edges,
            replace(provider, samples=lambda: bounded), layout, request.config.range_method,
            lambda done, total: show("samples", done, total),
        )
    )  # fmt: skip
    if bounded.is_cut_short:
        told = f"the first {bounded.count} samples, all that --budget left time for"
        provider = replace(provider, describe=lambda: told)
        reporter.tell("calibration", f"on {told}")
        if journal.samples is None:
            journal.keep_samples(bounded.count)
    return provider, ways
