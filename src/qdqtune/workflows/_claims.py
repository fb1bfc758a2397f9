"""The claims of a run about its model, read from the files next to it, and its error remeasured."""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qdqtune._image_config import ImageConfig
from qdqtune.config import DEFAULT_MIN_SQNR_DB
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.graph._atomic_files import sha256_of
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._read_back import strip
from qdqtune.records._accuracy import allowed_sqnr_db
from qdqtune.records._errors import QdqtuneError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._placement import Placement
from qdqtune.records._printable import listed
from qdqtune.records._untrusted_files import read_text
from qdqtune.records._verification import Check, Claim, Edges, Outcome
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator, has_own_kernels, open_kernels
from qdqtune.workflows._sample_provider import SampleProvider, sample_provider
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows.tuning._folder import JOURNAL
from qdqtune.workflows.tuning._journal_format import whole_lines
from qdqtune.workflows.tuning._run_files import PLACEMENT, SUMMARY, sha256_with_weights

_logger = logging.getLogger(__name__)

_Read = TypeVar("_Read")


SAME_DB = 1.0
"""How far an error may be below its claim under the claim's conditions: a quarter more noise.

Only the order of sums can differ there, which affects values halfway between two integers. Measured
on zoo models with one thread and two: less than 0.01 dB.
"""

OTHER_DB = 3.0
"""The same under other conditions: twice the noise.

Kernels of other engines, versions and CPUs round at other points. Measured: up to 1.7 dB between
two engines for CPUs, in float32 or bfloat16, and every op run as written. CPUs that sum uint8 times
int8 with saturation cost a MobileNetV2 8 dB; that is caused by the CPU, not the file, and is
detected by running every op as written.
"""
_MOST_DB = 1000.0

EXACT_DB = 80.0
"""An SQNR above this is as good as that of float32 against itself with another order of sums."""


def read_beside(file: Path, name: str, read: Callable[[str], _Read]) -> _Read | str:
    """Read a file of a run next to its model, or return why it can't be used."""
    try:
        return read(read_text(file.with_name(name)))
    except FileNotFoundError:
        return f"there is no {name} beside it"
    except QdqtuneError as error:
        return error.what.rstrip(".")
    except OSError as error:
        return f"{name} can't be read: {error.strerror}"
    except ValueError as error:
        return f"{name} can't be used: {error}"


def check_file(claim: Claim, file: Path, sha256: str) -> Check:
    """Check that a model is the file that a run wrote, with all its weights."""
    expected = claim.final_sha256
    if expected == sha256 and claim.kept_float and claim.baseline_sha256:
        # A copy's weights can be in files of any name; all others have one weight file of their
        # own.
        expected, sha256 = claim.baseline_sha256, sha256_with_weights(file)
    return _same_hash("file", expected, sha256, Outcome.DIFFERS)


def check_baseline(claim: Claim, baseline: Path) -> Check:
    """Check that the float model is the run's; otherwise the claim is about another one."""
    expected, found = claim.baseline_sha256, ""
    if expected:
        found = sha256_with_weights(baseline)
    elif claim.given_sha256:
        expected, found = claim.given_sha256, sha256_of(baseline)
    return _same_hash("baseline", expected, found, Outcome.UNVERIFIED)


def _same_hash(name: str, expected: str, found: str, otherwise: Outcome) -> Check:
    if not expected:
        return Check(name, Outcome.UNVERIFIED, f"{SUMMARY} does not record its SHA-256")
    if expected == found:
        return Check(name, Outcome.CONFIRMED, f"its SHA-256 is the one in {SUMMARY}, {found[:12]}")
    text = f"its SHA-256 is {found[:12]}, and the one in {SUMMARY} {expected[:12]}"
    return Check(name, otherwise, text)


