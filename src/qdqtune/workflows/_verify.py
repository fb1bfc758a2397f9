"""`verify`: measure a model again under the conditions of its run, and check the run's claims."""

from __future__ import annotations

import contextlib
import logging
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune._command_configs import VerifyConfig
from qdqtune.config import BenchConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import FEWEST_OPENINGS, combine
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import recorded_engine
from qdqtune.graph._files import load_model, parse_model
from qdqtune.graph._input_shapes import bind_dims, input_dims, input_named
from qdqtune.options import configured, shared
from qdqtune.records._errors import EngineError, QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import BenchRecord
from qdqtune.records._tuning import DATA_FLAG
from qdqtune.records._untrusted_files import parse_json
from qdqtune.records._verification import Check, Claim, Outcome, VerifyReport
from qdqtune.workflows._arguments import AnyModel, as_file, name_of
from qdqtune.workflows._bench import bench
from qdqtune.workflows._claims import (
    OTHER_DB,
    FloatModel,
    check_baseline,
    check_file,
    check_placement,
    compare_error,
    measure_error,
    read_beside,
    shapes_of_run,
)
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._sample_provider import data_flags
from qdqtune.workflows.tuning._folder import BASELINE, JOURNAL
from qdqtune.workflows.tuning._run_files import (
    FINAL,
    PLACEMENT,
    SUMMARY,
    sha256_of_model,
    sha256_with_weights,
)

_logger = logging.getLogger(__name__)

_OPTION = "--engine_option"
_Flag = tuple[str, str]

# Larger inputs (in elements) are generated only if the user requests them.
_MOST_ELEMENTS = 1 << 28


