"""The models that a report compares on one scale: float, blankets, rules and the result."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import shorten

from qdqtune.records._measurement import FLOAT32
from qdqtune.records._quantization import QuantizeReport
from qdqtune.records._report import ReportDetails, RunView
from qdqtune.records._tuning import AS_GIVEN, Summary

# The seed with the placement of a model that was already quantized.
_AS_GIVEN = "as given"
_RESULT = "tuned"
# The whole text is in the list of candidates.
_LONGEST_PROBLEM = 120
# What words in the names of models mean.
_TERMS = {
    "blanket": "a blanket follows one rule for the whole model, without a search",
    "front": "of the models on the front, none is both faster and more accurate than another",
    "raw": "raw is put together from the fastest form of each subgraph, as timed alone",
    "rules": "rules are the placement rules for the engine",
    "dynamic": "dynamic products quantize their inputs at run time",
    "unfused": (
        "with sums unfused, the Add before a LayerNormalization is kept from being fused with it"
    ),
}
# Standard errors in the interval of a short comparison.
_SPREAD = 2.0


def terms_in(names: Iterable[str]) -> str:
    """Return what the words in some names mean, as sentences.

    Args:
        names: Names of models, as a report shows them.
    """
    words = set(re.findall(r"\w+", " ".join(names)))
    known = [text for term, text in _TERMS.items() if term in words]
    return "".join(f" {text[:1].upper()}{text[1:]}." for text in known)


@dataclass(frozen=True)
class Contender:
    """A model on the common scale.

    Attributes:
        name: Its name.
        speedup: Over the model as given; None if it could not be timed.
        latency_ms: Its latency; 0 if it could not be timed.
        low: Lower end of the interval.
        high: Upper end.
        sqnr_db: SQNR of its worst output; None if unknown.
        metric: The user's metric; None if unknown.
        problem: Why it can't be used; empty if it can.
        is_result: Whether it is the model that was written.
        in_search: Whether it was timed in the search only, in a shorter comparison.
        candidate: Its id; empty if it has none.
    """

    name: str
    speedup: float | None
    latency_ms: float = 0.0
    low: float = 1.0
    high: float = 1.0
    sqnr_db: float | None = None
    metric: float | None = None
    problem: str = ""
    is_result: bool = False
    in_search: bool = False
    candidate: str = ""


def contenders_of(run: RunView) -> tuple[Contender, ...]:
    """Return the models that a run compared, the model as given first, then the result."""
    if isinstance(run.result, Summary):
        return (*_timed_at_the_end(run, run.result), *_timed_in_the_search(run, run.result))
    return tuple(_of_quantize(run.result))


def _timed_at_the_end(run: RunView, summary: Summary) -> Iterator[Contender]:
    metric, blanket = summary.metric or {}, summary.blanket
    ids = (run.details or ReportDetails()).candidates
    yield Contender(
        _first(summary), 1.0, summary.baseline_ms, metric=metric.get("float"),
        is_result=summary.kept_float,
    )  # fmt: skip
    if not summary.kept_float:
        same = _also(ids, _RESULT)
        if blanket is not None and blanket.identical and blanket.name not in same:
            same.append(blanket.name)
        yield Contender(
            f"{_RESULT} (= {' = '.join(same)})" if same else _RESULT, summary.speedup,
            summary.final_ms, *summary.speedup_interval, summary.output_sqnr_db,
            metric.get("final"), is_result=True, candidate=ids.get(_RESULT, ""),
        )  # fmt: skip
    if blanket is not None and not blanket.identical:
        name = " = ".join([blanket.name, *_also(ids, blanket.name)])
        yield Contender(
            f"best blanket: {name}", blanket.speedup, blanket.latency_ms,
            *blanket.speedup_interval, blanket.sqnr_db, blanket.metric, blanket.shortfall,
            candidate=ids.get(blanket.name, ""),
        )  # fmt: skip
    for number, point in enumerate(summary.front, 1):
        if not point.chosen and (blanket is None or point.name != blanket.name):
            yield Contender(
                f"front, point {number}: {point.name}", point.speedup, point.latency_ms,
                *point.speedup_interval, point.sqnr_db, point.metric, candidate=point.candidate,
            )  # fmt: skip


def _timed_in_the_search(run: RunView, summary: Summary) -> Iterator[Contender]:
    """Yield whole-model placements that were not timed at the end, and those that failed."""
    details = run.details or ReportDetails()
    ids = details.candidates
    rejected = {each.name: each for each in summary.rejected}
    errors = {trial.candidate: trial.error for trial in run.trials}
    best = summary.blanket.name if summary.blanket is not None else ""
    at_the_end = {ids.get(name) for name in (_RESULT, best)}
    shown = {_first(summary), best}
    shown |= {point.name for point in summary.front}
    for name, speedup in sorted(summary.seeds.items(), key=lambda item: -item[1]):
        candidate = ids.get(name, "")
        if name in shown or (candidate and candidate in at_the_end):
            continue
        width = math.exp(_SPREAD * errors.get(candidate, 0.0))
        sqnr_db = details.sqnr_db.get(candidate)
        problem = summary.shortfall(sqnr_db)
        if name in rejected:
            sqnr_db, problem = rejected[name].sqnr_db, rejected[name].reason
        yield Contender(
            name, speedup, summary.baseline_ms / speedup, speedup / width, speedup * width,
            sqnr_db, problem=problem, in_search=True, candidate=candidate,
        )  # fmt: skip
    failed = {trial.candidate: trial.failure for trial in run.trials if trial.failure}
    for name, candidate in ids.items():
        if name not in summary.seeds and candidate in failed:
            problem = shorten(failed[candidate], _LONGEST_PROBLEM, placeholder=" …")
            yield Contender(name, None, problem=problem, in_search=True, candidate=candidate)


def _also(ids: Mapping[str, str], name: str) -> list[str]:
    """Return the other names of a candidate, without that of the result."""
    own = {name, _RESULT}
    return [each for each, found in ids.items() if found == ids.get(name) and each not in own]


def _of_quantize(report: QuantizeReport) -> Iterator[Contender]:
    timed, kept = report.comparison, report.kept_float
    if timed is None or not report.baseline_ms:
        return
    yield Contender("float", 1.0, report.baseline_ms, is_result=kept)
    yield Contender(
        "rules", timed.ratio, report.final_ms or report.baseline_ms / timed.ratio, timed.low,
        timed.high, report.worst_db, problem=report.reason if kept else "", is_result=not kept,
    )  # fmt: skip


def _first(summary: Summary) -> str:
    """Return the name of the model that all others are compared with."""
    return _AS_GIVEN if _AS_GIVEN in summary.seeds else _float_name(summary)


def _float_name(summary: Summary) -> str:
    if summary.converted_from:
        return f"as given ({summary.converted_from})"
    if summary.precision != AS_GIVEN:
        return summary.precision
    computed_in = summary.engine.float_type
    return "float" if computed_in in ("", FLOAT32) else f"float ({computed_in})"
