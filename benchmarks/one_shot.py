"""`qdqtune.quantize` against the float model and against the best of `quantize_static`'s blankets.

    python -m benchmarks.one_shot --models resnet50,vit [--engine openvino] [--record]

Speed: what `quantize` hands over with its default settings, and the blanket that is fastest on the
engine, turn by turn; a ratio counts by its 90 % interval. Time: opening, placing, calibrating and
inserting, with all calibration methods (the default) and with `max` alone, which is what
`quantize_static` does, beside a `quantize_static` of the folded model on the same samples; turn by
turn, and the ratio is the median over rounds. The whole call is told, too: it evaluates the result,
guards it and times it, which `quantize_static` does not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.blankets import (
    BLANKETS,
    CONFIDENCE,
    compared,
    model_file,
    speeds_over_float,
    split_models,
    write_blanket,
    write_blankets,
    write_folded,
)
from qdqtune import quantize, zoo
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.calibration._ranges import FOLDER
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._timing import median_interval
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import Comparison
from qdqtune.records._quantization import QuantizeReport

KIND = "one_shot"
COLUMNS = {
    "model": "model", "over float": "over_float", "90 %": "over_float_interval",
    "best blanket": "blanket", "over blanket": "over_blanket", "90 % ": "over_blanket_interval",
    "speed": "speed_bar", "static s": "static_s", "own s": "own_s", "ratio": "own_ratio",
    "max s": "max_s", "ratio ": "max_ratio", "time": "time_bar", "whole s": "whole_s",
    "whole": "whole_bar", "SQNR": "sqnr_db", "kept float": "kept_float",
}  # fmt: skip
_STEPS = ("open", "place", "calibrate", "insert")
_LEAST_SPEED, _MOST_TIME = 0.98, 1.2
_MOST_WHOLE_S = {"resnet50": 30.0}  # with 32 samples
_BLANKET_SAMPLES = 4


@dataclass(frozen=True)
class Round:
    """Seconds of one round.

    Attributes:
        static: `quantize_static`.
        own: The steps of ours that it has, too.
        own_max: The same, calibrated by `max` alone.
        whole: All of ours.
    """

    static: float
    own: float
    own_max: float
    whole: float


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        samples: To calibrate on.
        rounds: Of the steps that are timed.
        sessions: Pairs of sessions per comparison of two files.
        session_s: Seconds of timed runs per pair.
    """

    samples: int
    rounds: int
    sessions: int
    session_s: float


def measure(name: str, engine: str, threads: int, effort: Effort) -> dict[str, Any]:
    """One record for a zoo model or a model file on an engine."""
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        path = model_file(name, space)
        index = GraphIndex(load_model(path))
        given = list(random_inputs(index, effort.samples))
        folded = write_folded(path, space / "folded.onnx")
        ours = space / "ours.onnx"
        reports, taken = [], []
        for _ in range(effort.rounds):
            report, seconds = _round(path, folded, given, engine, threads, ours)
            reports.append(report)
            taken.append(seconds)
        blankets = write_blankets(folded, lambda: iter(given[:_BLANKET_SAMPLES]), space)
        feeds = next(random_inputs(index, 1, InputRequest(seed=1)))
        with Worker(engine, SessionOptions(threads=threads)) as worker:
            speeds = speeds_over_float(worker, path, blankets, feeds, 2 * effort.session_s)
            best = max(speeds, key=lambda label: speeds[label].ratio, default="")
            over_float = _over(worker, path, ours, feeds, effort)
            over_blanket = _over(worker, blankets[best], ours, feeds, effort) if best else None
    report = reports[-1]
    return {
        "kind": KIND,
        "model": path.stem if Path(name).exists() else name,
        "engine": engine,
        "threads": threads,
        "samples": effort.samples,
        "over_float": over_float.ratio,
        "over_float_interval": [over_float.low, over_float.high],
        "blanket": best,
        "blankets": {label: found.ratio for label, found in speeds.items()},
        "over_blanket": over_blanket.ratio if over_blanket else None,
        "over_blanket_interval": [over_blanket.low, over_blanket.high] if over_blanket else None,
        "speed_bar": _speed_bar(over_blanket),
        **_times(name, effort.samples, taken),
        "steps_s": dict(report.seconds),
        "sqnr_db": report.worst_db,
        "method": report.method,
        "kept_float": report.kept_float,
        "reason": report.reason,
    }