def check_placement(file: Path, claim: Claim | None) -> tuple[Check, Edges | None]:
    """Check that a model has the Q/DQ edges and other ops of the placement next to it.

    Raises:
        ModelError: If it can't be read.
    """
    placement = read_beside(file, PLACEMENT, lambda text: Placement.from_json(text, PLACEMENT))
    if isinstance(placement, str):
        return Check("placement", Outcome.UNVERIFIED, placement), None
    if claim is None or not claim.kept_float:
        edges = _compare_edges(file, placement)
        return _edges_check(edges), edges
    if not placement:
        text = "empty, as the run kept its baseline"
        return Check("placement", Outcome.CONFIRMED, text), None
    ops = len(placement.dynamic | placement.unfused)
    also = f" and {ops} dynamic or unfused ops" if ops else ""
    text = f"the run kept its baseline, but {PLACEMENT} has {len(placement.edges)} edges{also}"
    return Check("placement", Outcome.DIFFERS, text), None


def _compare_edges(file: Path, placement: Placement) -> Edges:
    model = load_model(file)
    found = strip(model).placement
    index = GraphIndex(model)
    unknown = sorted(tensor for tensor in placement.tensors if tensor not in index.value)
    known = Placement(
        frozenset(edge for edge in placement.edges if edge.tensor in index.value),
        placement.outputs.difference(unknown),
        placement.dynamic,
        placement.unfused,
    )
    expected = canonical(index, known)
    return Edges(
        expected=len(expected.edges) + len(unknown),
        missing=(*unknown, *_only_in(expected, found)),
        surplus=_only_in(found, expected),
        dynamic=len(expected.dynamic),
        unfused=len(expected.unfused),
    )


def _only_in(placement: Placement, other: Placement) -> tuple[str, ...]:
    """Return what only the first of two placements has, as text."""
    return (
        *(
            f"{edge.tensor} into {edge.node or 'the output'}:{edge.position}"
            for edge in sorted(placement.edges - other.edges)
        ),
        *(f"the dynamic op {name}" for name in sorted(placement.dynamic - other.dynamic)),
        *(f"the unfused op {name}" for name in sorted(placement.unfused - other.unfused)),
    )


def _edges_check(edges: Edges) -> Check:
    counts = {"Q/DQ edge": edges.expected, "dynamic op": edges.dynamic, "unfused op": edges.unfused}
    kinds = [f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items() if count]
    if edges.ok:
        *most, last = kinds or ["0 Q/DQ edges"]
        text = f"its {', '.join(most)}{' and ' * bool(most)}{last} "
        text += f"{'is' if last.startswith('1 ') and not most else 'are'} exactly as in {PLACEMENT}"
        return Check("placement", Outcome.CONFIRMED, text)
    what = "edges and ops" if edges.dynamic or edges.unfused else "Q/DQ edges"
    text = "; ".join(
        f"{len(names)} {what} {where} {PLACEMENT}: {listed(names)}"
        for names, where in ((edges.missing, "are only in"), (edges.surplus, "are not in"))
        if names
    )
    return Check("placement", Outcome.DIFFERS, text)


