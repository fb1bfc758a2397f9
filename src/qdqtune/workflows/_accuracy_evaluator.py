"""Measure the errors of a quantized model's outputs against the models it comes from."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import onnx_ir as ir

from qdqtune.calibration._output_error import Reference, SignalToNoise, add_scores
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._options import exact_options
from qdqtune.engines._reference_engine import AS_WRITTEN, opening_options
from qdqtune.engines._worker import FailureKind, Worker, WorkerFailure
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._dialect import Dialect
from qdqtune.records._accuracy import allowed_sqnr_db
from qdqtune.records._errors import EngineError
from qdqtune.records._measurement import EngineInfo
from qdqtune.workflows._bench import engine_info
from qdqtune.workflows._source_model import Source, float32_twin, has_types

_logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")

# How much less accurate scores may be than other outputs, because only the largest counts. Measured
# on a text recognizer that reads 190 of 200 lines: 191 to 194 with scores at 10 to 12 dB, 172 at 8
# dB.
_SCORES_DB = 3.0
# The same for outputs that are evaluated by scores.
_DECIDED_DB = 10.0


@dataclass(frozen=True)
class Quality:
    """SQNR in decibels per output; empty where it can't be measured here.

    Attributes:
        against_float: Against the float model.
        against_given: Against the original Q/DQ file.
        scores: Against the float model, for the input of the Softmax or ArgMax that produces an
            output.
        of_float: The same for the float model itself, as the engine computes it; None if the engine
            computes it in float32, like the reference.
        why_unknown: Why some or all outputs could not be compared; empty if all were.
    """

    against_float: dict[str, float] = field(default_factory=dict)
    against_given: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    of_float: Quality | None = None
    why_unknown: str = ""

    @property
    def decisive(self) -> dict[str, float]:
        """The SQNR that decides for each output: that of its scores, if it has any."""
        return {**self.against_float, **self.scores}

    @property
    def worst_db(self) -> float:
        """SQNR of the output farthest from the float model; minus infinity if unknown."""
        if self.why_unknown:
            return -math.inf
        return min(self.decisive.values(), default=-math.inf)

    def shortfall(self, least_db: float) -> str:
        """Return which limit an output misses, and by how much; empty if all are accurate enough.

        Scores may be somewhat less accurate than other outputs; they then decide, unless the output
        behind them has lost all resemblance. Error from the engine's own float type does not count.
        Outputs that could not be compared count as missed.

        Args:
            least_db: The minimum SQNR of every output.
        """
        if self.why_unknown:
            return f"--min_sqnr {least_db:g} could not be checked: {self.why_unknown}"
        of_float = self.of_float or Quality()
        compared = [
            (db, _DECIDED_DB if name in self.scores else 0.0, of_float.against_float.get(name))
            for name, db in self.against_float.items()
        ]
        compared += [
            (db, _SCORES_DB, of_float.scores.get(name)) for name, db in self.scores.items()
        ]
        for found, slack_db, own_db in compared:
            allowed_db = allowed_sqnr_db(least_db - slack_db, own_db)
            if found >= allowed_db:
                continue  # NaN never passes
            below = f"{allowed_db - found:.1f} dB below" if math.isfinite(found) else "below"
            with_float = "" if own_db is None else f" (float itself: {own_db:.1f} dB)"
            return f"SQNR {found:.1f} dB is {below} --min_sqnr {least_db:g}{with_float}"
        return ""


def fewest_dropped(
    parts: int,
    is_enough: Callable[[int], bool],
    progress: Callable[[str, int, int], None],
    next_count: Callable[[int, int], int | None] = lambda few, many: (few + many) // 2,
) -> int:
    """Return the smallest number of parts that must stay float, worst first and at least one.

    Args:
        parts: Number of parts; without all of them, a candidate is accurate.
        is_enough: Whether a candidate is accurate without this many.
        progress: Called with the current step, its index and the total.
        next_count: Returns the next number to try, between one that is too small and one that is
            enough; None settles for the latter.
    """
    few, many, steps = 0, parts, 0
    while many - few > 1 and (middle := next_count(few, many)) is not None:
        left = math.ceil(math.log2(many - few))
        progress("attempts to leave the worst parts float", steps, steps + left)
        steps += 1
        few, many = (few, middle) if is_enough(middle) else (middle, many)
    return many


@dataclass(frozen=True)
class Kernels:
    """The engine that candidates are for, if it can run them here.

    Attributes:
        engine: Its name.
        worker: Its worker; the reference engine's worker if it is the same engine.
        options: Options for opening candidates.
        exact_options: Options for computing the float model in float32; None if the engine does so
            anyway, or has no such option.
        float_type: The type in which it computes float32 otherwise; empty if unknown.
    """

    engine: str
    worker: Worker
    options: SessionOptions
    exact_options: SessionOptions | None = None
    float_type: str = ""


def has_own_kernels(engine: str, options: Mapping[str, str] | None = None) -> bool:
    """Whether an engine can return the outputs of its kernels here; one without real runs can't."""
    return registry.entry(engine).measures and registry.available(engine, options).usable


