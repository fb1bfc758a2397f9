"""Writers of candidates, with ranges of samples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._folding import make_ready
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._ranges import CalibrationSource


def calibrated(
    proto: onnx.ModelProto, dialect: str, samples: Iterable[Feeds], worker: Worker, folder: Path
) -> Inserter:
    """The writer of a model in int8."""
    onnx.save(proto, folder / "model.onnx")
    model = load_model(folder / "model.onnx")
    make_ready(model)
    base = PreparedModel(model, folder)
    ranges = collect_ranges(base, worker, samples, CalibrationSource.DATA)
    return Inserter(base, DIALECTS[dialect], "int8", ranges)