def shapes_of_run(claim: Claim, folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the input shapes of a run's models; empty if unknown."""
    if claim.shapes:
        return dict(claim.shapes)
    journal = folder / JOURNAL
    try:
        lines = whole_lines(journal) if journal.is_file() else ()
        headers = [line["header"] for line in lines if line["kind"] == "run"]
    except (OSError, QdqtuneError) as error:
        _logger.warning("%s is not read: %s", journal, error)
        return {}
    found = headers[0].get("shapes") if headers else None
    if not isinstance(found, dict):
        return {}
    return {
        name: tuple(shape)
        for name, shape in found.items()
        if isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
    }


@dataclass(frozen=True)
class MeasuredError:
    """The error of a model against its float model.

    Attributes:
        sqnr_db: SQNR of the worst output; None if no output could be compared.
        as_written_db: The same with every op run as written, without the engine's kernels; it
            equals `sqnr_db` unless that fell short.
        float_sqnr_db: SQNR of the float model itself, as the engine computes it; None if in
            float32.
        digest: Digest of the inputs.
        missing: Outputs of the float model that the model lacks.
    """

    sqnr_db: float | None
    as_written_db: float | None
    float_sqnr_db: float | None
    digest: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class FloatModel:
    """The model that another one was made from, and the inputs that both are compared on.

    Attributes:
        source: The model, without Q/DQ.
        provider: The inputs.
    """

    source: Source
    provider: SampleProvider

    @classmethod
    def open(
        cls,
        baseline: Path,
        inputs: InputRequest,
        data: Any = None,
        samples: int | None = None,
        images: ImageConfig | None = None,
        *,
        in_float32: bool = False,
    ) -> FloatModel:
        """Read the model, and check whether the data fits it.

        Args:
            baseline: The model: float, or with Q/DQ, which is removed.
            inputs: Shapes; ranges and seed of random inputs, as in the run.
            data: The user's data; None for random inputs.
            samples: Maximum number of samples from it.
            images: How images in it are prepared.
            in_float32: Whether half-precision floats of the baseline are computed in float32.

        Raises:
            QdqtuneError: For any error that the user can act on.
        """
        source = open_source(baseline, float_types=() if in_float32 else None)
        return cls(source, sample_provider(source, inputs, data, samples, images))


def measure_error(
    model: Path,
    original: FloatModel,
    *,
    engine: str | None,
    options: SessionOptions,
    enough_db: float = math.inf,
) -> MeasuredError:
    """Compare a model's outputs with those of its float model, as a tuning run does.

    Args:
        model: The model to check.
        original: The model it was made from, and the inputs.
        engine: The engine whose kernels count; None runs every op as written.
        options: Its options for opening models.
        enough_db: An SQNR from which on there is no second measurement with every op as written.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    source, provider = original.source, original.provider
    candidate = load_model(model)
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


def compare_error(
    claim: Claim, found: MeasuredError, *, is_quantized: bool, is_same: bool
) -> tuple[Outcome, str]:
    """Compare a measured error with the claimed one.

    Args:
        claim: The claim.
        found: The measured error.
        is_quantized: Whether the model has Q/DQ; without any, it should be as exact as float.
        is_same: Whether engine, version, device and options are those of the claim.
    """
    claimed = claim.sqnr_db
    if claimed is None and not is_quantized:
        claimed = EXACT_DB
    if found.missing:
        return Outcome.DIFFERS, f"it lacks the output {found.missing[0]!r}"
    if found.sqnr_db is None:
        return Outcome.UNVERIFIED, "it has no float output that could be compared"
    measured = _with_conversion(found.sqnr_db, claim.conversion_db)
    said = f"{_decibels(measured)} against float"
    if claimed is None:
        is_exact = measured == math.inf
        return Outcome.CONFIRMED if is_exact else Outcome.UNVERIFIED, f"{said}; none was claimed"
    said += f", claimed {_decibels(claimed)}"
    if measured < DEFAULT_MIN_SQNR_DB:
        said += f" (tune rejects less than {DEFAULT_MIN_SQNR_DB:g} dB unless told otherwise)"
    if claim.samples_digest and claim.samples_digest != found.digest:
        return Outcome.UNVERIFIED, f"{said}, but on other samples"
    wanted = min(claimed, EXACT_DB)
    tolerance = SAME_DB if is_same else OTHER_DB
    if measured >= allowed_sqnr_db(wanted - tolerance, None if is_same else found.float_sqnr_db):
        return Outcome.CONFIRMED, f"{said}; {tolerance:g} dB less would be accepted"
    as_written = found.as_written_db
    if not is_same and as_written is not None and as_written >= wanted - OTHER_DB:
        return Outcome.UNVERIFIED, (
            f"{said}; run as it is written, {_decibels(as_written)}: the kernels of this machine "
            "compute it less exactly than those of the claim"
        )
    if not claim.samples_digest:
        return Outcome.UNVERIFIED, f"{said}, but the summary does not record on which inputs"
    return Outcome.DIFFERS, f"{said}; at most {tolerance:g} dB less is accepted"


def _with_conversion(sqnr_db: float, conversion_db: float | None) -> float:
    """Return the SQNR against the original model, if that of its conversion is known."""
    if conversion_db is None or not math.isfinite(sqnr_db):
        return sqnr_db
    powers = (-max(-_MOST_DB, min(each, _MOST_DB)) / 10.0 for each in (sqnr_db, conversion_db))
    return -10.0 * math.log10(sum(10.0**power for power in powers))


def _decibels(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.1f} dB"
    return "no error" if value > 0 else "no number"