def engine_of_dialect(
    dialect: Dialect, engine: str, options: Mapping[str, str] | None = None
) -> str | None:
    """Return the engine of a dialect, if it runs models here; prefer the one that was named.

    Args:
        dialect: The dialect of the models.
        engine: The engine they are for, if given.
        options: Its options that determine the dialect, if given.
    """
    asked = [] if engine == registry.AUTO else [engine]
    for name in (*asked, registry.REFERENCE):
        its = options if name == engine else None
        own = native_dialect(name, options=its)
        if own.name == dialect.name and has_own_kernels(name, its):
            return name
    return None


def kernels_of(worker: Worker, runner: Worker, info: EngineInfo) -> Kernels:
    """Return the kernels of a running engine.

    Args:
        worker: The engine.
        runner: The reference engine's worker, which runs models for itself.
        info: The engine's description of itself.
    """
    is_same = worker.engine == registry.REFERENCE and worker.host.is_here
    own = runner if is_same else worker
    options = worker.options
    return Kernels(worker.engine, own, options, exact_options(info, options), info.float_type)


@contextmanager
def open_kernels(
    engine: str | None, runner: Worker, options: SessionOptions | None = None
) -> Iterator[Kernels | None]:
    """Start the engine, in a separate process unless it is the one that calibrates.

    Raises:
        EngineError: If it does not start.
        UsageError: If it refuses the options.
    """
    if engine is None:
        yield None
    elif engine == registry.REFERENCE:
        if options is not None and options.engine_options:
            with Worker(engine, options) as worker:
                engine_info(worker, engine)
        yield Kernels(engine, runner, options or SessionOptions())
    else:
        with Worker(engine, options) as worker:
            yield kernels_of(worker, runner, engine_info(worker, engine))


