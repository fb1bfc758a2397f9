"""What ONNX Runtime's own quantizers do by default: the match for our files.

`quantize_static` writes Q/DQ, per channel; `quantize_dynamic` computes the ranges of activations in
every run.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import onnx
from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from benchmarks.against_quantize_static import SampleReader
from qdqtune import zoo
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.engines._timing import compare_blocks
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._folding import fold
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.records._measurement import Comparison
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator, open_kernels
from qdqtune.workflows._source_model import Source
from qdqtune.zoo.__main__ import read_settings

CONFIDENCE = 0.90
LEAST_OPSET = 13  # what comes before has no scales per channel
_S8, _U8 = QuantType.QInt8, QuantType.QUInt8


class Blanket(NamedTuple):
    """The types of a blanket of `quantize_static`, and how its ranges are found."""

    activation: QuantType
    weight: QuantType
    reduce_range: bool = False
    method: CalibrationMethod = CalibrationMethod.MinMax


BLANKETS: Mapping[str, Blanket] = {
    "s8/s8": Blanket(_S8, _S8),
    "u8/s8": Blanket(_U8, _S8),
    "u8/s8 7 bits": Blanket(_U8, _S8, reduce_range=True),
    "u8/u8": Blanket(_U8, _U8),
}


class DynamicBlanket(NamedTuple):
    """The weights of a blanket of `quantize_dynamic`."""

    weight: QuantType
    per_channel: bool = False


ALL_BLANKETS: Mapping[str, Blanket | DynamicBlanket] = {
    **BLANKETS,
    "dynamic s8 per channel": DynamicBlanket(_S8, per_channel=True),
    "dynamic s8": DynamicBlanket(_S8),
    "dynamic u8": DynamicBlanket(_U8),
}


def split_models(text: str) -> list[str]:
    """Split a list of models at commas, except those between the settings of a zoo model."""
    return re.split(r",(?!\d+(?:,|$))(?=[^=,:]*(?:[,:]|$))", text)


def model_file(name: str, folder: Path) -> Path:
    """A model file, or a zoo model that is written to a folder.

    Args:
        name: A path, or the name of a zoo model and maybe settings: `bert:layers=12,width=256`.
        folder: The folder for a zoo model.
    """
    path = Path(name)
    if not path.exists():
        path = folder / "zoo.onnx"
        architecture, _, settings = name.partition(":")
        assignments = re.split(r",(?=\w+=)", settings) if settings else []
        chosen = read_settings(architecture, assignments)
        onnx.save(zoo.build(architecture, seed=0, **chosen), path)
    return path


def write_folded(path: Path, target: Path, *, force: bool = False) -> Path:
    """Write the model as `quantize_static` wants it: that is what its own preprocessing is for."""
    model = load_model(path)
    raise_opset(model, LEAST_OPSET)
    fold(model)
    infer_shapes(model)
    return save_model(model, target, force=force)


def write_blanket(
    path: Path, target: Path, blanket: Blanket | DynamicBlanket, samples: Iterator[Feeds]
) -> Path:
    """Quantize a folded model by a blanket; only those of `quantize_static` need the samples."""
    if isinstance(blanket, DynamicBlanket):
        model = onnx.load(path)
        # It transposes the weights of Gemms, after which it stumbles over their inferred shapes.
        del model.graph.value_info[:]
        quantize_dynamic(
            model, target, per_channel=blanket.per_channel, weight_type=blanket.weight
        )  # fmt: skip
        return target
    quantize_static(
        str(path), str(target), SampleReader(samples),
        quant_format=QuantFormat.QDQ, per_channel=True, activation_type=blanket.activation,
        weight_type=blanket.weight, reduce_range=blanket.reduce_range,
        calibrate_method=blanket.method,
    )  # fmt: skip
    return target


def write_blankets(
    path: Path,
    samples: Callable[[], Iterator[Feeds]],
    folder: Path,
    blankets: Mapping[str, Blanket | DynamicBlanket] = BLANKETS,
) -> dict[str, Path]:
    """Quantize a folded model by every blanket that can do it."""
    written = {}
    for number, (label, blanket) in enumerate(blankets.items()):
        target = folder / f"blanket{number}.onnx"
        try:
            written[label] = write_blanket(path, target, blanket, samples())
        except Exception as error:  # not every model can be quantized by it in every way
            print(f"{path.name}: {label}: {error}", flush=True)
    return written


def speeds_over_float(
    worker: Worker, path: Path, blankets: Mapping[str, Path], feeds: Feeds, budget_s: float
) -> dict[str, Comparison]:
    """How much faster than the float model each blanket is that runs."""
    files = [path, *blankets.values()]
    measured, _ = compare_files(worker, files, feeds, budget_s=budget_s)
    return {
        label: compare_blocks(measured[0].blocks_ms, found.blocks_ms, CONFIDENCE)
        for label, found in zip(blankets, measured[1:], strict=True)
        if found.ok
    }


def compared(worker: Worker, one: Path, other: Path, feeds: Feeds, budget_s: float) -> Comparison:
    """How much faster the other file is, turn by turn."""
    measured, _ = compare_files(worker, [one, other], feeds, budget_s=budget_s)
    return compare_blocks(measured[0].blocks_ms, measured[1].blocks_ms, CONFIDENCE)


def worst_sqnr_db(
    source: Source, files: Mapping[str, Path], samples: Iterable[Feeds], engine: str
) -> dict[str, float]:
    """The SQNR of each file's worst output against the float model, as `tune` measures it.

    Args:
        source: The float model, in the opset of the files: scores of older ones are not centred.
            Its weights move to a temporary folder.
        files: Quantized models by label; copies may be written beside them.
        samples: What the models are run on.
        engine: The engine whose kernels count.
    """
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(reference_worker())
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=runner.scratch))
        base = PreparedModel(source.model, Path(folder))
        kernels = stack.enter_context(open_kernels(engine, runner, SessionOptions(threads=1)))
        evaluator = AccuracyEvaluator(source, base, runner, lambda: samples, kernels=kernels)
        stack.enter_context(contextlib.closing(evaluator))
        return {label: evaluator.quality(file).worst_db for label, file in files.items()}
