"""`verify`: measure a model anew, under the conditions of its run: is it what the run said?."""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdqtune.config import VerifyConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import recorded_engine
from qdqtune.engines._reopened_comparison import FEWEST_OPENINGS, combine
from qdqtune.graph._parsing import parse_model
from qdqtune.options import configured
from qdqtune.records._claim import Claim
from qdqtune.records._errors import EngineError, QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import BenchRecord
from qdqtune.records._verification import Check, Outcome, VerifyReport
from qdqtune.workflows._arguments import AnyModel, as_file, name_of
from qdqtune.workflows._bench import bench
from qdqtune.workflows._claims import (
    OTHER_DB,
    are_small,
    check_baseline,
    check_error,
    check_file,
    check_placement,
    claim_about,
    lies_in_run,
    measure_error,
    shapes_of_run,
    why_not_its_inputs,
)
from qdqtune.workflows.tuning._folder import BASELINE
from qdqtune.workflows.tuning._run_files import sha256_of_model, sha256_with_weights

_OPTION = "--engine_option"


@dataclass(frozen=True)
class Conditions:
    """The conditions under which models are run to check a claim.

    Attributes:
        engine: The engine that runs them.
        options: Options for opening them.
        inputs: The inputs that they are timed on.
        left_out: Flags with the recorded values that only the user may set.
    """

    engine: str
    options: SessionOptions
    inputs: InputRequest
    left_out: tuple[tuple[str, str], ...] = ()

    def missing_in(self, record: BenchRecord | None) -> list[tuple[str, str]]:
        """Return the omitted conditions that make a difference.

        Args:
            record: What was measured without them; None if nothing could be.
        """
        in_effect = record.engine.options if record is not None else {}
        defaults = {f"{name}={value}" for name, value in in_effect.items()}
        return [
            (flag, value)
            for flag, value in self.left_out
            if not (flag == _OPTION and (value in defaults or value.endswith("=")))
        ]


@dataclass(frozen=True)
class UserConditions:
    """The user's conditions for checking a model; see `qdqtune.workflows._verify.verify`."""

    against: str | None = None
    engine: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    inputs: InputRequest = field(default_factory=InputRequest)
    data: Any = None
    samples: int | None = None

    @property
    def conditions(self) -> Conditions:
        """Return the conditions where nothing is claimed."""
        options = SessionOptions(threads=self.threads, engine_options=dict(self.options))
        return Conditions(self.engine or registry.AUTO, options, self.inputs)

    def conditions_of(self, claim: Claim, folder: Path) -> Conditions:
        """Combine the user's conditions with those of the claim that may be followed.

        Args:
            claim: What was claimed.
            folder: The folder of the run's journal, where old runs recorded the shapes of inputs.
        """
        recorded = recorded_engine(claim.engine)
        engine = self.engine or recorded.name
        conditions = self.conditions
        left_out: list[tuple[str, str]] = []
        inputs = self.inputs
        if not (inputs.shapes or inputs.dims):
            shapes = shapes_of_run(claim, folder)
            if are_small(shapes.values()):
                inputs = replace(inputs, shapes=shapes)
            else:
                left_out += [("--shapes", _shape(name, dims)) for name, dims in shapes.items()]
        if engine is None:
            left_out.append(("--engine", claim.engine.name))
        if engine in (None, claim.engine.name):
            if self.threads is None and claim.engine.threads is not None:
                left_out.append(("--threads", str(claim.engine.threads)))
            left_out += [
                (_OPTION, f"{name}={value}")
                for name, value in sorted(claim.engine.options.items())
                if name not in {**recorded.options, **self.options}
            ]
            followed = {**recorded.options, **self.options}
            options = replace(conditions.options, engine_options=followed)
            conditions = replace(conditions, options=options)
        return replace(conditions, engine=engine or "", inputs=inputs, left_out=tuple(left_out))

    def is_to_blame(self, error: QdqtuneError) -> bool:
        """Whether an error is about the user's conditions instead of the recorded ones."""
        if isinstance(error, EngineError):
            return self.engine is not None
        inputs = self.inputs
        about_inputs = inputs.shapes or inputs.dims or inputs.ranges or self.data is not None
        return bool(self.options or self.threads is not None or about_inputs)

    def words(self) -> Iterator[str]:
        """Return the flags for the conditions."""
        if self.against is not None:
            yield from ("--against", self.against)
        if self.engine is not None:
            yield from ("--engine", self.engine)
        for name, value in self.options.items():
            yield from (_OPTION, f"{name}={value}")
        if self.threads is not None:
            yield from ("--threads", str(self.threads))
        for name, shape in self.inputs.shapes.items():
            yield from ("--shapes", _shape(name, shape))
        for symbol, size in self.inputs.dims.items():
            yield from ("--dim", f"{symbol}={size}")
        for name, (low, high) in self.inputs.ranges.items():
            yield from (
                "--input_range",
                f"{name}:{low:g}:{high:g}" if name else f"{low:g}:{high:g}",
            )
        if isinstance(self.data, str):
            yield from ("--calibration_data", self.data)
        if self.samples is not None:
            yield from ("--calibration_samples", str(self.samples))