class AccuracyEvaluator:
    """Compares candidates with the models they come from, which are run only once.

    Args:
        source: The model that candidates are made from.
        base: Its float model.
        runner: A worker of the reference engine.
        samples: Generates the inputs.
        kernels: The engine whose arithmetic counts: the one whose dialect the candidates are in.
            None if it can't run here; candidates are then run as written.
        approximate_samples: Number of samples for `approximate_sqnr_db`; None for all of them.
        reference: The model that `base` was converted from, to compare with instead; files may be
            written next to it.

    Attributes:
        kernels: As passed; None once they turn out not to return outputs.
    """

    def __init__(
        self,
        source: Source,
        base: PreparedModel,
        runner: Worker,
        samples: Callable[[], Iterable[Feeds]],
        *,
        kernels: Kernels | None,
        approximate_samples: int | None = None,
        reference: Path | None = None,
    ) -> None:
        self._has_reading = source.reading is not None
        self.kernels = kernels
        # The reference engine runs models as written, unless they are for that engine.
        options: SessionOptions | None = AS_WRITTEN
        if kernels is not None and kernels.worker is runner:
            options = opening_options(len(base.nodes)) or kernels.options
        bench = functools.partial(_Bench, source, base, reference)
        self._written = self._rough = self._exact = bench(runner, samples, options)
        if approximate_samples is not None:
            self._rough = bench(
                runner, lambda: itertools.islice(samples(), approximate_samples), options
            )
        if kernels is not None and kernels.worker is not runner:
            twins = not registry.entry(kernels.engine).runs_bfloat16
            self._exact = bench(
                kernels.worker, samples, kernels.options, twins, kernels.exact_options
            )
        self._is_checked = False
        self._hung: WorkerFailure | None = None

    def quality(self, candidate: Path) -> Quality:
        """Compare a candidate with the float model, and with the original file.

        Args:
            candidate: A file in the base's folder.

        Raises:
            EngineError: If the engine does not run a model in its own dialect.
        """
        try:
            self._check_kernels()
            return self._in_worker(lambda: self._quality(candidate))
        except WorkerFailure as failure:
            if self.kernels is not None:
                title = registry.title(self.kernels.engine)
                raise EngineError(
                    f"{title} does not run the quantized model: {failure}",
                    "Nothing was written. Leave out the op that it names, and report this.",
                ) from None
            _logger.warning("the output error could not be measured here: %s", failure)
            why = str(failure).splitlines()[0]
            return Quality(why_unknown=f"the outputs could not be computed: {why}")

    def _quality(self, candidate: Path) -> Quality:
        found = self._exact.against_float(candidate)
        against_given = self._exact.against_given(candidate) if self._has_reading else {}
        return replace(found, against_given=against_given, of_float=self._exact.of_float)

    def float_sqnr_db(self) -> float | None:
        """Measure how close the float model, as the engine computes it, is to float32.

        Returns:
            Decibels of the worst output; None if it is computed in float32, or can't be compared.

        Raises:
            EngineError: If the engine does not run it.
        """
        if self.kernels is None or self.kernels.exact_options is None:
            return None
        try:
            self._check_kernels()
            of_float = self._in_worker(lambda: self._exact.of_float)
        except WorkerFailure as failure:
            title = registry.title(self.kernels.engine)
            raise EngineError(
                f"{title} does not run the float model: {failure}",
                "`qdqtune bench` on it should say the same. Try other --engine_option values.",
            ) from None
        return min(of_float.against_float.values(), default=None) if of_float else None

    def _check_kernels(self) -> None:
        """Drop the engine's own kernels if it can't return the float model's outputs.

        Raises:
            WorkerFailure: If the engine crashes or hangs, which leaves the question open.
        """
        if self._is_checked or self.kernels is None or self._exact is self._written:
            return
        try:
            self._in_worker(self._exact.run_float_models)
        except WorkerFailure as failure:
            if failure.kind is not FailureKind.ERROR:
                raise
            title = registry.title(self.kernels.engine)
            _logger.info("%s returns no outputs: models are run as written: %s", title, failure)
            self._exact.close()
            self._exact, self.kernels = self._written, None
        self._is_checked = True

    def approximate_sqnr_db(self, candidate: Path) -> float:
        """Return the worst output's SQNR against the float model, without the engine's kernels.

        A session without optimizations opens fast, and is accurate enough to rank many candidates.
        """
        try:
            found = self._in_worker(lambda: self._rough.against_float(candidate, AS_WRITTEN))
            return min(found.decisive.values(), default=math.inf)
        except WorkerFailure:
            return -math.inf

    def _in_worker(self, action: Callable[[], _Found]) -> _Found:
        """Run models, retrying once in a fresh process if the first one died or hung.

        The machine may be the cause of the failure. A model that hung twice is not retried again,
        since each attempt costs the whole time limit.

        Raises:
            WorkerFailure: If there is no result.
        """
        if self._hung is not None:
            raise self._hung
        try:
            return action()
        except WorkerFailure as failure:
            if failure.kind is FailureKind.ERROR:
                raise
            _logger.warning("comparing outputs failed: %s; trying again in a new process", failure)
        try:
            return action()
        except WorkerFailure as failure:
            if failure.kind is FailureKind.TIMEOUT:
                self._hung = failure
            raise

    def close(self) -> None:
        """Discard the outputs of the models that were run."""
        for bench in (self._written, self._rough, self._exact):
            bench.close()


