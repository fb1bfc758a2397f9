"""One tuning run, from the model to the file that is handed over."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from qdqtune.autotune.grouping import Grouping
from qdqtune.autotune.search import PlacementSearch
from qdqtune.autotune.space import Space, State
from qdqtune.autotune.trial import SEEDS, Score, Trial
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.graph.files import save_model
from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.prepared import PreparedModel
from qdqtune.qdq.completion import Completion
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.reading import ReadEncoding
from qdqtune.records.errors import EngineError, UsageError
from qdqtune.records.measurement import Comparison, EngineInfo
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import RangeMethod, Ranges
from qdqtune.records.tuning import Noise, Summary, TuneResult
from qdqtune.workflows.calibrating import Feeding, ranges_in_every_way
from qdqtune.workflows.comparison import engine_info
from qdqtune.workflows.judging import Judge
from qdqtune.workflows.source import Source, open_source
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.accuracy import checked_metric, correct_part
from qdqtune.workflows.tuning.arena import Arena
from qdqtune.workflows.tuning.clock import Reporter
from qdqtune.workflows.tuning.finish import Timed, time_final, why_not_shipped, write_final
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.journal import Journal
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.scouting import (
    check_noise,
    find_choices,
    latency_shares,
    seeds_of,
    with_ranges,
)

_logger = logging.getLogger(__name__)

_FLOAT: State = frozenset()


@dataclass
class _Story:
    """What a run has come to so far; the summary is made of it."""

    grouping: Grouping = field(default_factory=lambda: Grouping((), 0, 0))
    noise: Noise = field(default_factory=lambda: Noise(1.0, 0.0))
    baseline_ms: float = 0.0
    final_ms: float = 0.0
    comparison: Comparison | None = None
    stopped: str = "finished"
    reason: str = ""
    method: RangeMethod = RangeMethod.MINMAX
    sqnr_db: float | None = None
    is_shipped: bool = False
    metric: dict[str, float] | None = None
    calibration: str = "random"
    placement: Placement = field(default_factory=Placement)
    seeds: dict[str, float] = field(default_factory=dict)
    benchmarks: int = 0
    failed: int = 0
    memo_hits: int = 0


class TuneRun:
    """Carries a request out.

    Args:
        request: What was asked for.
        source: The model.
        feeding: What it is run on.
        folder: Where everything goes.
        reporter: Who hears of it.
    """

    def __init__(
        self,
        request: TuneRequest,
        source: Source,
        feeding: Feeding,
        folder: RunFolder,
        reporter: Reporter,
    ) -> None:
        self._request = request
        self._source = source
        self._feeding = feeding
        self._folder = folder
        self._story = _Story()
        self._judging: Judge | None = None
        self._fingerprint = fingerprint(source.model)
        self._stack = contextlib.ExitStack()
        self._reporter = reporter
        # Calibration and accuracy are ONNX Runtime's business, whatever is tuned for.
        self._runner = self._worker(Worker(log_path=folder / names.LOGS / "runs.log"))
        self._engine = self._worker(self._new_engine("engine.log"))

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
        info = engine_info(self._engine, request.engine)
        journal = Journal(self._folder / names.JOURNAL, self._header(info))
        self._stack.callback(journal.close)
        self._folder.copy_model(request.model, names.BASELINE)
        candidates = self._folder / names.CANDIDATES
        shutil.rmtree(candidates, ignore_errors=True)
        candidates.mkdir()
        base = PreparedModel(self._source.model, candidates)
        plain = base.write(base.whole(), "float")
        feeds = self._engine.store(next(iter(self._feeding.judged())))
        story.noise, story.baseline_ms = check_noise(self._engine, plain, feeds, request.preset)
        story.final_ms = story.baseline_ms
        tell("noise", f"a step can see differences from {100 * story.noise.detectable:.1f} % on")
        completion, story.grouping = find_choices(
            base, request.dialect, request.quant_type, self._feeding, self._runner,
            request.node_filter,
        )  # fmt: skip
        tell(
            "model",
            f"{len(base.nodes)} ops, {story.grouping.regions} regions, "
            f"{story.grouping.patterns} patterns, {len(story.grouping.groups)} choices",
        )
        if not story.grouping.groups:
            story.reason = _nothing_to_do(completion)
            return self._hand_over(info)
        if journal.shares is None:
            shapes = self._feeding.shapes
            journal.keep_shares(latency_shares(self._engine, plain, feeds, base.index, shapes))
        self._search_and_finish(base, completion, journal, feeds)
        return self._hand_over(info)

    def _search_and_finish(
        self, base: PreparedModel, completion: Completion, journal: Journal, feeds: StoredFeeds
    ) -> None:
        request, story = self._request, self._story
        given_tensors = self._given()
        given = self._source.reading.encodings if self._source.reading is not None else {}
        ways = self._calibrate(base, completion.placement(completion.units))
        first = next(iter(ways.values()))

        def known(tensor: str) -> bool:
            found = tensor in first.by_tensor or tensor in given
            return found or base.index.is_constant(tensor)

        story.grouping = with_ranges(story.grouping, completion, known)
        space = Space(completion, story.grouping.groups, journal.shares or {})
        story.calibration = first.source.value
        inserters = {
            way: Inserter(base, request.dialect, request.quant_type, ranges, given)
            for way, ranges in ways.items()
        }
        inserter = next(iter(inserters.values()))
        scales = _digest_of_scales(first, given)
        arena = Arena(self._engine, inserter, space, feeds, request.preset, journal, scales)
        state = self._search(space, arena, given_tensors)
        story.benchmarks, story.failed = arena.benchmarks, arena.failed
        story.memo_hits = journal.memo_hits
        self._finish(space, state, inserters)

    def _calibrate(self, base: PreparedModel, placement: Placement) -> dict[RangeMethod, Ranges]:
        request = self._request
        self._reporter.tell("calibration", f"on {self._feeding.describe()}")
        layout = request.dialect.format_of(request.quant_type)
        return dict(
            ranges_in_every_way(
                self._source, base, self._runner, placement, self._feeding, layout,
                request.method, None,
            )
        )  # fmt: skip

    def _search(self, space: Space, arena: Arena, given: dict[str, frozenset[str]]) -> State:
        """Let the search ask and the engine answer, until one of them has had enough."""
        request, story = self._request, self._story
        seeds = seeds_of(space, given)
        limits = request.preset.limits(len(space.groups), request.max_benchmarks)
        search = PlacementSearch(space, seeds, limits, request.seed)
        self._reporter.search_begins()
        try:
            while (trial := search.ask()) is not None:
                if self._reporter.is_over and trial.stage != SEEDS:
                    story.stopped = "budget"
                    break
                scores = arena.answer(trial)
                search.tell(scores)
                if trial.reference == _FLOAT:
                    gains = dict(zip(map(space.key, trial.candidates), scores, strict=True))
                    story.seeds.update(
                        (label, math.exp(gains[space.key(state)].gain))
                        for label, state in seeds.items()
                        if space.key(state) in gains and gains[space.key(state)].failure is None
                    )
                self._tell_trial(search, trial, scores, arena.benchmarks)
        except KeyboardInterrupt:
            story.stopped = "interrupted"
            _logger.warning("interrupted: finishing the best model so far; once more to abort")
        except EngineError as error:
            story.stopped = "engine failed"
            _logger.warning("%s Finishing the best model so far.", error)
        if story.stopped == "finished" and search.asked >= limits.benchmarks:
            story.stopped = "max_benchmarks"
        return search.incumbent

    def _given(self) -> dict[str, frozenset[str]]:
        """What is quantized in files that somebody made of the model."""
        request, found = self._request, {}
        if self._source.reading is not None:
            found["as given"] = self._source.reading.placement.tensors
        if request.qdq_baseline is not None:
            reading = open_source(request.qdq_baseline).reading
            if reading is None:
                raise UsageError(
                    f"{request.qdq_baseline} has no Q/DQ to begin with.",
                    "Name a quantized form of the model, or leave --qdq_baseline out.",
                )
            found["Q/DQ baseline"] = reading.placement.tensors
        return found

    def _tell_trial(
        self, search: PlacementSearch, trial: Trial, scores: list[Score], benchmarks: int
    ) -> None:
        best = max((score.gain for score in scores), default=-math.inf)
        change = f"best {100 * math.expm1(best):+.1f} %" if math.isfinite(best) else "all refused"
        self._reporter.tell(
            trial.stage,
            f"{len(scores)} candidates, {change}",
            benchmarks=benchmarks,
            planned=search.planned,
            speedup=math.exp(search.gain),
            rest_s=self._request.preset.final_s,
        )

    def _finish(
        self, space: Space, state: State, inserters: Mapping[RangeMethod, Inserter]
    ) -> None:
        story, request = self._story, self._request
        if not space.placement(state):
            story.reason = "no candidate was faster than the float model"
            if not space.groups:
                story.reason = "nothing of it has a range that it could be quantized with"
            elif not story.benchmarks + story.memo_hits:
                story.reason = f"nothing was measured before the end ({story.stopped})"
            elif self._source.reading is not None:
                self._ship_float(next(iter(inserters.values())).base)
            return
        best = self._best_ranges(space.placement(state), inserters)
        inserter = inserters[best]
        state = self._correct(space, state, inserter)
        placement = space.placement(state)
        story.method = best
        if not placement:
            story.reason = "what is faster is not accurate enough"
            return
        story.sqnr_db = self._sqnr_db(inserter, placement)
        if story.sqnr_db is None and request.min_sqnr_db is not None and request.evaluate is None:
            _logger.warning(
                "how accurate it is can't be told: no output could be compared; use --evaluate"
            )
        final = write_final(inserter, placement, self._folder, request.model)
        self._ship_if_faster(final)
        if story.is_shipped:
            self._folder.write(names.RANGES, inserter.encoder.ranges.to_json())
            story.placement = placement

    def _ship_float(self, base: PreparedModel) -> None:
        """The float model inside a Q/DQ file may be faster than the file."""
        self._story.reason = ""
        path = self._folder.staging() / names.FINAL
        self._ship_if_faster(save_model(base.load(base.whole()), path))

    def _ship_if_faster(self, staged: Path) -> None:
        """Time a file against the model as it was given, and put it in place if it is faster."""
        story, request = self._story, self._request
        self._reporter.tell("final", "timing the file against the model as it was given")
        with contextlib.closing(self._new_engine("final.log")) as worker:
            self._reporter.workers.append(worker)
            feeds = next(iter(self._feeding.judged()))
            timed = time_final(
                worker, self._folder / names.BASELINE, staged, feeds, request.preset.final_s
            )
        if isinstance(timed, Timed):
            story.baseline_ms, story.final_ms = timed.baseline_ms, timed.final_ms
            story.comparison = timed.comparison
            story.reason = why_not_shipped(timed.comparison, request.threshold)
        else:
            story.reason = timed
        if not story.reason:
            self._folder.put_in_place(staged)
            story.is_shipped = True

    def _best_ranges(
        self, placement: Placement, inserters: Mapping[RangeMethod, Inserter]
    ) -> RangeMethod:
        """The ranges with which the choice is nearest to the float model."""
        if len(inserters) == 1:
            return next(iter(inserters))
        return max(inserters, key=lambda way: self._sqnr_db(inserters[way], placement) or -math.inf)

    def _correct(self, space: Space, state: State, inserter: Inserter) -> State:
        request, story = self._request, self._story
        evaluate, least_db = request.evaluate, request.min_sqnr_db
        least = -math.inf
        metrics: dict[State, float] = {}
        if evaluate is not None:
            self._reporter.tell("accuracy", f"{evaluate.label} on the model as it was given")
            before = checked_metric(evaluate(str(request.model)), evaluate.label)
            least = before - request.max_drop
            story.metric = {"float": before}

        def sqnr_db(choice: State) -> float:
            found = self._sqnr_db(inserter, space.placement(choice))
            return math.inf if found is None else found

        def roughly_db(choice: State) -> float:
            path = inserter.write(space.placement(choice), "judged")
            return self._judge(inserter.base).roughly_db(path)

        def is_correct(choice: State) -> bool:
            placement = space.placement(choice)
            if not placement:
                return True
            if least_db is not None and sqnr_db(choice) < least_db:
                return False
            if evaluate is None:
                return True
            path = inserter.write(placement, "evaluated")
            metrics[choice] = checked_metric(evaluate(str(path)), evaluate.label)
            return metrics[choice] >= least

        self._reporter.tell("accuracy", "comparing outputs with the float model")
        state = correct_part(space, state, is_correct, roughly_db)
        if story.metric is not None and state in metrics:
            story.metric["final"] = metrics[state]
        return state

    def _sqnr_db(self, inserter: Inserter, placement: Placement) -> float | None:
        """The worst output's distance from the float model; None if it can't be known here."""
        path = inserter.write(placement, "judged")
        found = self._judge(inserter.base).quality(path).against_float
        return min(found.values(), default=None)

    def _judge(self, base: PreparedModel) -> Judge:
        if self._judging is None:
            native = self._request.engine == "onnxruntime"
            self._judging = Judge(
                self._source, base, self._runner, self._feeding.judged, native=native
            )
            self._stack.callback(self._judging.close)
        return self._judging

    def _hand_over(self, info: EngineInfo) -> TuneResult:
        """Write what the run came to."""
        story, request, folder = self._story, self._request, self._folder
        kept = not story.is_shipped
        if kept:
            (folder / names.RANGES).unlink(missing_ok=True)
            story.placement = Placement()
            story.final_ms = story.baseline_ms
            folder.clear_staging()
            (folder / (names.FINAL + ".data")).unlink(missing_ok=True)
            folder.copy_model(request.model, names.FINAL)
        folder.write(names.PLACEMENT, story.placement.to_json(self._fingerprint))
        summary = self._summary(info, kept)
        folder.write_json(names.SUMMARY, summary.to_dict())
        self._reporter.tell(
            "done",
            story.reason or f"{summary.speedup:.2f}x",
            benchmarks=story.benchmarks,
            speedup=summary.speedup,
        )
        return TuneResult(folder / names.FINAL, folder.path, story.placement, summary)

    def _summary(self, info: EngineInfo, kept: bool) -> Summary:
        story, request, found = self._story, self._request, self._story.comparison
        is_faster = found is not None and not kept
        written = (names.BASELINE, names.FINAL, names.PLACEMENT, names.RANGES, names.JOURNAL)
        return Summary(
            model=str(request.model),
            engine=info,
            dialect=request.dialect.name,
            quant_type=request.quant_type,
            calibration=story.calibration,
            calibrated_on=self._feeding.describe(),
            calibration_method=story.method.value,
            seed=request.seed,
            preset=request.preset_name,
            stopped=story.stopped,
            baseline_ms=story.baseline_ms,
            final_ms=story.final_ms,
            speedup=found.ratio if found is not None and is_faster else 1.0,
            speedup_interval=(found.low, found.high)
            if found is not None and is_faster
            else (1.0, 1.0),
            confidence=found.confidence if found is not None else 1.0,
            kept_float=kept,
            reason=story.reason,
            output_sqnr_db=story.sqnr_db if is_faster else None,
            metric=story.metric,
            noise=story.noise,
            seeds=story.seeds,
            benchmarks=story.benchmarks,
            memo_hits=story.memo_hits,
            failed=story.failed,
            regions=story.grouping.regions,
            patterns=story.grouping.patterns,
            groups=len(story.grouping.groups),
            qdq_pairs=len(story.placement.tensors),
            seconds=self._reporter.seconds(),
            files={
                name.partition(".")[0]: name for name in written if (self._folder / name).exists()
            },
        )

    def _header(self, info: EngineInfo) -> dict[str, object]:
        """What measurements depend on."""
        return {
            "model": self._fingerprint,
            "engine": info.to_dict(),
            "dialect": self._request.dialect.name,
            "quant_type": self._request.quant_type,
            "shapes": {name: list(shape) for name, shape in self._feeding.shapes.items()},
        }

    def _new_engine(self, log: str) -> Worker:
        request = self._request
        return Worker(request.engine, request.options, log_path=self._folder / names.LOGS / log)

    def _worker(self, worker: Worker) -> Worker:
        self._stack.callback(worker.close)
        self._reporter.workers.append(worker)
        return worker


def _digest_of_scales(ranges: Ranges, given: Mapping[str, ReadEncoding]) -> str:
    """What the candidates' scales come from: ranges, and encodings that came with the model."""
    digest = hashlib.blake2b(ranges.digest().encode(), digest_size=16)
    for name in sorted(given):
        digest.update(repr((name, given[name])).encode())
    return digest.hexdigest()


def _nothing_to_do(completion: Completion) -> str:
    reasons = Counter(completion.left_float.values())
    common = "; ".join(reason for reason, _ in reasons.most_common(3))
    return f"nothing of it can be quantized{': ' + common if common else ''}"
