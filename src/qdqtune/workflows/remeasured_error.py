"""The error of a tuned model, measured anew as its run had measured it, and beside its claim."""

from __future__ import annotations

import contextlib
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.reference_engine import reference_worker
from qdqtune.graph.files import load_model, save_model
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.records.accuracy import DEFAULT_MIN_SQNR_DB, allowed_sqnr_db
from qdqtune.records.claim import Claim
from qdqtune.records.inputs import InputRequest
from qdqtune.records.verification import Check, Outcome
from qdqtune.workflows.accuracy_evaluator import AccuracyEvaluator, has_own_kernels, open_kernels
from qdqtune.workflows.sample_provider import sample_provider
from qdqtune.workflows.source_model import open_source

SAME_DB = 1.0
"""How far below its claim an error may be where the claim was made: a quarter more noise.

Only the order of sums can differ there, with what it does to values halfway between two integers.
Seen on zoo models with one thread and two: less than 0.01 dB.
"""
OTHER_DB = 3.0
"""The same elsewhere: twice the noise.

Kernels of other engines, versions and CPUs round at other places. Seen: up to 1.7 dB between two
engines for CPUs, in float32 or bfloat16, and every op run as it is written. CPUs that sum uint8
times int8 with saturation cost a MobileNetV2 8 dB; that is the CPU's doing, not the file's, and is
told apart by running every op as it is written.
"""
_MOST_DB = 1000.0
EXACT_DB = 80.0
"""What is nearer than this to float is as near as float32 is to itself, summed otherwise."""


@dataclass(frozen=True)
class MeasuredError:
    """The distance of a model from its float model.

    Attributes:
        sqnr_db: Of the worst output; None if no output could be compared.
        as_written_db: The same with every op run as it is written, without the engine's kernels, if
            those fell short.
        float_sqnr_db: Of the float model itself, as the engine computes it; None if in float32.
        digest: Of the inputs.
        missing: Outputs of the float model that the model lacks.
    """

    sqnr_db: float | None
    as_written_db: float | None
    float_sqnr_db: float | None
    digest: str
    missing: tuple[str, ...] = ()


def measure_error(
    model: Path,
    baseline: Path,
    *,
    engine: str | None,
    options: SessionOptions,
    inputs: InputRequest,
    data: Any = None,
    samples: int | None = None,
    in_float32: bool = False,
    enough_db: float = math.inf,
) -> MeasuredError:
    """Compare a model's outputs with those of its float model, as a tuning run does.

    Args:
        model: The model in question.
        baseline: What it was made from: float, or with Q/DQ, which is taken out.
        engine: Whose kernels count; None runs every op as it is written.
        options: How it opens models.
        inputs: Shapes; ranges and seed of random inputs, as the run had them.
        data: The user's data; None is random.
        samples: Use at most this many samples of it.
        in_float32: Whether half floats of the baseline are computed in float32.
        enough_db: What is as near to float is not measured a second time, as it is written.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    source = open_source(baseline, float_types=() if in_float32 else None)
    candidate = load_model(model)
    provider = sample_provider(source, inputs, data, samples)
    own = engine if engine and has_own_kernels(engine, options.engine_options) else None
    outputs = {value.name for value in candidate.graph.outputs}
    missing = tuple(
        value.name or "" for value in source.model.graph.outputs if value.name not in outputs
    )
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(reference_worker())
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=runner.scratch)))
        base = PreparedModel(source.model, room)
        file = save_model(candidate, room / "candidate.onnx")

        def errors_with(kernels_of: str | None) -> tuple[float | None, float | None]:
            with open_kernels(kernels_of, runner, options) as kernels:
                accuracy = AccuracyEvaluator(
                    source, base, runner, provider.evaluation_samples, kernels=kernels
                )
                with contextlib.closing(accuracy):
                    quality = accuracy.quality(file)
            of_float = quality.of_float.worst_db if quality.of_float is not None else None
            return min(quality.against_float.values(), default=None), of_float

        found, of_float = errors_with(own)
        is_enough = found is None or found >= enough_db
        as_written = found if own is None or is_enough else errors_with(None)[0]
    return MeasuredError(found, as_written, of_float, provider.evaluation_digest(), missing)


def check_error(claim: Claim, found: MeasuredError, *, is_quantized: bool, is_same: bool) -> Check:
    """Put an error beside the one that was claimed.

    Args:
        claim: What was claimed.
        found: What was measured.
        is_quantized: Whether the model has Q/DQ; one without is as near to float as float is.
        is_same: Whether engine, version, device and options are those of the claim.
    """
    claimed = claim.sqnr_db
    if claimed is None and not is_quantized:
        claimed = EXACT_DB
    if found.missing:
        return Check("error", Outcome.DIFFERS, f"it lacks the output {found.missing[0]!r}")
    if found.sqnr_db is None:
        return Check("error", Outcome.UNVERIFIED, "it has no float output that could be compared")
    measured = _with_conversion(found.sqnr_db, claim.conversion_db)
    said = f"{_decibels(measured)} against float"
    if claimed is None:
        is_exact = measured == math.inf
        outcome = Outcome.CONFIRMED if is_exact else Outcome.UNVERIFIED
        return Check("error", outcome, f"{said}; none was claimed")
    said += f", claimed {_decibels(claimed)}"
    if measured < DEFAULT_MIN_SQNR_DB:
        said += f" (tune rejects less than {DEFAULT_MIN_SQNR_DB:g} dB unless told otherwise)"
    if claim.samples_digest and claim.samples_digest != found.digest:
        return Check("error", Outcome.UNVERIFIED, f"{said}, but on other samples")
    wanted = min(claimed, EXACT_DB)
    tolerance = SAME_DB if is_same else OTHER_DB
    if measured >= allowed_sqnr_db(wanted - tolerance, None if is_same else found.float_sqnr_db):
        return Check("error", Outcome.CONFIRMED, f"{said}; {tolerance:g} dB less would be accepted")
    as_written = found.as_written_db
    if not is_same and as_written is not None and as_written >= wanted - OTHER_DB:
        text = (
            f"{said}; run as it is written, {_decibels(as_written)}: the kernels of this machine "
            "compute it less exactly than those of the claim"
        )
        return Check("error", Outcome.UNVERIFIED, text)
    if not claim.samples_digest:
        text = f"{said}, but the summary does not tell on which inputs"
        return Check("error", Outcome.UNVERIFIED, text)
    return Check("error", Outcome.DIFFERS, f"{said}; at most {tolerance:g} dB less is accepted")


def _with_conversion(sqnr_db: float, conversion_db: float | None) -> float:
    """The distance from the model as given, if that from its conversion is known."""
    if conversion_db is None or not math.isfinite(sqnr_db):
        return sqnr_db
    powers = (-max(-_MOST_DB, min(each, _MOST_DB)) / 10.0 for each in (sqnr_db, conversion_db))
    return -10.0 * math.log10(sum(10.0**power for power in powers))


def _decibels(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.1f} dB"
    return "no error" if value > 0 else "no number"