@dataclass
class _Bench:
    """One worker in which models are compared.

    Attributes:
        source: The model that candidates are made from.
        base: Its float model.
        reference: The float32 model that `base` was converted from; None if it wasn't converted.
        worker: The worker that runs them.
        samples: Generates the inputs.
        options: Options for opening models.
        twins: Whether models in bfloat16 run as their float32 twins.
        exact_options: Options for opening the float model, if different.
    """

    source: Source
    base: PreparedModel
    reference: Path | None
    worker: Worker
    samples: Callable[[], Iterable[Feeds]]
    options: SessionOptions | None
    twins: bool = True
    exact_options: SessionOptions | None = None

    def against_float(self, candidate: Path, options: SessionOptions | None = None) -> Quality:
        """Compare a candidate's outputs, and the scores behind them, with the float model's.

        Args:
            candidate: A file in the base's folder.
            options: Options for opening it, if different from the float model's.
        """
        reference = self._float
        shown, decided = add_scores(self._runnable(candidate, self._needs_twin))
        compared = reference.compare(shown, options or self.options)
        found = compared.decibels()
        return Quality(
            {name: db for name, db in found.items() if name not in decided},
            scores={decided[name]: db for name, db in found.items() if name in decided},
            why_unknown=_why_unknown(compared, found, decided),
        )

    def against_given(self, candidate: Path) -> dict[str, float]:
        """Return the SQNR of a candidate against the original file."""
        return self._given.sqnr_db(self._runnable(candidate, self._needs_twin))

    @cached_property
    def of_float(self) -> Quality | None:
        """Compare the float model with itself in float32; None if it is computed in float32."""
        return None if self.exact_options is None else self.against_float(self._float_model())

    def run_float_models(self) -> None:
        """Run the float model, both original and converted.

        Raises:
            WorkerFailure: If one of them does not run.
        """
        _ = self._float
        if self.reference is not None:
            self.against_float(self._float_model())

    @cached_property
    def _float(self) -> Reference:
        """The outputs of the float model."""
        path = self.reference or self._runnable(self._float_model(), self._needs_twin)
        shown, _ = add_scores(path)
        return self._run(shown, self.exact_options or self.options)

    @cached_property
    def _given(self) -> Reference:
        """The outputs of the original file."""
        needs_twin = self.twins and self.source.has_bfloat16
        return self._run(self._runnable(self.source.path, needs_twin), self.options)

    @cached_property
    def _needs_twin(self) -> bool:
        return self.twins and has_types(self.source.model, {ir.DataType.BFLOAT16})

    def close(self) -> None:
        """Discard the outputs."""
        for name in ("_float", "_given"):
            if (reference := vars(self).pop(name, None)) is not None:
                reference.close()

    def _float_model(self) -> Path:
        is_built = registry.entry(self.worker.engine).keeps_builds
        if is_built and self.reference is None and self.source.reading is None:
            return self.source.path  # it has the same outputs
        return self.base.write(self.base.whole(), "reference")

    def _run(self, model: Path, options: SessionOptions | None) -> Reference:
        return Reference(self.worker, model, self.samples(), options=options)

    def _runnable(self, path: Path, needs_twin: bool) -> Path:
        if not needs_twin:
            return path
        folder = self.base.store.folder
        twin = folder / f"twin{len(list(folder.iterdir()))}.onnx"
        return save_model(float32_twin(load_model(path)), twin)


def _why_unknown(
    compared: SignalToNoise, found: Mapping[str, float], decided: Mapping[str, str]
) -> str:
    """Explain why not all outputs could be compared; empty if all were."""
    missing = sorted(compared.missing - decided.keys())
    if missing:
        return f"the engine does not report the output {missing[0]!r} of the quantized model"
    undefined = sorted(compared.undefined - decided.keys())
    if undefined:
        return f"the float model's output {undefined[0]!r} is NaN on every sample"
    return "" if found else "the model has no output of floats"
