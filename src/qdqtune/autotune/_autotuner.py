"""The autotuner: generates schemes and takes latencies by region; exports, saves and resumes."""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from qdqtune.autotune._pattern_profiling import (
    PatternResults,
    Profiling,
    add_to_cache,
    by_signature,
    is_done,
    is_part,
    remember,
    seeds_of,
)
from qdqtune.autotune._tuned_model import (
    AnyModel,
    CandidateWriter,
    Transform,
    TunedModel,
    target_dialect,
)
from qdqtune.autotune._tuned_pattern import (
    EdgeClosure,
    OrtSettings,
    Schemes,
    TunedPattern,
    edges_of,
    ort_settings,
    whole_model_schemes,
)
from qdqtune.graph._files import without_graphsurgeon
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._dialect import Dialect
from qdqtune.records._errors import (
    AutotunerError,
    AutotunerNotInitializedError,
    InvalidSchemeError,
    NewerVersionError,
)
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import Ranges
from qdqtune.search._config import Config
from qdqtune.search.patterns._insertion_points import ResolvedInsertionPoint
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._region_pattern import PatternSchemes, known_tensors
from qdqtune.search.patterns._state_file import (
    SavedState,
    pattern_cache_path,
    read_state,
    write_state,
)
from qdqtune.search.regions._region import Region, RegionType, walk
from qdqtune.search.regions._region_search import CombinedRegionSearch, adopt_regions
from qdqtune.workflows._arguments import as_file
from qdqtune.workflows._imported_placement import import_placement

_log = logging.getLogger(__name__)


@dataclass
class _Progress:
    """The state of a session since it was initialized.

    Attributes:
        profiling: The pattern that is being profiled.
        book: The patterns of the regions, as of the last access.
        imports: Tensors that imported models quantize.
        unfinished: Signature of the pattern that was being profiled when the loaded state was
            saved.
        measured: Latencies by quantized edges.
        whole_models: Whole models that are still to be tried.
        dialect: The dialect, once it was needed.
        writer: The writer of models, once it was needed.
    """

    profiling: Profiling | None = None
    book: PatternResults | None = None
    imports: list[frozenset[str]] = field(default_factory=list)
    unfinished: str | None = None
    measured: dict[frozenset[Edge], float] = field(default_factory=dict)
    whole_models: Iterator[Schemes] | None = None
    dialect: Dialect | None = None
    writer: CandidateWriter | None = None