@configured(VerifyConfig)
def verify(model: AnyModel, config: VerifyConfig) -> VerifyReport:
    """Check a model against the claims of the run next to it: file, placement, error and speed.

    A run's folder may be untrusted. Of its records, only the names of qdqtune's own engines, their
    plain options, and shapes, ranges and the seed of inputs are used. Anything that is run, loaded
    or opened, or that takes threads, must be passed explicitly; the report lists what was ignored.

    Args:
        model: The model to check: a path, or a proto or an `onnx_ir.Model`, about which no run
            makes claims.
        config: The settings; any of its fields can be given as a keyword instead. If no sizes of
            inputs are given, those of the run are used.

    Raises:
        QdqtuneError: For any error that the user can act on. A model that does not match its claim
            is not an error but a report.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(as_file(model))
        baseline = file.with_name(BASELINE)
        if config.against is not None:
            baseline = stack.enter_context(as_file(config.against, "against"))
        elif not baseline.is_file():
            raise UsageError(
                f"There is nothing to compare {file} with: no {BASELINE} lies beside it.",
                "Name the float model: --against FLOAT.",
            )
        shown = (name_of(config.against or baseline, "against"), name_of(model))
        return _Verification(config, file, baseline, shown).run()


@dataclass(frozen=True)
class _Verification:
    """A model, its float model, and the user's conditions.

    Attributes:
        config: The conditions.
        file: The model.
        baseline: The float model.
        shown: The names of the float model and the model in records.
    """

    config: VerifyConfig
    file: Path
    baseline: Path
    shown: tuple[str, str]

    def run(self) -> VerifyReport:
        """Check everything that can be checked without running a model, then measure."""
        file, baseline = self.file, self.baseline
        run_files = (file.with_name(name) for name in (SUMMARY, PLACEMENT, JOURNAL))
        if self.config.against is not None and not any(each.exists() for each in run_files):
            return VerifyReport(self._measure(self._asked))
        self._tell("files", f"checking {file.name} against what its run recorded")
        parse_model(file)  # report an invalid model before hashing it
        sha256 = sha256_of_model(file)
        claim = self._claim(sha256)
        if isinstance(claim, str):
            unclaimed = Check("claim", Outcome.UNVERIFIED, claim)
            placed, edges = check_placement(file, None)
            return VerifyReport(None, edges=edges, checks=(unclaimed, placed))
        placed, edges = check_placement(file, claim)
        checks = (check_file(claim, file, sha256), check_baseline(claim, baseline), placed)
        is_as_given = None
        if claim.kept_float:
            is_as_given = sha256_with_weights(file) == sha256_with_weights(baseline)
        return self._measured(VerifyReport(None, claim, edges, is_as_given, checks), claim)

    def _claim(self, sha256: str) -> Claim | str:
        """Return the claim in the summary next to the file, or why it can't be used."""
        file = self.file
        claim = read_beside(
            file, SUMMARY, lambda text: Claim.from_summary(parse_json(text, SUMMARY))
        )
        if isinstance(claim, str):
            return claim
        if file.name != FINAL and sha256 != claim.final_sha256:
            return f"{SUMMARY} is about {FINAL}, and this is another file"
        if not self._gives_sizes:
            inputs = input_dims(load_model(self.baseline))
            try:
                bind_dims(inputs, InputRequest(shapes=shapes_of_run(claim, file.parent)))
                for name in claim.ranges:
                    input_named(inputs, name)
            except UsageError as error:
                return f"{SUMMARY} is about other inputs: {error.what.rstrip('.')}"
        return claim

    def _measured(self, report: VerifyReport, claim: Claim) -> VerifyReport:
        """Add speed and error to the report, measured under the claim's conditions if possible."""
        conditions, left_out = self._conditions_of(claim)
        original = self._float_model(claim, conditions)  # first: a mistake must not cost a timing
        try:
            if not conditions.engine:
                what = f"The engine {claim.engine.name} is none of qdqtune's own."
                raise EngineError(what, "Name it: --engine.")
            report = replace(report, bench=self._measure(conditions))
        except QdqtuneError as error:
            if self._is_to_blame(error):
                raise
            report = replace(report, not_timed=error.what.rstrip("."))
        in_effect = report.bench.engine.options if report.bench is not None else {}
        without_effect = {f"{name}={value}" for name, value in in_effect.items()}
        ignored = [
            (flag, value)
            for flag, value in left_out
            if flag != _OPTION or not (value in without_effect or value.endswith("="))
        ]
        report = replace(report, ignored=tuple(" ".join(pair) for pair in ignored))
        checked, sqnr_db = self._error(report, claim, conditions, original)
        report = replace(report, checks=(*report.checks, checked), sqnr_db=sqnr_db)
        if report.bench is not None and report.differs_in_speed_only:
            self._tell("timing", "the speedup differs from the claim: measuring in more processes")
            again = [self._measure(conditions, each) for each in range(1, FEWEST_OPENINGS)]
            report = replace(report, bench=_together([report.bench, *again]))
        given = list(self._flags())
        if self._lacks_data(claim):
            known = {flag for flag, _ in given}
            ignored += [pair for pair in claim.data_flags.items() if pair[0] not in known]
        if report.is_as_given or not ignored:
            return report
        flags = [word for pair in (*given, *ignored) for word in pair]
        command = shlex.join(["qdqtune", "verify", str(self.file), *flags])
        return replace(report, repeat_with=command)

    def _tell(self, stage: str, message: str) -> None:
        ProgressReporter(self.config.callbacks).tell(stage, message)

    def _measure(self, config: BenchConfig, opening: int = 0) -> BenchRecord:
        record = bench([self.baseline, self.file], config, opening=opening)
        named = zip(record.entries, self.shown, strict=True)
        return replace(record, entries=tuple(replace(one, path=path) for one, path in named))

    def _lacks_data(self, claim: Claim) -> bool:
        """Whether an error was claimed on data that the user has not given."""
        is_given = self.config.calibration_data is not None
        return claim.on_data and not is_given and not claim.kept_float

    def _float_model(self, claim: Claim, conditions: BenchConfig) -> FloatModel | Check:
        """Return the float model with the inputs for the error, or why there are none."""
        if self._lacks_data(claim):
            flag = " ".join((DATA_FLAG, claim.data_flags[DATA_FLAG]))
            text = f"the run measured it on data, which you have to give: {flag}"
            return Check("error", Outcome.UNVERIFIED, text)
        inputs, config = replace(conditions.input_request, seed=claim.seed), self.config
        try:
            return FloatModel.open(
                self.baseline,
                inputs if inputs.ranges else replace(inputs, ranges=claim.ranges),
                config.calibration_data,
                config.calibration_samples,
                config,
                in_float32=claim.tuned_in_float32,
            )
        except QdqtuneError as error:
            if self._is_to_blame(error):
                raise
            return Check("error", Outcome.UNVERIFIED, error.what.rstrip("."))

    def _error(
        self,
        report: VerifyReport,
        claim: Claim,
        conditions: BenchConfig,
        original: FloatModel | Check,
    ) -> tuple[Check, float | None]:
        """Compare the error with the claimed one; returns the check, and the error if measured."""
        if claim.kept_float and report.is_as_given:
            text = "the run kept its baseline, and this is it, byte for byte"
            return Check("error", Outcome.CONFIRMED, text), None
        if claim.kept_float:
            text = "the run kept its baseline, and this is not it"
            return Check("error", Outcome.DIFFERS, text), None
        if isinstance(original, Check):
            return original, None
        engine = report.bench.engine.name if report.bench is not None else None
        self._tell("error", "comparing outputs with the float model")
        try:
            found = measure_error(
                self.file,
                original,
                engine=engine,
                options=SessionOptions(conditions.threads, dict(conditions.engine_options or {})),
                enough_db=(claim.sqnr_db or 0.0) - OTHER_DB,
            )
        except QdqtuneError as error:
            if self._is_to_blame(error):
                raise
            return Check("error", Outcome.UNVERIFIED, error.what.rstrip(".")), None
        is_quantized = report.edges is None or bool(report.edges.expected)
        is_same = engine is not None and not (report.other_conditions or report.ignored)
        outcome, text = compare_error(claim, found, is_quantized=is_quantized, is_same=is_same)
        return Check("error", outcome, text), found.sqnr_db

    @property
    def _asked(self) -> BenchConfig:
        """The conditions if there is no claim."""
        engine = self.config.engine or registry.AUTO
        return shared(BenchConfig, self.config, engine=engine, inputs=self.config.input_request)

    @property
    def _gives_sizes(self) -> bool:
        return bool(self.config.input_request.shapes or self.config.input_request.dims)

    def _conditions_of(self, claim: Claim) -> tuple[BenchConfig, list[_Flag]]:
        """Combine the user's conditions with those of the claim that may be followed.

        Returns:
            The conditions, and flags with the recorded values that only the user may set.
        """
        config, inputs = self.config, self.config.input_request
        recorded_name, recorded_options = recorded_engine(claim.engine)
        engine = config.engine or recorded_name
        options = dict(config.engine_options or {})
        left_out: list[_Flag] = []
        if not self._gives_sizes:  # old runs recorded them in their journal
            shapes = shapes_of_run(claim, self.file.parent)
            if sum(map(math.prod, shapes.values())) <= _MOST_ELEMENTS:
                inputs = replace(inputs, shapes=shapes)
            else:
                left_out += [("--shapes", _shape(name, dims)) for name, dims in shapes.items()]
        if engine is None:
            left_out.append(("--engine", claim.engine.name))
        if engine in (None, claim.engine.name):
            options = {**recorded_options, **options}
            if config.threads is None and claim.engine.threads is not None:
                left_out.append(("--threads", str(claim.engine.threads)))
            left_out += [
                (_OPTION, f"{name}={value}")
                for name, value in sorted(claim.engine.options.items())
                if name not in options
            ]
        followed = replace(self._asked, engine=engine or "", engine_options=options, inputs=inputs)
        return followed, left_out

    def _is_to_blame(self, error: QdqtuneError) -> bool:
        """Whether an error is about the user's conditions instead of the recorded ones."""
        config = self.config
        if isinstance(error, EngineError):
            return config.engine is not None
        about_inputs = self._gives_sizes or config.input_request.ranges
        about_data = (config.calibration_data, config.calibration_samples) != (None, None)
        return bool(config.engine_options or config.threads or about_inputs or about_data)

    def _flags(self) -> Iterator[_Flag]:
        """Yield the flags for the user's conditions."""
        config, inputs = self.config, self.config.input_request
        ranges = ((name, f"{low:g}:{high:g}") for name, (low, high) in inputs.ranges.items())
        for flag, values in (
            ("--against", [self.shown[0] if config.against is not None else None]),
            ("--engine", [config.engine]),
            (_OPTION, [f"{name}={value}" for name, value in (config.engine_options or {}).items()]),
            ("--threads", [config.threads]),
            ("--shapes", [_shape(name, shape) for name, shape in inputs.shapes.items()]),
            ("--dim", [f"{symbol}={size}" for symbol, size in inputs.dims.items()]),
            ("--input_range", [f"{name}:{ends}" if name else ends for name, ends in ranges]),
        ):
            yield from ((flag, str(value)) for value in values if value is not None)
        yield from data_flags(config)


def _shape(name: str, shape: tuple[int | None, ...]) -> str:
    sizes = "x".join("?" if size is None else str(size) for size in shape)
    return f"{name}:{sizes}" if name else sizes


def _together(records: Sequence[BenchRecord]) -> BenchRecord:
    """Return the first record, with the speedup combined from all, each from its own process."""
    found = [record.entries[1].against_first for record in records]
    known = [each for each in found if each is not None]
    if len(known) < len(records):
        return records[found.index(None)]
    baseline, model = records[0].entries
    return replace(records[0], entries=(baseline, replace(model, against_first=combine(known))))
