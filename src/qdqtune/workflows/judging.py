"""How far the outputs of a quantized model are from those of the models it comes from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from qdqtune.calibration.inputs import Feeds
from qdqtune.calibration.quality import AS_WRITTEN, opening_options, output_sqnr
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.graph.files import load_model, save_model
from qdqtune.graph.prepared import PreparedModel
from qdqtune.records.errors import EngineError
from qdqtune.workflows.source import Source, float32_twin, has_types

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quality:
    """Decibels per output; empty where they can't be known here.

    Attributes:
        against_float: Against the float model.
        against_given: Against the Q/DQ file that was given.
    """

    against_float: dict[str, float] = field(default_factory=dict)
    against_given: dict[str, float] = field(default_factory=dict)


def judge(
    source: Source,
    base: PreparedModel,
    candidate: Path,
    worker: Worker,
    samples: Callable[[], Iterable[Feeds]],
    *,
    native: bool,
) -> Quality:
    """Run a candidate beside the models it comes from.

    Args:
        source: What the candidate was made from.
        base: Its float model.
        candidate: A file in the base's folder.
        worker: An ONNX Runtime worker.
        samples: Makes the inputs.
        native: Whether the candidate is in the worker's own dialect: then its own kernels are what
            counts; a foreign one is run as it is written.

    Raises:
        EngineError: If the engine does not run a model in its own dialect.
    """
    options = opening_options(len(base.nodes)) if native else AS_WRITTEN
    reference = base.write(base.whole(), "reference")
    if has_types(source.model, {ir.DataType.BFLOAT16}):
        reference, candidate = _twin(reference, base), _twin(candidate, base)
    try:
        against_float = output_sqnr(worker, reference, candidate, samples(), options=options)
        against_given = {}
        if source.reading is not None:
            given = _twin(source.path, base) if source.has_bfloat16 else source.path
            against_given = output_sqnr(worker, given, candidate, samples(), options=options)
    except WorkerFailure as failure:
        if native:
            raise EngineError(
                f"ONNX Runtime does not run the quantized model: {failure}",
                "Nothing was written. Leave out the op that it names, and report this.",
            ) from None
        _logger.warning("the output error could not be measured here: %s", failure)
        return Quality()
    return Quality(against_float, against_given)


def _twin(path: Path, base: PreparedModel) -> Path:
    """The float32 twin of a file: ONNX Runtime has no bfloat16 on CPUs."""
    number = len(list(base.store.folder.iterdir()))
    return save_model(float32_twin(load_model(path)), base.store.folder / f"twin{number}.onnx")
