"""How far the outputs of a quantized model are from those of the models it comes from."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from qdqtune.calibration.inputs import Feeds
from qdqtune.calibration.quality import AS_WRITTEN, Reference, opening_options
from qdqtune.engines.interface import SessionOptions
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


class Judge:
    """Runs candidates beside the models they come from, which are run once.

    Args:
        source: What the candidates are made from.
        base: Its float model.
        worker: An ONNX Runtime worker.
        samples: Makes the inputs.
        native: Whether candidates are in the worker's own dialect: then its own kernels are what
            counts; a foreign one is run as it is written.
    """

    def __init__(
        self,
        source: Source,
        base: PreparedModel,
        worker: Worker,
        samples: Callable[[], Iterable[Feeds]],
        *,
        native: bool,
    ) -> None:
        self._source = source
        self._base = base
        self._worker = worker
        self._samples = samples
        self._native = native
        self._options = opening_options(len(base.nodes)) if native else AS_WRITTEN
        self._needs_twin = has_types(source.model, {ir.DataType.BFLOAT16})
        self._float: Reference | None = None
        self._given: Reference | None = None

    def quality(self, candidate: Path) -> Quality:
        """How far a candidate is from the float model, and from the file as it was given.

        Args:
            candidate: A file in the base's folder.

        Raises:
            EngineError: If the engine does not run a model in its own dialect.
        """
        try:
            against_float = self._against_float(candidate, None)
            against_given = {}
            if self._source.reading is not None:
                against_given = self._given_file().sqnr_db(self._twin_of(candidate))
        except WorkerFailure as failure:
            if self._native:
                raise EngineError(
                    f"ONNX Runtime does not run the quantized model: {failure}",
                    "Nothing was written. Leave out the op that it names, and report this.",
                ) from None
            _logger.warning("the output error could not be measured here: %s", failure)
            return Quality()
        return Quality(against_float, against_given)

    def roughly_db(self, candidate: Path) -> float:
        """The worst output's distance from the float model, without the engine's own kernels.

        A session that optimizes nothing opens fast; to rank many candidates, it is near enough.
        """
        try:
            return min(self._against_float(candidate, AS_WRITTEN).values(), default=math.inf)
        except WorkerFailure:
            return -math.inf

    def close(self) -> None:
        """Forget the outputs of the models that were run."""
        for reference in (self._float, self._given):
            if reference is not None:
                reference.close()

    def _against_float(self, candidate: Path, options: SessionOptions | None) -> dict[str, float]:
        if self._float is None:
            path = self._twin_of(self._base.write(self._base.whole(), "reference"))
            self._float = self._run(path)
        return self._float.sqnr_db(self._twin_of(candidate), options)

    def _given_file(self) -> Reference:
        if self._given is None:
            path = self._source.path
            self._given = self._run(_twin(path, self._base) if self._source.has_bfloat16 else path)
        return self._given

    def _run(self, model: Path) -> Reference:
        return Reference(self._worker, model, self._samples(), options=self._options)

    def _twin_of(self, path: Path) -> Path:
        return _twin(path, self._base) if self._needs_twin else path


def _twin(path: Path, base: PreparedModel) -> Path:
    """The float32 twin of a file: ONNX Runtime has no bfloat16 on CPUs."""
    number = len(list(base.store.folder.iterdir()))
    return save_model(float32_twin(load_model(path)), base.store.folder / f"twin{number}.onnx")
