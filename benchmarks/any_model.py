"""Every model through every dialect: `python -m benchmarks.any_model FOLDER... [--data FOLDER]`.

Each `.onnx` file is loaded; all its weighted ops are quantized in each dialect; what comes out is
checked, run, and taken apart again. The table says how far its outputs are from the float model's,
in dB, and how far those of the model inside it are; "equal" also stands for outputs that saturate,
as the sigmoid of a detector that detects nothing. The exit code is 1 if anything failed, or if a
model with calibration data is below the bar.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir

from benchmarks.blame import blame
from benchmarks.corpus import Fed, fed_with, find_models, weighted_ops
from qdqtune.calibration._output_error import output_sqnr
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.qdq._preprocess import refuse_integer_ops
from qdqtune.records._errors import ModelError, QdqtuneError
from qdqtune.records._printable import message
from qdqtune.report._formatting import text_table
from qdqtune.workflows._insert import insert
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows._strip import strip

VARIANTS = (
    "onnxruntime", "onnxruntime:uint8", "onnxruntime-novnni", "tensorrt", "tensorrt:fp8",
    "tensorrt-8",
)  # fmt: skip
LEAST_SQNR_DB = 15.0
LEAST_STRIPPED_DB = 60.0


@dataclass
class Outcome:
    """What came of one model in one dialect.

    Attributes:
        sqnr_db: The worst output against the float model, on inputs held out if there are any.
        method: How ranges were taken from the calibration data.
        tried_db: What each way gave on calibration samples: what the choice was made by.
        stripped_db: The same for the model inside, with the float model's weights.
        rounded_db: The same with the weights as they were in the file; in the first dialect.
        quantized: The ops that were quantized.
        left_float: Why ops were not, and how many.
        seconds: How long it took.
        error: What failed, if anything did.
    """

    sqnr_db: float | None = None
    method: str = ""
    tried_db: dict[str, float] = field(default_factory=dict)
    stripped_db: float | None = None
    rounded_db: float | None = None
    quantized: list[str] = field(default_factory=list)
    left_float: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""


@dataclass
class Record:
    """What came of one model.

    Attributes:
        model: The file's name, without its ending.
        opset: The opset of the file.
        nodes: Nodes in it.
        calibration: "data" or "random".
        skipped: Why nothing was quantized, if there was nothing to.
        error: Why it could not be opened.
        outcomes: By variant.
        blamed: The ops that cause most noise, for variants below the bar.
    """

    model: str
    opset: int = 0
    nodes: int = 0
    calibration: str = ""
    skipped: str = ""
    error: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    blamed: dict[str, list[str]] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """What is wrong, in words."""
        found = [f"{self.model}: {self.error}"] if self.error else []
        for variant, outcome in self.outcomes.items():
            where = f"{self.model} in {variant}"
            if outcome.error:
                found.append(f"{where}: {outcome.error}")
            elif self.below(variant):
                found.append(f"{where}: {outcome.sqnr_db:.1f} dB")
            if outcome.stripped_db is not None and outcome.stripped_db < LEAST_STRIPPED_DB:
                found.append(f"{where}: stripped again, {outcome.stripped_db:.1f} dB")
        return found

    def below(self, variant: str) -> bool:
        """Whether a model that was calibrated on data is too far from the float one."""
        sqnr_db = self.outcomes[variant].sqnr_db
        return self.calibration == "data" and sqnr_db is not None and sqnr_db < LEAST_SQNR_DB


class Trial:
    """One model, opened and ready to be quantized in any dialect."""

    def __init__(self, path: Path, source: Source, fed: Fed, folder: Path, worker: Worker) -> None:
        self._path = path
        self._ops = weighted_ops(source)
        self._fed = fed
        self._evaluation_samples = fed.evaluation_samples(source)
        self._folder = folder
        self._worker = worker
        self._rounded = False

    def run(self, variant: str) -> Outcome:
        """Quantize, check, run and strip."""
        outcome = Outcome()
        start = time.perf_counter()
        try:
            self._quantize(variant, outcome)
        except Exception as error:  # the next one has its turn whatever happens to this one
            outcome.error = _told(error)
        outcome.seconds = round(time.perf_counter() - start, 1)
        return outcome

    def _quantize(self, variant: str, outcome: Outcome) -> None:
        dialect, _, quant_type = variant.partition(":")
        quantized = self._folder / "quantized.onnx"
        report = insert(
            self._path, quantized, ops=self._ops, dialect=dialect,
            quant_type=quant_type or "int8", inputs=self._fed.request,
            calibration_data=self._fed.calibration, force=True,
        )  # fmt: skip
        outcome.quantized = list(report.quantized)
        outcome.method, outcome.tried_db = report.method.value, dict(report.tried_db)
        reasons = list(report.left_float.values())
        outcome.left_float = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
        onnx.checker.check_model(quantized, full_check=True)
        native = native_dialect("onnxruntime").name == dialect
        outcome.sqnr_db = self._against_float(quantized, native=native)
        outcome.stripped_db = self._stripped(quantized, self._path)
        if not self._rounded:
            outcome.rounded_db = self._stripped(quantized, None)
            self._rounded = True

    def _stripped(self, quantized: Path, weights_from: Path | None) -> float:
        stripped = self._folder / "stripped.onnx"
        strip(quantized, stripped, weights_from=weights_from, inputs=self._fed.request, force=True)
        return self._against_float(stripped, native=True)

    def _against_float(self, path: Path, *, native: bool) -> float:
        options = None if native else AS_WRITTEN
        found = output_sqnr(
            self._worker, self._path, path, self._evaluation_samples, options=options
        )
        return min(found.values())


def examine(
    path: Path, data: Path | None, variants: list[str], worker: Worker, *, blaming: bool
) -> Record:
    """Take one model through the dialects."""
    record = Record(path.stem)
    try:
        model = load_model(path)
        record.nodes, record.opset = len(model.graph), model.opset_imports.get("", 0)
        record.skipped = _dynamically_quantized(model, path)
        if record.skipped:
            return record
        source = open_source(path)
        if not weighted_ops(source):
            record.skipped = "no weighted op in the main graph"
            return record
        fed = fed_with(path, source, data)
    except Exception as error:
        record.error = _told(error)
        return record
    record.calibration = fed.source.value
    with tempfile.TemporaryDirectory(prefix="qdqtune-any-") as folder:
        trial = Trial(path, source, fed, Path(folder), worker)
        for variant in variants:
            record.outcomes[variant] = trial.run(variant)
            if blaming and record.below(variant):
                quantized = record.outcomes[variant].quantized
                record.blamed[variant] = blame(path, variant, quantized, fed, worker)
    return record


def _dynamically_quantized(model: ir.Model, path: Path) -> str:
    try:
        refuse_integer_ops(model, path)
    except ModelError:
        return "quantized already, in integer ops"
    return ""


def _told(error: Exception) -> str:
    if isinstance(error, QdqtuneError):
        return error.what
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}"


def table(records: list[Record], variants: list[str]) -> str:
    """One row per model: dB in each dialect, the worst of stripping, seconds."""
    header = ["model", "opset", "nodes", "inputs", *variants, "stripped", "rounded", "s"]
    rows = []
    for record in records:
        facts = [record.model, str(record.opset), str(record.nodes), record.calibration]
        if not record.outcomes:
            rows.append(
                [*facts, record.skipped or "FAILED", *[""] * (len(header) - len(facts) - 1)]
            )
            continue
        outcomes = [record.outcomes[variant] for variant in variants]
        rows.append(
            [
                *facts,
                *("FAILED" if one.error else _decibels([one.sqnr_db]) for one in outcomes),
                _decibels([one.stripped_db for one in outcomes]),
                _decibels([one.rounded_db for one in outcomes]),
                f"{sum(one.seconds for one in outcomes):.0f}",
            ]
        )
    return text_table(header, rows)


def _decibels(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return "equal" if min(known) == math.inf else f"{min(known):.1f}"


def main() -> int:
    """Print the table; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.any_model")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--data", type=Path, help="folder of <model>.npz")
    parser.add_argument("--dialects", default=",".join(VARIANTS), help="by comma")
    parser.add_argument("--jsonl", type=Path, help="append what is found, model by model")
    parser.add_argument("--blame", action="store_true", help="name the ops behind a low ratio")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    variants = options.dialects.split(",")
    records: list[Record] = []
    with Worker() as worker:
        for path in find_models(options.folders):
            record = examine(path, options.data, variants, worker, blaming=options.blame)
            records.append(record)
            print(_line(record), flush=True)
            if options.jsonl:
                with options.jsonl.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(record)) + "\n")
    faults = [fault for record in records for fault in record.faults()]
    print("", table(records, variants), "", message("\n".join(faults)), sep="\n")
    for record in records:
        for variant, lines in record.blamed.items():
            print(message("\n  ".join([f"{record.model} in {variant}:", *lines])))
    return 1 if faults else 0


def _line(record: Record) -> str:
    outcomes = record.outcomes.items()
    cells = [f"{name} {_decibels([one.sqnr_db]) or one.error}" for name, one in outcomes]
    return message(f"{record.model}: {record.error or record.skipped or ', '.join(cells)}")


if __name__ == "__main__":
    sys.exit(main())