def command_of(model: str, said: UserConditions, missing: list[tuple[str, str]]) -> str:
    """Return the command with all missing flags; empty if nothing is missing."""
    if not missing:
        return ""
    flags = [word for pair in missing for word in pair]
    return shlex.join(["qdqtune", "verify", model, *said.words(), *flags])


def _shape(name: str, shape: tuple[int | None, ...]) -> str:
    sizes = "x".join("?" if size is None else str(size) for size in shape)
    return f"{name}:{sizes}" if name else sizes


_logger = logging.getLogger(__name__)

_Measure = Callable[[Conditions, int], BenchRecord]


@configured(VerifyConfig)
def verify(model: AnyModel, config: VerifyConfig) -> VerifyReport:
    """Check a model against what the run beside it claims: file, placement, error and speed.

    A run's folder may come from a stranger. Of what it records, only the names of qdqtune's own
    engines, their plain options, and shapes, ranges and the seed of inputs are used. Whatever is
    run, loaded, opened or takes threads has to be said here; the report tells what was left out.

    Args:
        model: The model in question: a path, or a proto or an `onnx_ir.Model`, which no run
            claims anything about.
        config: The settings; any of its fields can be given as a keyword instead. If no sizes of
            inputs are given, those of the run are used.

    Raises:
        QdqtuneError: For any error that the user can act on. A model that does not
            match its claim is not an error but a report.
    """
    against = config.against
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(as_file(model))
        baseline = file.with_name(BASELINE)
        if against is not None:
            baseline = stack.enter_context(as_file(against, "against"))
        elif not baseline.is_file():
            raise UsageError(
                f"There is nothing to compare {file} with: no {BASELINE} lies beside it.",
                "Name the float model: --against FLOAT.",
            )
        said = UserConditions(
            None if against is None else name_of(against, "against"), config.engine,
            config.engine_options or {}, config.threads, config.input_request,
            config.calibration_data, config.calibration_samples,
        )  # fmt: skip

        def measure(conditions: Conditions, opening: int) -> BenchRecord:
            record = bench(
                [baseline, file],
                engine=conditions.engine,
                engine_options=conditions.options.engine_options,
                threads=conditions.options.threads,
                runs=config.runs,
                inputs=conditions.inputs,
                progress=config.progress,
                opening=opening,
            )
            shown = (name_of(against or baseline, "against"), name_of(model))
            named = zip(record.entries, shown, strict=True)
            return replace(record, entries=tuple(replace(one, path=path) for one, path in named))

        return _verified(file, baseline, said, measure)


def _verified(file: Path, baseline: Path, said: UserConditions, measure: _Measure) -> VerifyReport:
    if said.against is not None and not lies_in_run(file):
        return VerifyReport(measure(said.conditions, 0))
    parse_model(file)  # what is no model is told before it is hashed
    sha256 = sha256_of_model(file)
    claim = claim_about(file, sha256)
    if not isinstance(claim, str) and not (said.inputs.shapes or said.inputs.dims):
        claim = why_not_its_inputs(claim, file.parent, baseline) or claim
    if isinstance(claim, str):
        unclaimed = Check("claim", Outcome.UNVERIFIED, claim)
        placed, edges = check_placement(file, None)
        return VerifyReport(None, edges=edges, checks=(unclaimed, placed))
    placed, edges = check_placement(file, claim)
    checks = (check_file(claim, file, sha256), check_baseline(claim, baseline), placed)
    is_as_given = None
    if claim.kept_float:
        is_as_given = sha256_with_weights(file) == sha256_with_weights(baseline)
    report = VerifyReport(None, claim, edges, is_as_given, checks)
    return _measured(report, claim, file, baseline, said, measure)


