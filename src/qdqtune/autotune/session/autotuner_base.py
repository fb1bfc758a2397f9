"""The autotuner: a tuning session whose outcome can be exported, saved and resumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence

import onnx

from qdqtune.autotune.config import Config
from qdqtune.autotune.errors import AutotunerError
from qdqtune.autotune.patterns.pattern_cache import PatternCache
from qdqtune.autotune.patterns.resolved import ResolvedInsertionPoint
from qdqtune.autotune.patterns.tensor_seeds import known_tensors
from qdqtune.autotune.session.candidate_writer import CandidateWriter, Transform
from qdqtune.autotune.session.ort_settings import OrtSettings, ort_settings
from qdqtune.autotune.session.pattern_results import add_to_cache, remember
from qdqtune.autotune.session.saved_state import load_into, save_from
from qdqtune.autotune.session.tuned_model import AnyModel
from qdqtune.autotune.session.tuning_session import TuningSession
from qdqtune.qdq.dialect import Dialect
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import Ranges

_log = logging.getLogger(__name__)


class QDQAutotunerBase(TuningSession):
    """Tunes regions that a subclass supplies: set `regions` before `initialize`.

    Regions with the same structure and shapes are tuned together. A scheme owns only its own
    points; what is exported is the union over all regions.

    Args:
        model: A model, the path of one, or another autotuner's `graph`; it is not changed. If it
            is quantized, its Q/DQ are taken out, and its scales used again.
        dialect: A dialect, or its name; None is that of the engine on this machine.
        input_shapes: Shapes of inputs whose dims the model leaves open.
        seed: What chance starts from.

    Raises:
        TypeError: If it is no model.
        QdqtuneError: If the model can't be read or worked with.
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        dialect: Dialect | str | None = None,
        input_shapes: Mapping[str, Sequence[int | None]] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, dialect=dialect, input_shapes=input_shapes, seed=seed)
        self._proto = model if isinstance(model, onnx.ModelProto) else None
        self._ranges: Ranges | None = None
        self._writer: CandidateWriter | None = None

    @property
    def onnx_model(self) -> onnx.ModelProto:
        """The model as it was given; one from a file is the float model that is tuned."""
        if self._proto is None:
            self._proto = onnx.ModelProto.FromString(self._candidates().export(frozenset()))
        return self._proto

    def initialize(
        self, config: Config | None = None, pattern_cache: PatternCache | None = None
    ) -> None:
        """Start anew. Regions that are there already stay.

        Args:
            config: The settings; None for the defaults.
            pattern_cache: Schemes to try first; it learns what this run finds.

        Raises:
            AutotunerError: If a setting makes no sense, or a region doesn't fit the model.
        """
        super().initialize(config, pattern_cache)
        self._writer = None

    def get_resolved_insertion_points(
        self, best: bool = True, verbose: bool = False
    ) -> set[ResolvedInsertionPoint]:
        """The places that `export_onnx` quantizes, as far as schemes name them.

        What else the dialect needs for them is in `placement`; points of which it can make no use
        are in neither.

        Args:
            best: Whether the fastest scheme of the current pattern counts, not the current one.
            verbose: Whether to log them.
        """
        self._require_initialized()
        found: set[ResolvedInsertionPoint] = set()
        for tuned, scheme in self._choices(best):
            found |= tuned.quantized(scheme)
        if verbose:
            for point in sorted(found, key=str):
                _log.info("%s", point)
        return found

    def placement(self, best: bool = True) -> Placement:
        """What `export_onnx` quantizes: the places with all that the dialect needs for them."""
        self._require_initialized()
        return Placement(self._edges(best))

    def export_onnx(
        self,
        output_path: str | os.PathLike[str] | None = None,
        insert_qdq: bool = True,
        best: bool = False,
        model_transform: Transform | None = None,
    ) -> bytes:
        """Make a model: of the current scheme and the best of all other patterns.

        Args:
            output_path: Where to write it, too; what is there is replaced.
            insert_qdq: Whether anything is quantized at all.
            best: Whether the fastest scheme of the current pattern counts, not the current one.
            model_transform: Applied to the model before it is written.

        Returns:
            The model, weights inside. One over 2 GB can't be that: then it is what was written to
            `output_path`, whose weights lie beside it.

        Raises:
            AutotunerError: If it is too large to go without a file, or would not be valid.
            OutputError: If it can't be written.
        """
        self._require_initialized()
        edges = self._edges(best) if insert_qdq else frozenset()
        return self._candidates().export(edges, output_path, model_transform)

    def use_ranges(self, ranges: Ranges) -> None:
        """Let activations have scales that follow from their values, where those are known."""
        self._ranges = ranges
        self._writer = None

    def get_ort_quantization_config(self) -> OrtSettings:
        """The best placement in terms of nodes and op types; see `ort_settings`."""
        self._require_initialized()
        return ort_settings(self.graph, self._edges(best=True), self.config.default_quant_type)

    def import_insertion_points(self, quantized_tensors: Collection[str]) -> int:
        """Let what another tool quantized be tried first, pattern by pattern.

        It goes to the pattern cache, which is saved with the state. Until anything of a pattern
        was tried, it is also what is exported for it; not while other patterns are measured.

        Args:
            quantized_tensors: Names of tensors, or of what their Q or DQ gives.

        Returns:
            How many tensors of the model are meant; the log tells it, too, and warns if the names
            are mostly those of another model.

        Raises:
            AutotunerError: If that is a single text.
        """
        self._require_initialized()
        if isinstance(quantized_tensors, str):
            raise AutotunerError(f"{quantized_tensors!r} is one name.", "Give a set of names.")
        tensors = known_tensors(self.graph, quantized_tensors)
        asked = len(set(quantized_tensors))
        if not tensors and asked:
            _log.warning("none of the %d tensors is in the model", asked)
        else:
            level = logging.WARNING if 4 * len(tensors) < asked else logging.INFO
            _log.log(level, "%d of the %d quantized tensors are in the model", len(tensors), asked)
        self._imports.append(frozenset(tensors))
        for tuned in self._book.by_signature.values():
            add_to_cache(self._cache, tuned, tuned.from_tensors(tensors))
        return len(tensors)

    def save_state(self, output_path: str | os.PathLike[str]) -> None:
        """Write what was measured so far, and the pattern cache beside it.

        Raises:
            OutputError: If it can't be written.
        """
        self._require_initialized()
        if self._profiling is not None:
            remember(self._cache, self._profiling)
        save_from(self, output_path, self._unfinished)

    def load_state(self, input_path: str | os.PathLike[str]) -> None:
        """Go on where a state file ends; the settings stay those that were asked for.

        A pattern is done if it was committed, and all its schemes were measured. Another one goes
        on.

        Raises:
            FileNotFoundError: If there is no such file.
            AutotunerError: If it is damaged, or of another model, quant type or dialect.
        """
        self._require_initialized()
        self._unfinished = load_into(self, self._book.by_signature, input_path)
        self._profiling = None
        self.current_profile_region = None

    def _candidates(self) -> CandidateWriter:
        if self._writer is None:
            self._writer = CandidateWriter(self._model, self.dialect, self.config, self._ranges)
        return self._writer
