"""One tuning run, from the model to the file that is handed over."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from qdqtune.autotune.patterns.pattern_cache import PatternCache
from qdqtune.autotune.search.placement_search import PlacementSearch
from qdqtune.autotune.search.space import Space, State
from qdqtune.autotune.search.trial import SEEDS, Effort, Score, Trial, speedup_of
from qdqtune.config import SUBGRAPH
from qdqtune.engines import registry
from qdqtune.engines.float_types import exact_options, float_type_in_effect
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.engines.reference_engine import reference_worker
from qdqtune.graph.atomic_files import sha256_of
from qdqtune.graph.external_data import model_bytes
from qdqtune.graph.files import load_model, save_model, write_text
from qdqtune.graph.precision_types import HALF_TYPES
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.records.errors import EngineError
from qdqtune.records.measurement import EngineInfo
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.records.tuning import Summary, TuneResult
from qdqtune.workflows.accuracy_evaluator import AccuracyEvaluator, Kernels, has_own_kernels
from qdqtune.workflows.sample_provider import SampleProvider, ranges_in_every_way
from qdqtune.workflows.source_model import Source, has_types
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning import story as stops
from qdqtune.workflows.tuning.bounded_samples import BoundedSamples
from qdqtune.workflows.tuning.candidate_evaluator import CandidateEvaluator
from qdqtune.workflows.tuning.defer_interrupts import defer_interrupts
from qdqtune.workflows.tuning.final_round import fastest_first
from qdqtune.workflows.tuning.finalize import Finalizer
from qdqtune.workflows.tuning.float_type import wanted_type, written_type
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.handover import sha256_of_model, sha256_with_weights
from qdqtune.workflows.tuning.header import as_said_before
from qdqtune.workflows.tuning.journal import Journal
from qdqtune.workflows.tuning.measured_accuracy import METRIC, MeasuredAccuracy, checked_metric
from qdqtune.workflows.tuning.named_state import measurements_in, set_state_aside
from qdqtune.workflows.tuning.noise import check_noise, noise_when_quiet, why_nothing_is_decided
from qdqtune.workflows.tuning.preflight import (
    PATTERN_CACHE,
    build_limit_s,
    check_runs,
    find_choices,
    latency_shares,
    seeds_of,
    with_ranges,
)
from qdqtune.workflows.tuning.previous_result import previous_result, why_not_as_fast, why_not_kept
from qdqtune.workflows.tuning.progress_reporter import ProgressReporter
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.scheme_logs import SchemeLogs
from qdqtune.workflows.tuning.searching import AskedAndTold, Searching
from qdqtune.workflows.tuning.setup import (
    TuningTarget,
    ask_engine,
    check_first,
    given_tensors,
    in_float_type,
)
from qdqtune.workflows.tuning.snapshot import Candidate, Snapshots, given_cache
from qdqtune.workflows.tuning.story import Story
from qdqtune.workflows.tuning.subgraph_mode import RAW, SubgraphMode
from qdqtune.workflows.tuning.time_budget import TimeBudget

_logger = logging.getLogger(__name__)

_FLOAT: State = frozenset()
# A step that takes longer is told before it begins.
_TOLD_AHEAD_S = 2.0
# Seeds that measurements led to: no blankets.
_FOUND = (RAW, PATTERN_CACHE)
_WRITTEN = (
    names.BASELINE,
    names.FINAL,
    names.PLACEMENT,
    names.RANGES,
    names.JOURNAL,
    names.STATE,
    names.PATTERN_CACHE,
)
_OF_SUBGRAPHS = (names.RAW, names.SUBGRAPH_CACHE)


class TuneRun:
    """Carries a request out.

    Args:
        request: What was asked for.
        source: The model.
        provider: What it is run on.
        folder: Where everything goes.
        reporter: Who hears of it.
    """

    def __init__(
        self,
        request: TuneRequest,
        source: Source,
        provider: SampleProvider,
        folder: RunFolder,
        reporter: ProgressReporter,
    ) -> None:
        self._request = request
        self._source = source
        self._provider = provider
        self._folder = folder
        self._story = Story()
        self._accuracy_evaluator: AccuracyEvaluator | None = None
        self._stack = contextlib.ExitStack()
        self._reporter = reporter
        self._pace = TimeBudget(
            lambda: reporter.left_s, request.preset, request.config.budget_s,
            measures=registry.entry(request.engine).measures,
        )  # fmt: skip
        self._pace.evaluated = provider.evaluation_sample_count
        self._is_out_of_time = False
        self._build_limit_s: float | None = None
        log = folder / names.LOGS / "runs.log"
        self._runner = self._worker(reference_worker(log_path=log, scratch=folder.scratch))
        self._engine = self._worker(self._new_engine(names.ENGINE_LOG))

    def __enter__(self) -> TuneRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def whole(self) -> TuneResult:
        """Everything, in order."""
        request, story, tell = self._request, self._story, self._reporter.tell
        self._given_tensors = given_tensors(request, self._source, tell)
        tuned = check_first(request, self._source, self._folder)
        self._evaluate_float()
        self._folder.begin()
        began_s = self._reporter.elapsed_s
        request, info = ask_engine(request, self._engine)
        self._pace.start_s = self._reporter.elapsed_s - began_s
        self._info = info
        tell("engine", f"{registry.title(request.engine)} {info.version} on {info.device}")
        feeds = self._engine.store(next(iter(self._provider.evaluation_samples())))
        wanted = wanted_type(request.config.precision, info, self._source)
        if wanted is not None:
            tell("precision", f"converting the model to {wanted.value}, and timing both")
        tuned = in_float_type(
            replace(tuned, request=request), info, self._provider, self._engine, feeds, self._folder
        )
        self._take_form(tuned)
        cache = request.config.pattern_cache
        given = None if cache is None else given_cache(Path(cache))
        journal_path = self._folder / names.JOURNAL
        self._header = as_said_before(journal_path, tuned.header(info, self._provider))
        journal = self._open_journal()
        began_s = self._reporter.elapsed_s
        tuned = tuned.place(self._folder)
        request = self._request = tuned.request
        self._open_files(given, journal)
        base = PreparedModel(self._source.model, self._folder / names.CANDIDATES, is_kept=True)
        plain = base.write(base.whole(), names.FLOAT_CANDIDATE)
        self._pace.write_s = self._reporter.elapsed_s - began_s
        if not self._time_baseline(plain, feeds, journal):
            return self._hand_over(info, journal)
        tell("model", "finding what can be quantized")
        planner, story.grouping = find_choices(
            base, request.dialect, request.config.quant_type, self._provider, self._runner,
            request.config.node_filter, given, request.config.filters, request.config.region_filter,
        )  # fmt: skip
        tell(
            "model",
            f"{len(base.nodes)} ops, {story.grouping.regions} regions, "
            f"{story.grouping.patterns} patterns, {len(story.grouping.groups)} choices",
        )
        if given is not None:
            self._tell_cache(given, str(cache))
        if not story.grouping.groups:
            story.reason = _nothing_to_do(planner, self._source)
            return self._hand_over(info, journal)
        if journal.shares is None and request.config.workflow != SUBGRAPH:
            tell("profile", "asking the engine where the float model's time goes")
            shapes = self._provider.shapes
            journal.keep_shares(latency_shares(self._engine, plain, feeds, base.index, shapes))
        self._search_and_finish(base, plain, planner, journal, feeds)
        return self._hand_over(info, journal)

    def _time_baseline(self, plain: Path, feeds: StoredFeeds, journal: Journal) -> bool:
        """Build the model as given, and time it against itself.

        Returns:
            Whether something can come of the run: there is time for it, and the machine is quiet.
        """
        request, story, reporter = self._request, self._story, self._reporter
        reporter.tell("baseline", "building the model as given, and timing it against itself")
        build_s, first_ms = check_runs(
            self._engine, self._folder / names.BASELINE, feeds,
            is_quantized=self._source.reading is not None,
            converted_from=self._source.converted_from, most_s=self._pace.left_s(),
        )  # fmt: skip
        story.build_s, story.baseline_ms, story.final_ms = build_s, first_ms, first_ms
        self._pace.saw_baseline(build_s, first_ms)
        if self._is_budget_too_short(self._pace.trial_s(1, Effort.SCREEN), journal):
            return False
        # Another float type has another latency: what counts is that of the model as given.
        timed = self._folder / names.BASELINE if self._source.converted_from else plain
        story.noise, story.baseline_ms, build_s = noise_when_quiet(
            lambda: check_noise(self._engine, timed, feeds, request.preset),
            request.config.budget_s,
            reporter.tell,
        )
        story.build_s = max(story.build_s, build_s)  # one of them may have been kept from before
        self._engine.timeout_s = self._build_limit_s = build_limit_s(self._engine, story.build_s)
        story.final_ms = story.baseline_ms
        self._pace.saw_baseline(story.build_s, story.baseline_ms)
        self._logs.write_baseline(story.baseline_ms)
        if self._earlier is None and (busy := why_nothing_is_decided(story.noise)):
            story.reason = busy
            return False
        return not self._is_budget_too_short(0.0, journal)

    def _is_budget_too_short(self, also_s: float, journal: Journal) -> bool:
        """Whether nothing can come of the run, which is told then; what is known costs no time.

        Args:
            also_s: Seconds that are needed before the first candidate.
            journal: What is known.
        """
        budget_s, pace, story = self._request.config.budget_s, self._pace, self._story
        is_known = journal.earlier_benchmarks or self._earlier is not None
        if budget_s is None or is_known or pace.left_s() >= also_s + pace.least_s:
            return False
        story.stopped = stops.BY_BUDGET
        story.reason = pace.needed(self._reporter.elapsed_s, also_s)
        return True

    def _evaluate_float(self) -> None:
        """Ask for the metric of the model as given: a function that fails is to fail at once.

        Raises:
            UsageError: If the function does not return a number.
        """
        evaluate = self._request.evaluate
        if evaluate is not None:
            self._reporter.tell("evaluate", f"{evaluate.label} on the model as given")
            began_s = self._reporter.elapsed_s
            found = checked_metric(evaluate(str(self._request.model)), evaluate.label)
            self._pace.accuracy_s[METRIC] = self._reporter.elapsed_s - began_s
            self._story.metric = {"float": found}

    def _take_form(self, tuned: TuningTarget) -> None:
        """From here on, the model is the one in its float type."""
        self._request, self._source, self._tuned = tuned.request, tuned.source, tuned
        request, form, story = tuned.request, tuned.form, self._story
        story.precision, story.precision_sqnr_db = form.name, form.sqnr_db
        story.precision_reason, story.precision_speedup = form.reason, form.speedup
        story.converted_from = tuned.source.converted_from
        if story.converted_from:
            self._reporter.tell(
                "precision",
                f"{request.dialect.name} has no integer kernels for {story.converted_from}: the "
                f"model is tuned in float32; inputs and outputs keep their types",
            )
        if form.model is not None:
            error = f", {form.sqnr_db:.1f} dB from it" if form.sqnr_db is not None else ""
            gain = f", {form.speedup:.2f}x as fast" if form.speedup is not None else ""
            self._reporter.tell("precision", f"the model is tuned in {form.name}{error}{gain}")

    def _open_files(self, given: PatternCache | None, journal: Journal) -> None:
        """What lies beside the journal, of this run and of an earlier one."""
        request, folder, header = self._request, self._folder, self._header
        state, config = request.state_file or folder / names.STATE, request.config
        self._snapshots = Snapshots(
            state, header, config.quant_type, config.performance_threshold, given
        )
        self._logs = SchemeLogs(folder / names.LOGS, self._info)
        self._earlier = previous_result(folder)
        self._finalizer = Finalizer(
            request, self._source, self._provider, folder, self._reporter, self._story,
            self._accuracy(journal), self._new_engine, self._earlier, self._pace,
        )  # fmt: skip

    def _tell_cache(self, cache: PatternCache, path: str) -> None:
        """How much of a pattern cache the model has."""
        found, patterns = self._story.grouping.cached_patterns, cache.num_patterns
        if found:
            what = f"{found} of the {patterns} patterns in {path} occur in this model"
            self._reporter.tell("pattern cache", what)
        else:
            _logger.warning("none of the %d patterns in %s occur in this model", patterns, path)

    def _open_journal(self) -> Journal:
        path, reporter = self._folder / names.JOURNAL, self._reporter
        state, lines = self._request.state_file, self._lines_of_state()
        model = str(self._request.model)
        journal = Journal(path, self._header, lambda: reporter.elapsed_s, model)
        self._stack.callback(journal.close)
        if adopted := journal.adopt(lines):
            reporter.tell("resume", f"going on from {state}: {adopted} measurements known")
        story = self._story
        story.runs = journal.session
        story.earlier_s, story.earlier_benchmarks = journal.earlier_s, journal.earlier_benchmarks
        if journal.session > 1:
            self._reporter.tell(
                "resume",
                f"going on with an earlier run: {journal.earlier_benchmarks} measurements known",
            )
        return journal

    def _lines_of_state(self) -> tuple[str, ...]:
        """What a state file that the user names carries, which may be that of another folder.

        Raises:
            UsageError: If it was measured under other conditions.
        """
        state = self._request.state_file
        if state is None:
            return ()
        if self._folder.begins_anew:
            set_state_aside(state)
            return ()
        return measurements_in(state, self._header)

    def _search_and_finish(
        self,
        base: PreparedModel,
        plain: Path,
        planner: QuantizationPlanner,
        journal: Journal,
        feeds: StoredFeeds,
    ) -> None:
        request, story = self._request, self._story
        given = self._source.reading.encodings if self._source.reading is not None else {}
        ways = self._calibrate(base, planner.candidate_edges, journal)
        self._pace.ranges = len(ways)
        first = next(iter(ways.values()))

        def known(tensor: str) -> bool:
            found = tensor in first.by_tensor or tensor in given
            return found or base.index.is_constant(tensor)

        story.grouping = with_ranges(story.grouping, planner, known)
        story.calibration = first.source.value
        story.calibration_samples = first.samples
        inserter = Inserter(base, request.dialect, request.config.quant_type, first, given)
        inserters = {way: inserter.with_ranges(ranges) for way, ranges in ways.items()}
        scales = inserter.encoder.digest()
        data = scales if first.source is not CalibrationSource.RANDOM else ""
        story.conditions = request.conditions(sha256_of(request.model), data, story.precision)
        mode: SubgraphMode | None = None
        if request.config.workflow == SUBGRAPH:
            mode = SubgraphMode(
                request, self._folder, self._reporter, story, self._engine, self._runner,
                self._provider, feeds, next(iter(inserters.values())), planner,
                self._header, self._float_type, self._pace,
            )  # fmt: skip
        searching = self._begin_search(mode, plain, planner, journal)
        space = searching.space
        evaluator = CandidateEvaluator(
            self._engine, request.engine, next(iter(inserters.values())), space, feeds,
            request.preset, journal, scales, searching.take_layers,
        )  # fmt: skip
        try:
            state = self._search(searching, evaluator, inserters)
        finally:
            story.benchmarks, story.failed = evaluator.benchmarks, evaluator.failed
            story.memo_hits = journal.memo_hits
            story.why_all_failed = evaluator.why_all_failed
        with defer_interrupts(is_over=story.stopped == stops.INTERRUPTED):
            # Checking and repairing may take long; what was measured is not to wait for it.
            self._take_snapshot(planner, evaluator, evaluator.candidate_of(state))
            rules = {name: each for name, each in searching.seeds.items() if name not in _FOUND}
            blankets = fastest_first(space, rules, story.seeds)
            self._finalizer.finish(space, state, inserters, blankets)
            self._check_earlier(base)
        self._take_snapshot(planner, evaluator, self._chosen(evaluator))

    def _check_earlier(self, base: PreparedModel) -> None:
        """Don't keep an earlier result that is not what its summary says."""
        earlier = self._earlier
        if earlier is None or not self._finalizer.keeps_earlier:
            return
        evaluator, room = self._evaluator_of(base), self._folder.scratch
        timed = self._finalizer.earlier_timed
        why = why_not_kept(earlier, evaluator, room, self._request.config.min_sqnr_db)
        why = why or why_not_as_fast(earlier, timed, self._request.config.performance_threshold)
        if not why and timed is not None and earlier.is_slower_than_claimed(timed.comparison):
            self._earlier = earlier.timed_again(timed)
            _logger.warning(
                "the result of an earlier run is %.3fx as fast as float, not %.3fx as its summary "
                "says: the summary is corrected",
                timed.comparison.ratio, earlier.claim.speedup,
            )  # fmt: skip
        if why:
            reason = f"the result that lay in the folder is not what it claims: {why}"
            _logger.warning("%s", reason)
            self._story.reason = reason
            self._finalizer.keeps_earlier, self._earlier = False, None

    def _begin_search(
        self,
        mode: SubgraphMode | None,
        plain: Path,
        planner: QuantizationPlanner,
        journal: Journal,
    ) -> Searching:
        """What can be chosen, and who chooses; nothing if there was no time to find it out."""
        request, story = self._request, self._story
        if mode is None:
            space = Space(planner, story.grouping.groups, journal.shares or {})
            seeds = seeds_of(space, self._given_tensors, story.grouping)
            limits = request.preset.limits(
                len(space.groups), story.grouping.patterns,
                request.config.max_benchmarks, request.config.schemes_per_region,
            )  # fmt: skip
            search = PlacementSearch(space, seeds, limits, request.config.seed)
            return Searching(space, search, seeds)
        try:
            return mode.prepare(plain, self._given_tensors)
        except KeyboardInterrupt:
            story.stopped = stops.INTERRUPTED
            space = Space(planner, (), {})
            return Searching(space, PlacementSearch(space, {}), {})

    def _take_snapshot(
        self, planner: QuantizationPlanner, evaluator: CandidateEvaluator, best: Candidate
    ) -> None:
        """Write the state and the logs of schemes, as far as the search has come."""
        views = self._story.grouping.views
        tried = self._snapshots.write(
            planner, views, evaluator.candidates(), best, self._story.baseline_ms,
            evaluator.journal.kept_lines,
        )  # fmt: skip
        self._logs.write_schemes(views, tried)

    def _chosen(self, evaluator: CandidateEvaluator) -> Candidate:
        """What is handed over, as the last comparison saw it."""
        story, earlier = self._story, self._earlier
        if self._finalizer.keeps_earlier and earlier is not None:
            return evaluator.shipped(earlier.placement, math.log(earlier.summary.speedup))
        compared = story.comparison if story.is_shipped else None
        return evaluator.shipped(story.placement, math.log(compared.ratio) if compared else 0.0)

    def _calibrate(
        self, base: PreparedModel, placement: Placement, journal: Journal
    ) -> dict[RangeMethod, Ranges]:
        """Ranges in every way; from some of the samples, if there is no time for all."""
        request, provider = self._request, self._provider
        self._reporter.tell("calibration", f"on {provider.describe()}")
        layout = request.dialect.format_of(request.config.quant_type)
        bounded = BoundedSamples(provider.samples, journal.samples, self._pace.calibration_s)
        show = self._reporter.progress("calibration")
        found = dict(
            ranges_in_every_way(
                self._source, base, self._runner, placement,
                replace(provider, samples=bounded.begin), layout, request.config.range_method,
                lambda done, total: show("samples", done, total),
            )
        )  # fmt: skip
        if bounded.is_cut_short:
            told = f"the first {bounded.count} samples, all that --budget left time for"
            self._provider = replace(provider, describe=lambda: told)
            self._reporter.tell("calibration", f"on {told}")
            if journal.samples is None:
                journal.keep_samples(bounded.count)
        return found

    def _search(
        self,
        searching: Searching,
        evaluator: CandidateEvaluator,
        inserters: Mapping[RangeMethod, Inserter],
    ) -> State:
        """Let the search ask and the engine answer, until one of them has had enough."""
        story, search, space = self._story, searching.search, searching.space
        if story.stopped == stops.INTERRUPTED:
            _logger.warning("interrupted: what was found out is kept; the same command goes on")
            return search.incumbent
        self._reporter.search_begins()
        if not self._snapshots.exist:
            self._take_snapshot(space.planner, evaluator, evaluator.candidate_of(search.incumbent))
        try:
            while (trial := search.ask()) is not None:
                if trial.stage != SEEDS and self._request.config.budget_s is not None:
                    self._finalizer.foresee(space, search.incumbent, inserters)
                scores = self._answer(search, trial, evaluator)
                if not scores:
                    break
                searching.before_tell(trial)
                search.tell(scores)
                searching.after_tell()
                if trial.reference == _FLOAT:
                    self._note_seeds(space, searching.seeds, trial, scores)
                if self._snapshots.is_due:
                    incumbent = evaluator.candidate_of(search.incumbent)
                    self._take_snapshot(space.planner, evaluator, incumbent)
                self._tell_trial(search, trial, scores, evaluator)
                if self._is_out_of_time:
                    break
        except KeyboardInterrupt:
            story.stopped = stops.INTERRUPTED
            _logger.warning("interrupted: finishing the best model so far; once more to abort")
        except EngineError as error:
            story.stopped = stops.ENGINE_FAILED
            _logger.warning("%s Finishing the best model so far.", error)
        if story.stopped == stops.FINISHED and search.is_cut_short:
            story.stopped = stops.BY_COUNT
        return search.incumbent

    def _answer(
        self, search: AskedAndTold, trial: Trial, evaluator: CandidateEvaluator
    ) -> list[Score]:
        """Measure what a trial asks for, as far as there is time; nothing if there is none.

        What is known takes none. Of the whole-model choices that a search begins with, as many are
        tried as possible; everything after them is tried whole or not at all.
        """
        missing, pace = len(evaluator.missing(trial)), self._pace
        if not missing:
            return evaluator.answer(trial)
        is_first = trial.stage == SEEDS
        fitting = pace.fitting(missing, trial.effort, least=is_first)
        if fitting < missing:
            self._story.stopped, self._is_out_of_time = stops.BY_BUDGET, True
            if not is_first or not fitting:
                return []
        expected_s = pace.trial_s(fitting, trial.effort)
        if expected_s > _TOLD_AHEAD_S:
            self._reporter.tell(
                trial.stage,
                f"building and timing {_candidates(fitting)}, about {expected_s:.0f} s",
                benchmarks=evaluator.benchmarks, known=evaluator.journal.memo_hits,
                planned=search.planned, speedup=speedup_of(search.gain),
            )  # fmt: skip
        began_s = self._reporter.elapsed_s
        scores = evaluator.answer(trial, fitting)
        pace.saw_trial(fitting, trial.effort, self._reporter.elapsed_s - began_s)
        return scores

    def _note_seeds(
        self, space: Space, seeds: Mapping[str, State], trial: Trial, scores: list[Score]
    ) -> None:
        gains = dict(zip(map(space.key, trial.candidates), scores, strict=True))
        self._story.seeds.update(
            (label, speedup_of(gains[space.key(state)].gain))
            for label, state in seeds.items()
            if space.key(state) in gains and gains[space.key(state)].failure is None
        )

    def _tell_trial(
        self, search: AskedAndTold, trial: Trial, scores: list[Score], evaluator: CandidateEvaluator
    ) -> None:
        best = max((score.gain for score in scores), default=-math.inf)
        change = f"best {100 * math.expm1(best):+.1f} %" if math.isfinite(best) else "all refused"
        self._reporter.tell(
            trial.stage,
            f"{_candidates(len(scores))}, {change}",
            benchmarks=evaluator.benchmarks,
            known=evaluator.journal.memo_hits,
            planned=search.planned,
            speedup=speedup_of(search.gain),
            rest_s=self._pace.end_s(),
        )

    def _accuracy(self, journal: Journal) -> MeasuredAccuracy:
        request, metric = self._request, self._story.metric or {}
        own = has_own_kernels(request.engine, request.options.engine_options)
        accuracy = MeasuredAccuracy(
            journal, self._evaluator_of, self._provider.evaluation_samples,
            request.engine if own else "", request.evaluate, metric.get("float", math.nan),
            has_float_error=own and exact_options(self._info, request.options) is not None,
        )  # fmt: skip
        accuracy.seconds.update(self._pace.accuracy_s)
        self._pace.accuracy_s = accuracy.seconds
        return accuracy

    def _evaluator_of(self, base: PreparedModel) -> AccuracyEvaluator:
        if self._accuracy_evaluator is None:
            self._accuracy_evaluator = AccuracyEvaluator(
                self._source, base, self._runner, self._provider.evaluation_samples,
                kernels=self._kernels(), reference=self._reference(),
            )  # fmt: skip
            self._stack.callback(self._accuracy_evaluator.close)
        return self._accuracy_evaluator

    def _reference(self) -> Path | None:
        """The model as given, if it was converted: that is what users compare with."""
        if self._request.converted is None:
            return None
        return save_model(load_model(self._request.model), self._folder.scratch / "as_given.onnx")

    def _kernels(self) -> Kernels | None:
        """What ships is judged by the kernels that it is tuned for, wherever they can be run."""
        request = self._request
        if not has_own_kernels(request.engine, request.options.engine_options):
            return None
        worker = self._runner if request.engine == registry.REFERENCE else self._engine
        exact = exact_options(self._info, request.options)
        return Kernels(request.engine, worker, request.options, exact)

    def _hand_over(self, info: EngineInfo, journal: Journal) -> TuneResult:
        """Write what the run came to."""
        story, folder = self._story, self._folder
        if self._finalizer.keeps_earlier and self._earlier is not None:
            folder.clear_staging()
            _logger.warning("the result of an earlier run stays: it is at least as good")
            story.build_with = self._build_line(info, folder / names.FINAL)
            summary = self._earlier.summary_after(self._summary(info, {}))
            story.placement = self._earlier.placement
            _write_summary(folder / names.SUMMARY, summary)
        else:
            summary = self._write_result(info)
        self._logs.write_final(summary)
        journal.end(story.stopped)
        self._tell_end(summary)
        return TuneResult(folder / names.FINAL, folder.path, story.placement, summary)

    def _write_result(self, info: EngineInfo) -> Summary:
        """Stage all that belongs together, and hand it over at once."""
        story, folder, request = self._story, self._folder, self._request
        if not story.is_shipped:
            story.placement = Placement()
            story.final_ms = story.baseline_ms
            folder.copy_model(request.file, folder.staging() / names.FINAL)
            folder.remove_region_models()
        staged, fingerprint = folder.staged, self._tuned.fingerprint
        story.final_sha256 = sha256_of_model(staged / names.FINAL)
        story.baseline_sha256 = sha256_with_weights(folder / names.BASELINE)
        if story.is_shipped and story.sqnr_db is not None:
            story.error_inputs = self._provider.evaluation_inputs(
                request.config.input_request.ranges
            )
        write_text(staged / names.PLACEMENT, story.placement.to_json(fingerprint), force=True)
        if story.is_shipped and self._finalizer.ranges is not None:
            write_text(staged / names.RANGES, self._finalizer.ranges.to_json(), force=True)
        written = {
            name.partition(".")[0]: name
            for name in (*_WRITTEN, *(_OF_SUBGRAPHS if request.config.workflow == SUBGRAPH else ()))
            if (staged / name).exists() or (name not in names.RESULT and (folder / name).exists())
        }
        story.build_with = self._build_line(info, staged / names.FINAL)
        shipped = staged / names.FINAL if story.is_shipped else request.file
        story.bytes_after = model_bytes(shipped)
        summary = self._summary(info, written)
        _write_summary(staged / names.SUMMARY, summary)
        folder.hand_over(keep_old=self._is_other_result_lost())
        return summary

    def _build_line(self, info: EngineInfo, model: Path) -> str:
        """The command that builds what is handed over."""
        final = str(self._folder / names.FINAL)
        return registry.build_line(info, model, self._provider.shapes, final)

    def _summary(self, info: EngineInfo, files: dict[str, str]) -> Summary:
        seconds = self._reporter.seconds()
        return self._story.summary(self._request, info, self._provider, seconds, files)

    def _is_other_result_lost(self) -> bool:
        """Whether a proven result would be replaced by one that was not compared with it."""
        earlier, story = self._earlier, self._story
        if earlier is None or earlier.summary.final_sha256 == story.final_sha256:
            return False
        if earlier.summary.conditions == story.conditions and story.is_shipped:
            return False
        _logger.warning(
            "another result was in the folder, found under other conditions: it is kept in %s",
            self._folder / names.ASIDE,
        )
        return True

    def _tell_end(self, summary: Summary) -> None:
        self._reporter.tell(
            "done",
            summary.reason or f"{summary.speedup:.2f}x",
            benchmarks=self._story.benchmarks,
            speedup=summary.speedup,
        )

    @property
    def _float_type(self) -> str:
        return float_type_in_effect(self._info, written_type(self._source.model)).value

    def _new_engine(self, log: str, opening: int = 0) -> Worker:
        request = self._request
        log_path = self._folder / names.LOGS / log
        scratch = self._folder.scratch
        return Worker(
            request.engine, request.options, timeout_s=self._build_limit_s, log_path=log_path,
            scratch=scratch, opening=opening,
        )  # fmt: skip

    def _worker(self, worker: Worker) -> Worker:
        self._stack.callback(worker.close)
        self._reporter.workers.append(worker)
        return worker


def _write_summary(path: Path, summary: Summary) -> None:
    write_text(path, json.dumps(summary.to_dict(), indent=1, allow_nan=False) + "\n", force=True)


def _candidates(count: int) -> str:
    return f"{count} candidate{'s' * (count != 1)}"


def _nothing_to_do(planner: QuantizationPlanner, source: Source) -> str:
    reasons = Counter(planner.left_float.values())
    common = "; ".join(reason for reason, _ in reasons.most_common(3))
    hint, unsuited = "", HALF_TYPES.difference(planner.dialect.float_types)
    if not source.converted_from and has_types(source.model, unsuited):
        hint = "; without --precision it is tuned in float32"
    return f"nothing of it can be quantized{': ' + common if common else ''}{hint}"