def _measured(
    report: VerifyReport,
    claim: Claim,
    file: Path,
    baseline: Path,
    said: UserConditions,
    measure: _Measure,
) -> VerifyReport:
    """The report with speed and error, measured under the claim's conditions if possible."""
    conditions = said.conditions_of(claim, file.parent)
    try:
        if not conditions.engine:
            name = claim.engine.name
            raise EngineError(f"The engine {name} is none of qdqtune's own.", "Name it: --engine.")
        report = replace(report, bench=measure(conditions, 0))
    except QdqtuneError as error:
        if said.is_to_blame(error):
            raise
        report = replace(report, not_timed=error.what.rstrip("."))
    ignored = conditions.missing_in(report.bench)
    report = replace(report, ignored=tuple(" ".join(pair) for pair in ignored))
    checked, sqnr_db = _error(report, claim, file, baseline, said, conditions)
    report = replace(report, checks=(*report.checks, checked), sqnr_db=sqnr_db)
    if report.bench is not None and report.differs_in_speed_only:
        _logger.info("the speedup differs from the claim: it is measured in more processes")
        again = [measure(conditions, opening) for opening in range(1, FEWEST_OPENINGS)]
        report = replace(report, bench=_together([report.bench, *again]))
    if claim.on_data and said.data is None and not claim.kept_float:
        ignored.append(("--calibration_data", "SOURCE"))
    if report.is_as_given:
        return report
    return replace(report, repeat_with=command_of(str(file), said, ignored))


def _error(
    report: VerifyReport,
    claim: Claim,
    file: Path,
    baseline: Path,
    said: UserConditions,
    conditions: Conditions,
) -> tuple[Check, float | None]:
    """The error beside the one that was claimed, and the error itself, if it was measured."""
    if claim.kept_float:
        if report.is_as_given:
            text = "the run kept its baseline, and this is it, byte for byte"
            return Check("error", Outcome.CONFIRMED, text), None
        return Check(
            "error", Outcome.DIFFERS, "the run kept its baseline, and this is not it"
        ), None
    if claim.on_data and said.data is None:
        text = "the run measured it on data, which you have to give: --calibration_data SOURCE"
        return Check("error", Outcome.UNVERIFIED, text), None
    engine = report.bench.engine.name if report.bench is not None else None
    inputs = replace(conditions.inputs, seed=claim.seed)
    try:
        found = measure_error(
            file, baseline,
            engine=engine,
            options=conditions.options,
            inputs=inputs if inputs.ranges else replace(inputs, ranges=claim.ranges),
            data=said.data,
            samples=said.samples,
            in_float32=claim.tuned_in_float32,
            enough_db=(claim.sqnr_db or 0.0) - OTHER_DB,
        )  # fmt: skip
    except QdqtuneError as error:
        if said.is_to_blame(error):
            raise
        return Check("error", Outcome.UNVERIFIED, error.what.rstrip(".")), None
    is_quantized = report.edges is None or bool(report.edges.expected)
    is_same = engine is not None and not (report.other_conditions or report.ignored)
    checked = check_error(claim, found, is_quantized=is_quantized, is_same=is_same)
    return checked, found.sqnr_db


def _together(records: Sequence[BenchRecord]) -> BenchRecord:
    """The first record, with what all of them say of the speedup, each in its own process."""
    found = [record.entries[1].against_first for record in records]
    known = [each for each in found if each is not None]
    if len(known) < len(records):
        return records[found.index(None)]
    baseline, model = records[0].entries
    return replace(records[0], entries=(baseline, replace(model, against_first=combine(known))))
