"""Times of subgraphs in whole models, where the engine's layers tell them.

Alone, a subgraph is built for other neighbours: its inputs and outputs have other layouts, and what
would be fused with it is missing. On an H200, the subgraphs of a ResNet-18 said that it would be
1.01 times as fast with everything quantized, and it was 1.59; those of an EfficientNet-B0 said 0.56
for what the rules quantize, and it was 0.86. What they take in one whole model is
what they take in the next, within a few percent. So where builds take long, two whole models that
are tried in any case are built first: what the rules quantize, and everything. Only what these
don't tell is timed alone.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qdqtune.engines import _registry as registry
from qdqtune.engines._pool import Job
from qdqtune.engines._worker import FailureKind, Worker, WorkerFailure
from qdqtune.graph._index import GraphIndex
from qdqtune.records._measurement import LayerTime
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._tuning import IN_PLACE, SchemeTimes, SubgraphTimes
from qdqtune.report._formatting import counted
from qdqtune.search.strategies._strategy import Effort
from qdqtune.search.subgraphs._observed_costs import look_at
from qdqtune.search.subgraphs._quantizable_groups import FULL, Scheme, Subgraph
from qdqtune.workflows.tuning._subgraph_cache import SeenInPlace
from qdqtune.workflows.tuning._subgraph_profiler import SubgraphProfiler, told_form

_logger = logging.getLogger(__name__)

_PROFILE_RUNS = 20
# What is this many times as large as any conversion that was seen is timed alone.
_MOST_BEYOND = 4
# Layers without a kernel that are left float, one after the other, before a model is given up.
_MOST_REFUSED = 3


@dataclass(frozen=True)
class _Whole:
    """A whole model, and where its time goes.

    Attributes:
        edges: What reads a quantized value in it.
        kernels: Names of its integer kernels.
        seen: Where its time goes, by fusion group.
    """

    edges: frozenset[Edge]
    kernels: frozenset[str]
    seen: SeenInPlace


class TimesInPlace:
    """Finds the times of subgraphs in whole models.

    Args:
        profiler: The run's; it times what this doesn't find.
    """

    def __init__(self, profiler: SubgraphProfiler) -> None:
        self._profiler = profiler
        self._run, self._cache = profiler.run, profiler.cache
        self._planner, self._inserter = profiler.planner, profiler.inserter
        self._lock = threading.Lock()  # held while something is written
        self._built: set[str] = set()  # what is quantized in models that could be built

    def find(self, subgraphs: Sequence[Subgraph], ruled: Collection[str]) -> None:
        """Store the times of all subgraphs that whole models tell, if there is time for these.

        Args:
            subgraphs: All of them.
            ruled: Names of the ops that placement rules would quantize.
        """
        missing = [each for each in subgraphs if each.key not in self._cache.subgraphs]
        if not missing:
            return
        seen = self._cache.whole_models.in_place or self._build_all(subgraphs, ruled)
        if seen:
            wholes = list(map(self._whole, seen))
            costs = _ConversionCosts(self._profiler, wholes, missing)
            for subgraph in missing:
                times = self._times(subgraph, wholes, costs)
                if times is not None:
                    self._cache.keep_subgraph(times)
            told = sum(each.key in self._cache.subgraphs for each in missing)
            self._run.reporter.tell(
                "in place",
                f"the layers of whole models tell the times of {counted(told, 'subgraph')} of "
                f"{len(subgraphs)}",
            )

    def _build_all(
        self, subgraphs: Sequence[Subgraph], ruled: Collection[str]
    ) -> Sequence[SeenInPlace]:
        """Build the whole models that there is time for, and store what they tell."""
        everything = {
            name
            for subgraph in subgraphs
            for scheme in subgraph.schemes
            for content in subgraph.contents
            if scheme.name == FULL
            for name in scheme.nodes(content)
        }
        chosen = [names for names in (everything & set(ruled), everything) if names]
        chosen = chosen[:1] if chosen[:1] == chosen[1:] else chosen
        chosen = chosen[: self._run.budget.fitting(len(chosen), Effort.CONFIRM)]
        if not chosen:
            return []
        what = counted(len(chosen), "whole model")
        self._run.reporter.tell("in place", f"building {what} for its layers")
        jobs = [Job(f"whole model {n}", self._look(n, names)) for n, names in enumerate(chosen)]
        found = dict(self._run.pool.each(jobs))
        seen = [whole for _, whole in sorted(found.items()) if whole is not None]
        if seen:
            self._cache.keep_in_place(seen)
        return seen

    def _look(self, number: int, chosen: Collection[str]) -> Callable[[Worker], SeenInPlace | None]:
        """Return what builds a model with these ops quantized, but for those without a kernel."""

        def work(worker: Worker) -> SeenInPlace | None:
            for attempt in range(_MOST_REFUSED + 1):
                if attempt and not self._run.budget.fitting(1, Effort.CONFIRM):
                    return None
                with self._lock:
                    names = set(chosen).difference(self._cache.whole_models.refused)
                placement = self._planner.placement(names)
                layers, refused = self._build(worker, placement, f"in_place_{number}")
                if layers:
                    self._built |= names
                    return self._seen(names, placement, layers)
                # A layer that was compiled as a whole may be most of the model.
                to_blame = names.intersection(refused) - self._built
                if not to_blame:
                    return None
                with self._lock:
                    self._cache.keep_refused(sorted(to_blame))
            return None

        return work

    def _build(
        self, worker: Worker, placement: Placement, name: str
    ) -> tuple[list[LayerTime], Sequence[str]]:
        """Return the layers of a candidate, and the ops that it could not be built for."""
        with self._lock:
            file = self._inserter.write(placement, name)
        try:
            began_s = self._run.reporter.elapsed_s
            with worker.opened(file) as model:
                worker.feed(model, self._run.feeds)
                self._run.budget.saw_build(self._run.reporter.elapsed_s - began_s)
                return worker.layers(model, _PROFILE_RUNS), ()
        except WorkerFailure as failure:
            if failure.kind is FailureKind.HOST:
                raise
            _logger.info("%s tells nothing of its subgraphs: %s", file.name, failure)
            is_refused = failure.kind is FailureKind.ERROR
            engine = self._run.request.engine
            return [], registry.refused_nodes(engine, file, str(failure)) if is_refused else ()
        finally:
            file.unlink(missing_ok=True)

    def _whole(self, seen: SeenInPlace) -> _Whole:
        placement = seen.placement(self._planner)
        edges = self._planner.index.effective(placement)
        return _Whole(edges, self._planner.quantized(placement), seen)

    def _seen(
        self, names: Collection[str], placement: Placement, layers: Sequence[LayerTime]
    ) -> SeenInPlace:
        with self._lock:
            index = GraphIndex(self._inserter.model(placement))
        groups, homes = self._cache.groups or (), self._cache.home_of
        weights = [group.ms for group in groups]
        compiled = {number for number, group in enumerate(groups) if group.part}
        kernels = self._planner.quantized(placement)
        quantized = frozenset(homes[name] for name in kernels if name in homes)
        costs = look_at(index, layers, homes, quantized, weights=weights, compiled=compiled)
        return SeenInPlace(tuple(sorted(names)), costs)

    def _times(
        self, subgraph: Subgraph, wholes: Sequence[_Whole], costs: _ConversionCosts
    ) -> SubgraphTimes | None:
        """Return what whole models tell of a subgraph; None if that is nothing."""
        float_ms = self._profiler.told_float_ms(subgraph, measure_float=False, divided=True)
        if float_ms is None:
            return None
        forms = [told_form(float_ms, subgraph.content)]
        for scheme in subgraph.schemes:
            found = [
                whole.seen.costs.unit_ms.get(group, 0.0)
                for whole in wholes
                for group in self._groups_with(scheme, subgraph, whole)
            ]
            if any(found):
                inside_ms = statistics.fmean(ms for ms in found if ms)
                paid = costs.of(scheme, subgraph)
                nothing = (0.0,) * len(paid)
                forms.append(SchemeTimes(scheme.name, inside_ms, inside_ms, paid, nothing))
        return SubgraphTimes(subgraph.key, IN_PLACE, tuple(forms)) if len(forms) > 1 else None

    def _groups_with(self, scheme: Scheme, subgraph: Subgraph, whole: _Whole) -> Iterable[int]:
        """Yield the groups that are quantized by a scheme in a whole model, and in no other way."""
        for group, content in zip(subgraph.groups, subgraph.contents, strict=True):
            own = scheme.placement(content, self._planner)
            edges = _inside(self._planner.index.effective(own), content.nodes)
            if edges and edges == _inside(whole.edges, content.nodes):
                yield group


def _inside(edges: Iterable[Edge], nodes: Collection[str]) -> set[Edge]:
    return {edge for edge in edges if edge.node in nodes}


class _ConversionCosts:
    """What conversions cost, by those in whole models: nothing where other layers took them along.

    Others cost as much as those of about their size.

    Args:
        profiler: Times a conversion alone if there was none.
        wholes: The whole models.
        subgraphs: Those whose borders they are at.
    """

    def __init__(
        self, profiler: SubgraphProfiler, wholes: Sequence[_Whole], subgraphs: Sequence[Subgraph]
    ) -> None:
        self._profiler, self._planner = profiler, profiler.planner
        self._homes = profiler.cache.home_of
        self._quantize_ms: dict[str, float] = {}
        self._dequantize_ms: dict[str, float] = {}
        for whole in reversed(wholes):  # the first is the last word
            converted = {edge.tensor for edge in whole.edges}
            fused = {self._homes.get(name, -1) for name in whole.kernels}
            made = (tensor for tensor in converted if not self._is_made_by(fused, tensor))
            self._quantize_ms |= dict.fromkeys(made, 0.0) | dict(whole.seen.costs.quantize_ms)
            self._dequantize_ms |= whole.seen.costs.dequantize_ms
        sizes: dict[int, list[float]] = {}
        for tensor, ms in (*self._quantize_ms.items(), *self._dequantize_ms.items()):
            if ms:
                sizes.setdefault(self._size(tensor), []).append(ms)
        inputs = (tensor for each in subgraphs for tensor in each.content.inputs)
        largest = max(inputs, key=self._size, default="")
        if largest and self._size(largest) > _MOST_BEYOND * max(sizes, default=0):
            alone_ms = profiler.conversion_ms(profiler.run.engine, largest)
            sizes[self._size(largest)] = [alone_ms]
        self._known = {size: statistics.median(found) for size, found in sorted(sizes.items())}

    def _guess(self, tensor: str) -> float:
        """What converting a tensor should cost: a part of it is the same for every size."""
        if not self._known:
            return 0.0
        size, sizes = self._size(tensor), list(self._known)
        beyond = max(1.0, size / sizes[-1])
        return beyond * float(np.interp(size, sizes, list(self._known.values())))

    def of(self, scheme: Scheme, subgraph: Subgraph) -> tuple[float, ...]:
        """Return the milliseconds at each input and at each output, as `SchemeTimes` has them.

        A quantized result becomes float for nothing, unless it was seen to cost something: kernels
        that read integers can write floats.
        """
        own = self._planner.index.effective(scheme.placement(subgraph.content, self._planner))
        read = {edge.tensor for edge in _inside(own, subgraph.content.nodes)}
        inputs = zip(*(content.inputs for content in subgraph.contents), strict=True)
        outputs = zip(*(content.outputs for content in subgraph.contents), strict=True)
        paid = []
        for alike in inputs:
            guess = self._guess(alike[0])
            seen = map(self._quantize_ms.get, alike)
            paid.append(_mean(seen, guess) if alike[0] in read else 0.0)
        return (*paid, *(_mean(map(self._dequantize_ms.get, alike), 0.0) for alike in outputs))

    def _is_made_by(self, groups: Collection[int], tensor: str) -> bool:
        maker = self._planner.index.value[tensor].producer()
        return maker is not None and self._homes.get(maker.name or "") in groups

    def _size(self, tensor: str) -> int:
        return max(1, math.prod(self._profiler.size(tensor)))


def _mean(values: Iterable[float | None], otherwise: float) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else otherwise