class QDQAutotunerBase:
    """Tunes regions that a subclass supplies: set `regions` before `initialize`.

    It generates schemes and takes latencies. Regions with the same structure and shapes are tuned
    together. A scheme owns only its own points; exported models have the union over all regions.

    Args:
        model: A model, the path of one, another autotuner's `graph`, or an onnx_graphsurgeon graph;
            it is not changed. If it is quantized, its Q/DQ are removed, and its scales are reused.
        dialect: A dialect, or its name; None for that of the engine on this machine.
        input_shapes: Shapes of inputs whose dims the model leaves open.
        seed: The random seed.

    Attributes:
        regions: The regions, in tuning order.
        profiled_patterns: The schemes tried, for each finished pattern.
        current_profile_region: The region that is being profiled.
        config: The settings.
        initialized: Whether `initialize` was called.
        baseline_latency_ms: Latency of the float model, once submitted.
        pattern_cache: The best schemes of this run and earlier ones.

    Raises:
        TypeError: If it is not a model.
        QdqtuneError: If the model can't be read or processed.
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        dialect: Dialect | str | None = None,
        input_shapes: Mapping[str, Sequence[int | None]] | None = None,
        seed: int = 0,
    ) -> None:
        model = without_graphsurgeon(model)
        self.regions: list[Region] = []
        self.profiled_patterns: list[PatternSchemes] = []
        self.current_profile_region: Region | None = None
        self.config = Config()
        self.initialized = False
        self.baseline_latency_ms: float | None = None
        self.pattern_cache: PatternCache | None = None
        self._model = TunedModel(model, input_shapes)
        self._asked_dialect = dialect
        self._ranges: Ranges | None = None
        self._seed = seed
        self._progress = _Progress()

    @property
    def onnx_model(self) -> onnx.ModelProto:
        """The model as passed; for a file, the float model that is tuned."""
        if self._model.proto is None:
            self._model.proto = onnx.ModelProto.FromString(self._candidates().export(frozenset()))
        return self._model.proto

    @property
    def graph(self) -> GraphIndex:
        """The float model that is tuned, folded: regions hold positions of its nodes."""
        return self._model.index

    @property
    def dialect(self) -> Dialect:
        """The dialect of exported models."""
        if self._progress.dialect is None:
            quant_type = self.config.default_quant_type
            self._progress.dialect = target_dialect(self._asked_dialect, quant_type)
        return self._progress.dialect

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the tuned model."""
        return self._model.fingerprint

    @property
    def current_profile_pattern_schemes(self) -> PatternSchemes | None:
        """The schemes of the pattern being profiled; None if there is none, or it is done."""
        return self._progress.profiling.schemes if self._progress.profiling is not None else None

    @property
    def current_insertion_scheme_index(self) -> int:
        """The index of the scheme that was generated last; -1 if there is none."""
        return self._progress.profiling.index if self._progress.profiling is not None else -1

    @current_insertion_scheme_index.setter
    def current_insertion_scheme_index(self, index: int) -> None:
        self._require_region()
        if self._progress.profiling is not None:
            self._progress.profiling.select(index)

    def initialize(
        self, config: Config | None = None, pattern_cache: PatternCache | None = None
    ) -> None:
        """Start from scratch; existing regions stay.

        Args:
            config: The settings; None for the defaults.
            pattern_cache: Schemes to try first; this run's results are added to it.

        Raises:
            AutotunerError: If a setting is invalid, or a region doesn't fit the model.
        """
        self.initialized = False
        self.config = replace(config) if config is not None else Config()
        self._progress = _Progress()
        least_opset = self.dialect.format_of(self.config.default_quant_type).least_opset
        graph_changed = self._model.raise_to(least_opset)
        self.regions = adopt_regions(self._find_regions(graph_changed), self.graph)
        self.profiled_patterns = []
        self.baseline_latency_ms = None
        self.pattern_cache = pattern_cache or PatternCache(
            minimum_distance=self.config.pattern_cache_minimum_distance,
            max_entries_per_pattern=self.config.pattern_cache_max_entries_per_pattern,
        )
        self.current_profile_region = None
        self.initialized = True
        self._warn_if_nothing()
        self._say("%d regions of %d patterns", len(self.regions), len(self._book.by_signature))
        self._tell_cache()

    def set_profile_region(self, region: Region | None, commit: bool = True) -> None:
        """Select the region to profile.

        Args:
            region: One of `regions`; None for none.
            commit: Whether to keep the best scheme of the previously profiled pattern.

        Raises:
            InvalidSchemeError: If the region is not one of `regions`.
        """
        self._require_initialized()
        if region is not None and region not in self._book.of_region:
            raise InvalidSchemeError(
                f"{region!r} is not one of this autotuner's regions.", "Take it from `regions`."
            )
        if commit and self._progress.profiling is not None:
            self.profiled_patterns += self._progress.profiling.results
            remember(self._cache, self._progress.profiling)
        self._progress.profiling = None
        self.current_profile_region = region
        if region is not None:
            self._begin(self._book.of_region[region])

    def generate(self) -> int:
        """Get the next scheme to measure; `export_onnx` writes the model with it.

        Schemes from the cache and imported ones come first. For the first pattern, whole models
        follow, as `tune` would try them: all other schemes are tried in the best of them. Then
        comes the scheme with all points, then variations of the fastest.

        Returns:
            Its index in `current_profile_pattern_schemes`; -1 if there are no more.

        Raises:
            InvalidSchemeError: If there is no region to tune.
        """
        self._require_region()
        profiling = self._progress.profiling
        return profiling.generate(self._whole_models()) if profiling is not None else -1

    def submit(self, latency_ms: float, success: bool = True) -> None:
        """Submit a measurement: first that of the float model, then that of each generated scheme.

        Args:
            latency_ms: The latency; an impossible one (not above 0, or infinite) counts as a
                failure.
            success: Whether the model ran.

        Raises:
            AutotunerError: If the float model failed.
            InvalidSchemeError: If no scheme was generated for it.
        """
        self._require_initialized()
        latency_ms = float(latency_ms)
        is_sound = success and 0 < latency_ms < math.inf
        if self.baseline_latency_ms is not None:
            self._require_region()
            if self._progress.profiling is None:
                raise InvalidSchemeError(
                    "The pattern of this region was profiled before.", "Go on to the next region."
                )
            self._progress.profiling.submit(latency_ms, success=is_sound)
            return
        if not is_sound:
            raise AutotunerError(
                f"The float model failed, or its latency of {latency_ms} ms is not valid.",
                "Measure the model that export_onnx(insert_qdq=False) writes, and submit that.",
            )
        self.baseline_latency_ms = self._progress.measured[frozenset()] = latency_ms
        self._say("the float model takes %.4f ms", latency_ms)
        if self._progress.profiling is not None:
            self._progress.profiling.enter_empty(latency_ms)

    def get_resolved_insertion_points(
        self, best: bool = True, verbose: bool = False
    ) -> set[ResolvedInsertionPoint]:
        """Return the places that `export_onnx` quantizes, as far as schemes name them.

        Everything else that the dialect needs for them is in `placement`; neither has points that
        the dialect can't use.

        Args:
            best: Whether to use the fastest scheme of the current pattern instead of the current
                one.
            verbose: Whether to log them.
        """
        self._require_initialized()
        found: set[ResolvedInsertionPoint] = set()
        for tuned, scheme in self._choices(best).items():
            found |= tuned.quantized(scheme)
        if verbose:
            for point in sorted(found, key=str):
                _log.info("%s", point)
        return found

    def placement(self, best: bool = True) -> Placement:
        """Return the placement that `export_onnx` inserts, with all that the dialect needs."""
        self._require_initialized()
        return Placement(self._edges(best))

    def export_onnx(
        self,
        output_path: str | os.PathLike[str] | None = None,
        insert_qdq: bool = True,
        best: bool = False,
        model_transform: Transform | None = None,
    ) -> bytes:
        """Export a model with the current scheme and the best schemes of all other patterns.

        Args:
            output_path: Where to write it as well; an existing file is replaced.
            insert_qdq: Whether to insert Q/DQ at all.
            best: Whether to use the fastest scheme of the current pattern instead of the current
                one.
            model_transform: Applied to the model before it is written.

        Returns:
            The model with its weights. Above 2 GB, it is the content of `output_path`, whose
            weights are in a file next to it.

        Raises:
            AutotunerError: If it is too large without an output file, or would not be valid.
            OutputError: If it can't be written.
        """
        self._require_initialized()
        edges = self._edges(best) if insert_qdq else frozenset()
        return self._candidates().export(edges, output_path, model_transform)

    def use_ranges(self, ranges: Ranges) -> None:
        """Use these ranges for the scales of activations."""
        self._ranges = ranges
        self._progress.writer = None

    def get_ort_quantization_config(self) -> OrtSettings:
        """Return the best placement in terms of nodes and op types; see `ort_settings`."""
        self._require_initialized()
        return ort_settings(self.graph, self._edges(best=True), self.config.default_quant_type)

    def import_insertion_points(
        self, quantized_tensors: Collection[str] | os.PathLike[str] | onnx.ModelProto
    ) -> int:
        """Try what another tool quantized first, pattern by pattern.

        It goes to the pattern cache, which is saved with the state. Until a scheme of a pattern was
        tried, it is also exported for that pattern, except while other patterns are measured.

        Args:
            quantized_tensors: Names of tensors, or of the outputs of their Q or DQ; or another
                tool's quantized form of the model, or a `Path` of it, whose tensors are also found
                by structure.

        Returns:
            Number of the model's tensors among them, which is also logged, with a warning if most
            names are not in the model, and of a form of it with what is not, and why.

        Raises:
            AutotunerError: If it is a single string.
            UsageError: If it is no quantized form of the model.
        """
        self._require_initialized()
        if isinstance(quantized_tensors, str):
            raise AutotunerError(
                f"{quantized_tensors!r} is one name.", "Give a set of names, or the Path of a file."
            )
        if isinstance(quantized_tensors, os.PathLike | onnx.ModelProto):
            return self._import_from(quantized_tensors)
        tensors = known_tensors(self.graph, quantized_tensors)
        asked = len(set(quantized_tensors))
        if not tensors and asked:
            _log.warning("none of the %d tensors are in the model", asked)
        else:
            level = logging.WARNING if 4 * len(tensors) < asked else logging.INFO
            _log.log(level, "%d of the %d quantized tensors are in the model", len(tensors), asked)
        return self._import(tensors)

    def _import_from(self, quantized: os.PathLike[str] | onnx.ModelProto) -> int:
        """Import what is quantized in another form of the model."""
        with as_file(quantized) as path:
            found = import_placement(self.graph.model, path)
        level = logging.WARNING if 4 * len(found.unmapped) > found.pairs else logging.INFO
        _log.log(level, "%s", found.headline)
        names = found.placement.tensors
        return self._import(name for name in names if not self.graph.is_constant(name))

    def _import(self, tensors: Iterable[str]) -> int:
        named = frozenset(tensors)
        self._progress.imports.append(named)
        for tuned in self._book.by_signature.values():
            add_to_cache(self._cache, tuned, tuned.from_tensors(named))
        return len(named)

    def save_state(self, output_path: str | os.PathLike[str]) -> None:
        """Write the measurements so far, and the pattern cache next to them.

        Raises:
            OutputError: If it can't be written.
        """
        self._require_initialized()
        current = self._progress.profiling
        if current is not None:
            remember(self._cache, current)
        write_state(
            output_path,
            baseline_latency_ms=self.baseline_latency_ms,
            config=self.config,
            patterns=[*self.profiled_patterns, *(current.results if current is not None else ())],
            current_signature=self._progress.unfinished
            if current is None
            else current.schemes.pattern_signature,
            header=self._header(),
        )
        self._cache.save(pattern_cache_path(output_path))

    def load_state(self, input_path: str | os.PathLike[str]) -> None:
        """Resume from a state file; the current settings stay in effect.

        A pattern is done if it was committed and all its schemes were measured. Others continue.

        Raises:
            FileNotFoundError: If there is no such file.
            AutotunerError: If it is damaged, or belongs to another model, quant type or dialect.
        """
        self._require_initialized()
        state = read_state(input_path)
        self._check_same(state, input_path)
        patterns = self._book.by_signature
        by_structure = {tuned.plain.signature: tuned for tuned in patterns.values()}
        found, unknown = [], 0
        for each in state.patterns:
            tuned = patterns.get(each.pattern_signature) or by_structure.get(each.pattern_signature)
            if tuned is None:
                unknown += 1
            else:
                found.append(PatternSchemes(each.pattern, tuned.fitting(each.schemes)))
        if unknown:
            _log.warning("%s: %d patterns are not among the model's regions", input_path, unknown)
        self.profiled_patterns = found
        if state.baseline_latency_ms is not None:
            self.baseline_latency_ms = state.baseline_latency_ms
        self._load_cache(input_path)
        self._progress.unfinished = state.current_signature
        self._progress.profiling = None
        self.current_profile_region = None
        self._progress.measured, self._progress.whole_models = {}, iter(())

    def _find_regions(self, graph_changed: bool) -> Iterable[Region]:
        """Return the regions to tune; here, those that were set."""
        if graph_changed and self.regions:
            raise AutotunerError(
                f"The model had to be raised to a newer opset for "
                f"{self.config.default_quant_type}, and the regions no longer fit it.",
                "Convert the model first, and make the regions for the new one.",
            )
        return self.regions

    @property
    def _book(self) -> PatternResults:
        """The patterns of the regions, updated if `regions` was replaced."""
        if self._progress.book is None or list(self._progress.book.of_region) != self.regions:
            self.regions = adopt_regions(self.regions, self.graph)
            closure = EdgeClosure(self.graph, self.dialect, self.config.default_quant_type)
            self._progress.book = PatternResults(self.regions, self.graph, closure)
        return self._progress.book

    def _warn_if_nothing(self) -> None:
        why = self._book.closure.why_nothing
        if why:
            what = f"{self.config.default_quant_type} for {self.dialect.name}"
            _log.warning("nothing of the model can be quantized to %s: %s", what, why)

    def _begin(self, tuned: TunedPattern) -> None:
        """Start profiling a pattern, unless it is done."""
        done = by_signature(self.profiled_patterns)
        own, structure = done.get(tuned.pattern.signature), done.get(tuned.plain.signature)
        known = own or structure
        is_unfinished = known is not None and known.pattern_signature == self._progress.unfinished
        if known is not None and is_done(known, tuned) and not is_unfinished:
            self._say("%s was profiled before", tuned.pattern.get_short_signature())
            return
        seeds = seeds_of(tuned, self._progress.imports, self._cache, self.config)
        if own is not None:
            if is_part(own) and self.baseline_latency_ms is not None:
                own.schemes[0].latency_ms = self._best_latency_ms(self.baseline_latency_ms)
            self.profiled_patterns.remove(own)
            seeds = [*own.schemes, *seeds]
        elif structure is not None:  # it may apply to other shapes, too, so it stays
            seeds = [*copy.deepcopy(tuned.fitting(structure.schemes)), *seeds]
        if is_unfinished:
            self._progress.unfinished = None
        others = self._choices(best=True, with_imports=False)
        self._progress.profiling = Profiling(
            tuned, seeds, others, self._progress.measured, self.config, self._seed
        )
        if self.baseline_latency_ms is not None:
            self._progress.profiling.enter_empty(self._best_latency_ms(self.baseline_latency_ms))

    def _whole_models(self) -> Iterator[Schemes]:
        """Return whole models to try; none once a pattern is done, or without the float latency."""
        if self.profiled_patterns or not self._progress.measured:
            return iter(())
        if self._progress.whole_models is None and self.config.maximum_mutations:
            patterns = self._book.by_signature.values()
            self._progress.whole_models = whole_model_schemes(
                patterns, self._book.closure, self._cache, self._seed, self._progress.measured
            )
        return self._progress.whole_models or iter(())

    def _choices(self, best: bool, with_imports: bool = True) -> Schemes:
        """Return the scheme of each pattern that has one.

        While candidates are measured, imported schemes are excluded.
        """
        is_candidate = self._progress.profiling is not None and not best
        imported = self.pattern_cache if with_imports and not is_candidate else None
        return self._book.choices(
            self.profiled_patterns, self._progress.profiling, imported, best=best
        )

    def _edges(self, best: bool) -> frozenset[Edge]:
        return edges_of(self._choices(best))

    def _best_latency_ms(self, baseline_ms: float) -> float:
        found = (each.best_scheme for each in self.profiled_patterns)
        return min([baseline_ms, *(best.latency_ms for best in found if best is not None)])

    @property
    def _cache(self) -> PatternCache:
        assert self.pattern_cache is not None
        return self.pattern_cache

    def _require_initialized(self) -> None:
        if not self.initialized:
            raise AutotunerNotInitializedError(
                "The autotuner is not initialized.", "Call initialize() first."
            )

    def _require_region(self) -> None:
        self._require_initialized()
        if self.current_profile_region is None:
            raise InvalidSchemeError(
                "There is no region to tune.", "Call set_profile_region(region) first."
            )

    def _tell_cache(self) -> None:
        """Log how many patterns of the cache occur in the model."""
        known = self._cache.num_patterns
        found = self._cache.occurring(each.pattern for each in self._book.by_signature.values())
        if known and not found:
            _log.warning("none of the %d patterns in the cache occur in this model", known)
        elif known:
            _log.info("%d of the %d patterns in the cache occur in this model", found, known)

    def _say(self, message: str, *args: object) -> None:
        _log.log(logging.INFO if self.config.verbose else logging.DEBUG, message, *args)

    def _load_cache(self, path: str | os.PathLike[str]) -> None:
        """Load the cache; it only suggests what to try first, so a damaged one is not an error."""
        try:
            self._cache.merge(PatternCache.load(pattern_cache_path(path)), False)
        except FileNotFoundError:
            pass
        except NewerVersionError:
            raise  # it would be overwritten
        except AutotunerError as error:
            _log.warning("the pattern cache is left out: %s", error.what)

    def _header(self) -> dict[str, Any]:
        """Return the header of a state file, which identifies the run."""
        return {
            "quant_type": self.config.default_quant_type,
            "dialect": self.dialect.name,
            "model": self.fingerprint,
        }

    def _check_same(self, state: SavedState, path: str | os.PathLike[str]) -> None:
        if not state.header:
            _log.warning(
                "%s does not say which model it belongs to: it is taken for this one", path
            )
        saved = {"quant_type": state.config.default_quant_type, **state.header}
        for name, own in self._header().items():
            if saved.get(name, own) != own:
                raise AutotunerError(
                    f"{path} is of another {name}: {saved[name]!r}, not {own!r}.",
                    "Use the state file of this model and these settings, or start a new one.",
                )

    def _candidates(self) -> CandidateWriter:
        if self._progress.writer is None:
            self._progress.writer = CandidateWriter(
                self._model, self.dialect, self.config, self._ranges
            )
        return self._progress.writer


class QDQAutotuner(QDQAutotunerBase):
    """Tunes the regions that `CombinedRegionSearch` finds: leaves first, then their parents."""

    def _find_regions(self, graph_changed: bool) -> list[Region]:  # noqa: ARG002
        self.regions = []
        self._search_regions()
        return self.regions

    def _search_regions(self) -> None:
        """Set `regions`; a subclass may search differently."""
        found = CombinedRegionSearch(
            self.graph,
            self.config.maximum_sequence_region_size,
            self.config.minimum_topdown_search_size,
        ).search_regions()
        self.regions = sorted(walk(found), key=lambda region: region.type is not RegionType.LEAF)
