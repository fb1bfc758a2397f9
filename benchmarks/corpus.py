"""The models of a corpus, and what each one is fed with."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qdqtune.calibration._expected_inputs import expected_inputs
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.calibration._sample_set import open_samples
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.records._inputs import InputRequest
from qdqtune.records._ranges import CalibrationSource
from qdqtune.workflows._source_model import Source

_EVALUATION_SAMPLES = 8

#: Open dims that matter, and inputs that only take certain values, by the name of the file.
_INPUTS: Mapping[str, tuple[str, str]] = {
    "*PP-OCR*_rec_*": ("x:1x3x48x320", ""),
    "*PP-OCR*_det_*": ("x:1x3x320x320", ""),
    "*ppocr*_cls_*": ("x:1x3x48x192", ""),
    "ddddocr__common": ("input1:1x1x64x160", ""),
    "*melspectrogram": ("input:1x16000", ""),
    "openwakeword*silero_vad": ("input:1x512", "sr:16000:16000"),
    "*silero_vad_16k_sequence": ("input:16x576", ""),
    "*silero_vad_half": ("input:1x576", ""),
    "*silero_vad_openvino_16k": ("", ""),
    "*silero_vad*": ("input:1x576", "sr:16000:16000"),
    "distilbert.legacy": ("input_ids:1x16,attention_mask:1x16", ""),
    "lstm.legacy": ("ids:1x12", ""),
}


@dataclass(frozen=True)
class Fed:
    """What a model is run on.

    Attributes:
        request: Shapes, and ranges of random inputs.
        calibration: Calibration data; None is random inputs.
        held_out: Inputs to evaluate on, apart from the calibration data; None if there are none.
    """

    request: InputRequest
    calibration: Path | None = None
    held_out: Path | None = None

    @property
    def source(self) -> CalibrationSource:
        """Where calibration samples come from."""
        return CalibrationSource.RANDOM if self.calibration is None else CalibrationSource.DATA

    def evaluation_samples(self, source: Source) -> list[Feeds]:
        """The inputs that a quantized model is evaluated on."""
        data = self.held_out or self.calibration
        if data is not None:
            return list(_samples(data, source))
        return list(random_inputs(GraphIndex(source.model), 2, self.request))


def find_models(folders: Iterable[Path]) -> list[Path]:
    """Every `.onnx` file in the folders and below, small ones first; a file stands for itself."""
    found = {
        path
        for folder in folders
        for path in ([folder] if folder.is_file() else folder.rglob("*.onnx"))
    }
    return sorted(found, key=lambda path: (path.stat().st_size, path))


def fed_with(path: Path, source: Source, data: Path | None) -> Fed:
    """What there is for a model: `DATA/<stem>.npz` or `DATA/<stem>/`, or random inputs.

    Beside it, `DATA/<stem>.held_out.npz` may hold inputs to evaluate on. Files of one name share
    them.
    """
    calibration = _first(data, f"{path.stem}.npz", path.stem)
    if calibration is None:
        return Fed(_request(path.stem))
    first = next(_samples(calibration, source))
    shapes = {name: tuple(array.shape) for name, array in first.items()}
    held_out = _first(data, f"{path.stem}.held_out.npz")
    return Fed(InputRequest(shapes, seed=1), calibration, held_out)


def weighted_ops(source: Source) -> list[str]:
    """The types of weighted ops in the main graph."""
    return sorted({node.op_type for node in source.model.graph if is_op(node, *WEIGHTED_OPS)})


def calibration_samples(fed: Fed, source: Source) -> list[Feeds]:
    """What a model is calibrated on."""
    if fed.calibration is not None:
        return list(open_samples(fed.calibration, expected_inputs(source.model)))
    return list(random_inputs(GraphIndex(source.model), _EVALUATION_SAMPLES, fed.request))


def _request(stem: str) -> InputRequest:
    for pattern, (shapes, ranges) in _INPUTS.items():
        if fnmatch.fnmatch(stem, pattern):
            return InputRequest.from_text(filter(None, [shapes]), (), filter(None, [ranges]), 1)
    return InputRequest(seed=1)


def _samples(data: Path, source: Source) -> Iterator[Feeds]:
    return iter(open_samples(data, expected_inputs(source.model), limit=_EVALUATION_SAMPLES))


def _first(folder: Path | None, *names: str) -> Path | None:
    paths = [folder / name for name in names] if folder is not None else []
    return next((path for path in paths if path.exists()), None)
