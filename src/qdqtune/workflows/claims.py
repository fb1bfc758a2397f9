"""Read the files beside a model that describe it: a run's summary, placement and journal."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path

from qdqtune.graph.atomic_files import sha256_of
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import bind_dims, input_dims, input_named
from qdqtune.qdq.op_units import canonical
from qdqtune.qdq.read_back import strip
from qdqtune.records.claim import Claim
from qdqtune.records.errors import LimitError, QdqtuneError, UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.placement import Edge, Placement
from qdqtune.records.untrusted_files import parse_json, read_text
from qdqtune.records.verification import Check, Edges, Outcome
from qdqtune.workflows.tuning.folder import JOURNAL
from qdqtune.workflows.tuning.handover import FINAL, PLACEMENT, SUMMARY, sha256_with_weights
from qdqtune.workflows.tuning.journal_format import whole_lines

_logger = logging.getLogger(__name__)

# Larger inputs (in elements) are generated only if the user requests them.
_MOST_ELEMENTS = 1 << 28
# The number of names that a sentence lists; beyond it, it gives only a count.
_SHOWN = 3


def lies_in_run(file: Path) -> bool:
    """Whether files beside a model show that a tuning run wrote it."""
    return any(file.with_name(name).exists() for name in (SUMMARY, PLACEMENT, JOURNAL))


def claim_about(file: Path, sha256: str) -> Claim | str:
    """Return the claim in the summary beside a file, or why there is none.

    Args:
        file: The model.
        sha256: Of the model.
    """
    path = file.with_name(SUMMARY)
    try:
        claim = Claim.from_summary(parse_json(read_text(path), SUMMARY))
    except FileNotFoundError:
        return f"there is no {SUMMARY} beside it"
    except LimitError as error:
        return error.what.rstrip(".")
    except OSError as error:
        return f"{SUMMARY} can't be read: {error.strerror}"
    except ValueError as error:
        return f"{SUMMARY} can't be used: {error}"
    if file.name != FINAL and sha256 != claim.final_sha256:
        return f"{SUMMARY} is about {FINAL}, and this is another file"
    return claim


def check_file(claim: Claim, file: Path, sha256: str) -> Check:
    """Check that a model is the file that a run wrote, with all its weights."""
    if not claim.final_sha256:
        return Check("file", Outcome.UNVERIFIED, f"{SUMMARY} does not tell its SHA-256")
    expected = claim.final_sha256
    if expected == sha256 and claim.kept_float and claim.baseline_sha256:
        # A copy's weights can be in files of any name; all others have one weight file of their
        # own.
        expected, sha256 = claim.baseline_sha256, sha256_with_weights(file)
    return _same_hash("file", expected, sha256, Outcome.DIFFERS)


def check_baseline(claim: Claim, baseline: Path) -> Check:
    """Check that the float model is the run's; otherwise the claim is about another one."""
    if claim.baseline_sha256:
        expected, found = claim.baseline_sha256, sha256_with_weights(baseline)
    elif claim.given_sha256:
        expected, found = claim.given_sha256, sha256_of(baseline)
    else:
        return Check("baseline", Outcome.UNVERIFIED, f"{SUMMARY} does not tell its SHA-256")
    return _same_hash("baseline", expected, found, Outcome.UNVERIFIED)


def _same_hash(name: str, expected: str, found: str, otherwise: Outcome) -> Check:
    if expected == found:
        return Check(name, Outcome.CONFIRMED, f"its SHA-256 is the one in {SUMMARY}, {found[:12]}")
    text = f"its SHA-256 is {found[:12]}, and the one in {SUMMARY} {expected[:12]}"
    return Check(name, otherwise, text)


def check_placement(file: Path, claim: Claim | None) -> tuple[Check, Edges | None]:
    """Check that a model has the Q/DQ edges of the placement beside it.

    Raises:
        ModelError: If it can't be read.
    """
    path = file.with_name(PLACEMENT)
    try:
        placement = Placement.from_json(read_text(path), PLACEMENT)
    except FileNotFoundError:
        return Check("placement", Outcome.UNVERIFIED, f"there is no {PLACEMENT} beside it"), None
    except QdqtuneError as error:
        return Check("placement", Outcome.UNVERIFIED, error.what.rstrip(".")), None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        text = f"{PLACEMENT} can't be read: {reason}"
        return Check("placement", Outcome.UNVERIFIED, text), None
    if claim is not None and claim.kept_float:
        return _kept_float(placement), None
    edges = _compare_edges(file, placement)
    return _edges_check(edges), edges


def _kept_float(placement: Placement) -> Check:
    if not placement:
        return Check("placement", Outcome.CONFIRMED, "empty, as the run kept its baseline")
    text = f"the run kept its baseline, but {PLACEMENT} has {len(placement.edges)} edges"
    return Check("placement", Outcome.DIFFERS, text)


def _compare_edges(file: Path, placement: Placement) -> Edges:
    model = load_model(file)
    found = strip(model).placement.edges
    index = GraphIndex(model)
    unknown = sorted(tensor for tensor in placement.tensors if tensor not in index.value)
    known = Placement(
        frozenset(edge for edge in placement.edges if edge.tensor in index.value),
        placement.outputs.difference(unknown),
    )
    expected = canonical(index, known).edges
    missing = (*unknown, *_in_words(expected - found))
    return Edges(len(expected) + len(unknown), missing, _in_words(found - expected))


def _in_words(edges: Iterable[Edge]) -> tuple[str, ...]:
    return tuple(
        f"{edge.tensor} into {edge.node or 'the output'}:{edge.position}" for edge in sorted(edges)
    )


def _edges_check(edges: Edges) -> Check:
    if edges.ok:
        text = f"its {edges.expected} Q/DQ edges are exactly those of {PLACEMENT}"
        return Check("placement", Outcome.CONFIRMED, text)
    text = "; ".join(
        f"{len(names)} Q/DQ edges {what} {PLACEMENT}: {_names(names)}"
        for names, what in ((edges.missing, "are only in"), (edges.surplus, "are not in"))
        if names
    )
    return Check("placement", Outcome.DIFFERS, text)


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


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


def why_not_its_inputs(claim: Claim, folder: Path, baseline: Path) -> str:
    """Explain why a claim is about inputs that its baseline doesn't have; empty if it isn't.

    Raises:
        ModelError: If the baseline can't be read.
    """
    inputs = input_dims(load_model(baseline))
    try:
        bind_dims(inputs, InputRequest(shapes=shapes_of_run(claim, folder)))
        for name in claim.ranges:
            input_named(inputs, name)
    except UsageError as error:
        return f"{SUMMARY} is about other inputs: {error.what.rstrip('.')}"
    return ""


def are_small(shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether inputs are small enough to be generated at a file's request."""
    return sum(map(math.prod, shapes)) <= _MOST_ELEMENTS