def _over(worker: Worker, one: Path, other: Path, feeds: Feeds, effort: Effort) -> Comparison:
    """How much faster the other file is, over several pairs of sessions.

    One pair of sessions can be off as a whole. Seen: a ShuffleNet that was handed back as it was,
    2 % faster than itself, with an interval from 1.2 to 2.5 %. So a pair gives one ratio, the
    interval is that of the ratios, and the file that is opened first changes.
    """
    ratios = []
    for session in range(effort.sessions):
        first, second = (one, other) if session % 2 == 0 else (other, one)
        found = compared(worker, first, second, feeds, effort.session_s)
        ratios.append(found.ratio if first is one else 1 / found.ratio)
    low, high = median_interval(ratios, CONFIDENCE)
    return Comparison(statistics.median(ratios), low, high, CONFIDENCE, len(ratios))


def _round(
    path: Path, folded: Path, samples: list[Feeds], engine: str, threads: int, target: Path
) -> tuple[QuantizeReport, Round]:
    """Theirs, ours, and ours by `max`; what ours wrote stays."""
    spare = target.with_name("spare.onnx")
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        write_blanket(folded, spare, BLANKETS["u8/s8"], iter(samples))
    static_s = time.perf_counter() - began
    report = quantize(
        path, target, engine=engine, threads=threads, calibration_data=lambda: iter(samples),
        force=True,
    ).report  # fmt: skip
    by_max = quantize(
        path, spare, engine=engine, threads=threads, calibration_data=lambda: iter(samples),
        calibration_method="max", min_sqnr_db=None, performance_threshold=None, force=True,
    ).report  # fmt: skip
    seconds = Round(static_s, _steps(report), _steps(by_max), report.seconds["total"])
    return report, seconds


def _steps(report: QuantizeReport) -> float:
    return sum(report.seconds.get(step, 0.0) for step in _STEPS)


def _times(name: str, samples: int, rounds: Sequence[Round]) -> dict[str, Any]:
    ratio = statistics.median(each.own / each.static for each in rounds)
    whole_s = statistics.median(each.whole for each in rounds)
    limit_s = _MOST_WHOLE_S.get(name) if samples == 32 else None
    return {
        "static_s": statistics.median(each.static for each in rounds),
        "own_s": statistics.median(each.own for each in rounds),
        "own_ratio": ratio,
        "max_s": statistics.median(each.own_max for each in rounds),
        "max_ratio": statistics.median(each.own_max / each.static for each in rounds),
        "time_bar": _verdict(ratio <= _MOST_TIME),
        "whole_s": whole_s,
        "whole_bar": "" if limit_s is None else _verdict(whole_s <= limit_s),
    }


def _speed_bar(over_blanket: Comparison | None) -> str:
    """Whether ours is as fast, as far as the interval can tell."""
    if over_blanket is None or over_blanket.low >= _LEAST_SPEED:
        return _verdict(True)
    return _verdict(False) if over_blanket.high < _LEAST_SPEED else "open"


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize the models and print the table; add to the results file if that is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.one_shot", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    names = [name for name in zoo.ARCHITECTURES if name != "chain"]
    parser.add_argument("--models", default=",".join(names), help="zoo models or files, by comma")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="of the steps that are timed")
    parser.add_argument("--sessions", type=int, default=6, help="pairs per comparison")
    parser.add_argument("--session_s", type=float, default=1.5, help="seconds per pair of sessions")
    parser.add_argument("--record", action="store_true", help=f"add to {results.RESULTS.name}")
    options = parser.parse_args(arguments)
    os.environ[FOLDER] = ""  # nothing may be known from the round before
    logging.getLogger().setLevel(logging.ERROR)
    effort = Effort(options.samples, options.rounds, options.sessions, options.session_s)
    records = []
    for name in split_models(options.models):
        record = measure(name, options.engine, options.threads, effort)
        records.append(results.append(record) if options.record else record)
        print(results.table(records[-1:], COLUMNS), flush=True)
        print({step: round(taken, 2) for step, taken in record["steps_s"].items()}, flush=True)
    print()
    print(results.table(records, COLUMNS))


if __name__ == "__main__":
    main()
