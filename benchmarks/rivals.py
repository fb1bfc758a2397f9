"""What a tuned model is compared with, all in one interleaved run.

The float model; of ONNX Runtime's blankets the fastest of `quantize_static` and the fastest of
`quantize_dynamic`; NNCF's `quantize` if it is installed; our own rules. Everything gets the same
calibration samples.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from benchmarks.blankets import (
    ALL_BLANKETS,
    BLANKETS,
    CONFIDENCE,
    speeds_over_float,
    write_blankets,
    write_folded,
)
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._comparison import Allowance, Reopened, compare_reopened
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._pool import WorkerPool
from qdqtune.engines._timing import median_interval
from qdqtune.engines._worker import Worker

FLOAT, STATIC, DYNAMIC, NNCF = "float", "quantize_static", "quantize_dynamic", "nncf"
RULES, TUNED = "quantize", "tune"
# Enough for five processes that open a handful of large models.
_REOPENING_S = 120.0


@dataclass(frozen=True)
class Rivals:
    """What others make of a model.

    Attributes:
        files: By label: those of STATIC, DYNAMIC and NNCF that run.
        forms: What they are, by label: the blankets that were the fastest, and NNCF's version.
        blankets: How much faster than float each blanket was when they were chosen.
    """

    files: Mapping[str, Path]
    forms: Mapping[str, str]
    blankets: Mapping[str, float]

    @property
    def best_blanket(self) -> str | None:
        """The label of the fastest blanket; None if none runs."""
        labels = [label for label in (STATIC, DYNAMIC) if label in self.forms]
        return max(labels, key=lambda label: self.blankets[self.forms[label]], default=None)


def write_rivals(
    path: Path, folder: Path, engine: str, samples: Sequence[Feeds], feeds: Feeds, budget_s: float
) -> Rivals:
    """Quantize a model by every other quantizer, and choose the fastest blankets on an engine.

    Args:
        path: The float model.
        folder: Where the others are written.
        engine: What times the blankets, with one thread.
        samples: What they are calibrated on.
        feeds: What they are timed on.
        budget_s: Seconds of timed runs of each blanket.
    """
    folded = write_folded(path, folder / "folded.onnx")
    blankets = write_blankets(folded, lambda: iter(samples), folder, ALL_BLANKETS)
    with Worker(engine, SessionOptions(threads=1)) as worker:
        speeds = speeds_over_float(worker, path, blankets, feeds, budget_s)
    ratios = {label: found.ratio for label, found in speeds.items()}
    forms = {}
    for label, is_static in ((STATIC, True), (DYNAMIC, False)):
        of_kind = [form for form in ratios if (form in BLANKETS) is is_static]
        if of_kind:
            forms[label] = max(of_kind, key=lambda form: ratios[form])
    files = {label: blankets[form] for label, form in forms.items()}
    if (by_nncf := write_nncf(folded, folder / "nncf.onnx", samples)) is not None:
        files[NNCF] = by_nncf
        forms[NNCF] = version("nncf")
    return Rivals(files, forms, ratios)


def write_nncf(path: Path, target: Path, samples: Sequence[Feeds]) -> Path | None:
    """Quantize a folded model by NNCF's defaults; None if it is not installed or fails.

    Its documentation asks for the type of the model if that is a transformer.
    """
    if importlib.util.find_spec("nncf") is None:
        return None
    nncf: Any = importlib.import_module("nncf")
    model = onnx.load(path)
    has_attention = any(node.op_type == "Softmax" for node in model.graph.node)
    try:
        quantized = nncf.quantize(
            model, nncf.Dataset(list(samples)),
            model_type=nncf.ModelType.TRANSFORMER if has_attention else None,
        )  # fmt: skip
    except Exception as error:  # not every model can be quantized by it
        print(f"{path.name}: nncf: {error}", flush=True)
        return None
    onnx.save(quantized, target)
    return target


def in_turns(
    engine: str, files: Mapping[str, Path], feeds: Feeds, budget_s: float
) -> dict[str, Reopened]:
    """Time files against the first of them, interleaved, in one fresh process after another.

    Args:
        engine: Where they run, with one thread.
        files: By label, the baseline first.
        feeds: What they run on.
        budget_s: Seconds of timed runs of each file, in all processes together.
    """
    with Worker(engine, SessionOptions(threads=1)) as worker:
        found = compare_reopened(
            WorkerPool([worker]), list(files.values()), feeds, Allowance(budget_s, _REOPENING_S)
        )
    return dict(zip(files, found, strict=True))


def interval(one: Reopened, other: Reopened) -> tuple[float, float, float] | None:
    """How much faster one file is than another, and both ends; None if one of them failed.

    Each process gives one ratio. With too few processes for an interval, both ends are the ratio.

    Args:
        one: A file that was compared in turns.
        other: Another of the same run; the baseline has no ratios, and counts as 1.
    """
    if one.error is not None or other.error is not None:
        return None
    behind = other.log_ratios or (0.0,) * len(one.log_ratios)
    ratios = [math.exp(a - b) for a, b in zip(one.log_ratios, behind, strict=True)]
    ratio = statistics.median(ratios)
    low, high = median_interval(ratios, CONFIDENCE)
    return (ratio, low, high) if math.isfinite(high) else (ratio, ratio, ratio)
