"""Keep ops in float that cost too much accuracy.

An op's own error shows where quantization fails outright, but not how it affects the outputs:
clipping the keys of a MiniLM leaves 30 dB of their own, and 9 dB of the output. So if an output is
not accurate enough, groups of similar ops are quantized alone, with every kind of range, and the
model's outputs show the cost of each group.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qdqtune.calibration._layer_errors import own_errors
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._worker import Worker
from qdqtune.qdq._insert import Inserter
from qdqtune.records._accuracy import OpError
from qdqtune.records._errors import EngineError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod, Ranges
from qdqtune.rules._placement_draft import Draft, RuleDecision
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator, Quality, fewest_dropped
from qdqtune.workflows._bias_correction import COMFORTABLE_DB, NEARLY_DB

_logger = logging.getLogger(__name__)

RULE = "accuracy"
"""The reason recorded for ops that are kept in float here."""

_SAMPLES = 4
# With more parts than this, neighbours are joined, since each part must be opened and run.
_MOST_PARTS = 32
Part = frozenset[str]
"""Names of ops that are quantized or kept in float together."""


@dataclass(frozen=True)
class Scaled:
    """A draft with its ranges.

    Attributes:
        label: The source of the ranges: a method, or `mixed`.
        inserter: Writes candidates with the ranges.
        quality: The quality of the whole draft.
    """

    label: str
    inserter: Inserter
    quality: Quality


@dataclass(frozen=True)
class FallbackResult:
    """A placement that is accurate enough, or none.

    Attributes:
        draft: The draft from the placement rules.
        placement: The resulting placement.
        scaled: The ranges.
        quality: Its quality against the float model.
        own: The error added by each op's own quantization, by name.
    """

    draft: Draft
    placement: Placement
    scaled: Scaled
    quality: Quality
    own: Mapping[str, OpError] = field(default_factory=dict)


@dataclass(frozen=True)
class AccuracyFallback:
    """Chooses ranges part by part where that helps, and drops ops until a draft is accurate.

    Attributes:
        draft: The draft from the placement rules.
        redraft: Runs the rules again with some ops kept in float for the given reasons.
        parts: Its ops, in groups of similar ones.
        accuracy: Compares outputs.
        worker: A worker of the reference engine.
        samples: Generates the inputs.
        least_db: The minimum SQNR of every op and every output; None for no minimum.
        progress: Called with the current step, its index and the total.
    """

    draft: Draft
    redraft: Callable[[Mapping[str, RuleDecision]], Draft]
    parts: Sequence[Part]
    accuracy: AccuracyEvaluator
    worker: Worker
    samples: Callable[[], Iterable[Feeds]]
    least_db: float | None
    progress: Callable[[str, int, int], None]

    def guard(
        self, ways: Mapping[RangeMethod, Scaled], improved: Callable[[Scaled], Scaled]
    ) -> FallbackResult:
        """Reduce the draft until it is accurate enough.

        Args:
            ways: The whole draft with the ranges of every allowed method.
            improved: Returns the draft with the same ranges, and better biases if there are any.
        """
        near_db = max(each.quality.worst_db for each in ways.values()) - NEARLY_DB
        ways = {
            way: improved(scaled) if scaled.quality.worst_db >= near_db else scaled
            for way, scaled in ways.items()
        }
        best = max(ways.values(), key=lambda scaled: scaled.quality.worst_db)
        own = self._own_errors(best.inserter, self.draft.placement())
        if self.least_db is None:
            return FallbackResult(self.draft, self.draft.placement(), best, best.quality, own)
        if best.quality.why_unknown:  # none of its parts could be compared, either
            return FallbackResult(self.draft, Placement(), best, best.quality, own)
        least = self.least_db
        dropped = self._failing(best, own, least)
        tried = self._without(dropped, best)
        if not tried.placement or tried.quality.shortfall(max(least, COMFORTABLE_DB)):
            tried = self._without_worst(ways, tried, dropped, improved)
        return replace(tried, own=own)

    def _failing(
        self, best: Scaled, own: Mapping[str, OpError], least: float
    ) -> dict[str, RuleDecision]:
        """Return the ops that fail on their own.

        A passthrough op can degrade others, because its operands share a scale with its result. So
        these ops are dropped first, and the rest is checked again.
        """
        dropped: dict[str, RuleDecision] = {}
        found, draft = own, self.draft
        for kind in (draft.planner.passthrough, draft.planner.units):
            failing = {
                name: RuleDecision(
                    RULE, f"its own error is {_db(each.sqnr_db)}, under {least:g} dB"
                )
                for name, each in found.items()
                if each.sqnr_db < least and name in kind and name in draft.quantized
            }
            if failing and kind is draft.planner.passthrough:
                draft = self.redraft(failing)
                found = self._own_errors(best.inserter, draft.placement())
            dropped |= failing
        return dropped

    def _without(self, dropped: Mapping[str, RuleDecision], scaled: Scaled) -> FallbackResult:
        """Run the rules again with these ops kept in float."""
        if not dropped:
            return FallbackResult(self.draft, self.draft.placement(), scaled, scaled.quality)
        draft = self.redraft(dropped)
        placement = draft.placement()
        quality = self._quality_of(scaled.inserter, placement) if placement else Quality()
        return FallbackResult(draft, placement, scaled, quality)

    def _without_worst(
        self,
        ways: Mapping[RangeMethod, Scaled],
        best: FallbackResult,
        dropped: Mapping[str, RuleDecision],
        improved: Callable[[Scaled], Scaled],
    ) -> FallbackResult:
        """Choose ranges part by part, and drop as few parts as necessary.

        Args:
            ways: The whole draft with every kind of range.
            best: The best of them, without the ops that fail outright.
            dropped: The ops that fail outright.
            improved: See `guard`.
        """
        assert self.least_db is not None
        least = self.least_db
        _logger.info("looking at what %d parts of the model do to its outputs", len(self.parts))
        parts = [part - dropped.keys() for part in self.parts]
        noise: dict[RangeMethod, list[float]] = {}
        tried = _worth_trying(ways)
        for way, scaled in tried.items():
            noise[way] = []
            for part in parts:
                noise[way].append(self._noise(scaled.inserter, part))
                done = sum(map(len, noise.values()))
                self.progress("parts of the model measured alone", done, len(tried) * len(parts))
        mixed = self._without(dropped, improved(self._mixed(ways, parts, noise)))
        least_noise = [min(noises) for noises in zip(*noise.values(), strict=True)]
        ranked = sorted(range(len(parts)), key=lambda n: -least_noise[n] / self._worth(parts[n]))
        verdicts = [
            dict.fromkeys(
                parts[n],
                RuleDecision(RULE, f"quantized alone, it leaves {_db(_decibels(least_noise[n]))}"),
            )
            for n in ranked
        ]
        whole = max(best, mixed, key=lambda each: each.quality.worst_db)
        if not whole.quality.shortfall(least):
            return whole
        return self._fewest(mixed, verdicts, dropped, least)

    def _mixed(
        self,
        ways: Mapping[RangeMethod, Scaled],
        parts: Sequence[Part],
        noise: Mapping[RangeMethod, Sequence[float]],
    ) -> Scaled:
        """Return the draft with the range for each tensor that harms the outputs least."""
        if len(noise) == 1:
            return ways[next(iter(noise))]
        harm: dict[str, dict[RangeMethod, float]] = {}
        for number, part in enumerate(parts):
            for tensor in self.draft.only(part).tensors:
                for way, noises in noise.items():
                    of_tensor = harm.setdefault(tensor, dict.fromkeys(noise, 0.0))
                    of_tensor[way] += noises[number]
        best = max(noise, key=lambda way: ways[way].quality.worst_db)
        ranges = ways[best].inserter.encoder.ranges
        chosen = dict(ranges.by_tensor)
        for tensor, by_way in harm.items():
            way = min(by_way, key=lambda way: (by_way[way], way is not best))
            known = ways[way].inserter.encoder.ranges.by_tensor
            if tensor in known:
                chosen[tensor] = known[tensor]
        inserter = ways[best].inserter.with_ranges(Ranges(chosen, ranges.source, ranges.samples))
        return Scaled("mixed", inserter, self._quality_of(inserter, self.draft.placement()))

    def _fewest(
        self,
        whole: FallbackResult,
        ranked: Sequence[Mapping[str, RuleDecision]],
        dropped: Mapping[str, RuleDecision],
        least: float,
    ) -> FallbackResult:
        """Drop the fewest parts, worst first and at least one, to be accurate enough."""

        @functools.cache
        def without(count: int) -> FallbackResult:
            verdicts = dict(dropped)
            for part in ranked[:count]:
                verdicts |= part
            return self._without(verdicts, whole.scaled)

        def is_enough(count: int) -> bool:
            tried = without(count)
            return bool(tried.placement) and not tried.quality.shortfall(least)

        return without(fewest_dropped(len(ranked), is_enough, self.progress))

    def _noise(self, inserter: Inserter, part: Part) -> float:
        """Return the noise that a part adds to the worst output, relative to its signal."""
        placement = self.draft.only(part)
        if not placement:
            return 0.0
        decibels = self.accuracy.approximate_sqnr_db(inserter.write(placement, "part"))
        return math.pow(10.0, -decibels / 10.0)

    def _worth(self, part: Part) -> float:
        """Return the possible gain from quantizing a part."""
        share = sum(self.draft.shares.get(name, 0.0) for name in part)
        # Ops with a small share may still enable the gain of others.
        return share + 1.0 / (1 + len(self.parts))

    def _own_errors(self, inserter: Inserter, placement: Placement) -> dict[str, OpError]:
        base = inserter.base
        path = base.write(base.whole(), "guard_float")
        try:
            candidate = inserter.write(placement, "guard_quantized")
            samples = itertools.islice(self.samples(), _SAMPLES)
            return own_errors(self.worker, path, candidate, samples)
        except EngineError as error:
            _logger.warning("the error of single ops can't be measured here: %s", error)
            return {}

    def _quality_of(self, inserter: Inserter, placement: Placement) -> Quality:
        return self.accuracy.quality(inserter.write(placement, "guarded"))


def joined(parts: Sequence[Part], most: int = _MOST_PARTS) -> list[Part]:
    """Join neighbouring parts until at most this many are left."""
    size = math.ceil(len(parts) / most) if parts else 1
    return [frozenset().union(*parts[at : at + size]) for at in range(0, len(parts), size)]


def _worth_trying(ways: Mapping[RangeMethod, Scaled]) -> dict[RangeMethod, Scaled]:
    """Return the full ranges, which clip nothing, and the best of the others."""
    best = max(ways, key=lambda way: ways[way].quality.worst_db)
    return {way: ways[way] for way in ways if way in (RangeMethod.MAX, best)}


def _decibels(noise: float) -> float:
    if noise == 0.0:
        return math.inf
    return -10.0 * math.log10(noise) if math.isfinite(noise) else -math.inf


def _db(decibels: float) -> str:
    return f"{decibels:.1f} dB" if math.isfinite(decibels) else f"{decibels} dB"
