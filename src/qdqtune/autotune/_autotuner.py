"""The autotuner: a tuning session whose outcome can be exported, saved and resumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune.autotune._pattern_profiling import add_to_cache, remember
from qdqtune.autotune._tuned_model import AnyModel, CandidateWriter, Transform
from qdqtune.autotune._tuning_session import TuningSession
from qdqtune.graph._files import without_graphsurgeon
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._dialect import Dialect
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import Ranges
from qdqtune.search._config import Config
from qdqtune.search._errors import AutotunerError, NewerVersionError
from qdqtune.search.patterns._insertion_points import ResolvedInsertionPoint
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._region_pattern import PatternSchemes, known_tensors
from qdqtune.search.patterns._state_file import (
    SavedState,
    pattern_cache_path,
    read_state,
    write_state,
)
from qdqtune.search.regions._region import Region, RegionType, walk
from qdqtune.search.regions._region_search import CombinedRegionSearch

_log = logging.getLogger(__name__)

#: Node names and op types to quantize, inputs to leave float, op types with quantized outputs.
OrtSettings = tuple[list[str], list[str], list[tuple[ir.Node, ir.Node, str]], list[str]]

# The op types that such a quantizer takes for fp8.
_FP8_OPS = frozenset({"Add", "Conv", "Gemm", "MatMul"})


def ort_settings(index: GraphIndex, edges: Collection[Edge], quant_type: str) -> OrtSettings:
    """Describe a placement by nodes; single edges are what such quantizers are told to leave out.

    Args:
        index: The graph.
        edges: Every edge that sees a quantized value.
        quant_type: What it is quantized to.

    Returns:
        Names of the nodes that read something quantized; their op types; inputs of those nodes
        that stay float all the same, as maker, reader and tensor; op types of nodes that read
        nothing quantized, but whose result is.
    """
    wanted = set(edges)
    readers = {edge.node for edge in wanted if edge.node}
    if quant_type == "fp8":
        readers = {name for name in readers if index.node[name].op_type in _FP8_OPS}
    nodes = [node for node in index.nodes if node.name in readers]
    makers = [index.value[tensor].producer() for tensor in sorted({e.tensor for e in wanted})]
    outputs = {node.op_type for node in makers if node is not None and node.name not in readers}
    left_float = []
    for node in nodes:
        for position, value in enumerate(node.inputs):
            name = value.name or "" if value is not None else ""
            producer = index.value[name].producer() if name else None
            is_quantized = Edge(name, node.name or "", position) in wanted
            if producer is not None and not is_quantized and index.is_float(name):
                left_float.append((producer, node, name))
    op_types = sorted({node.op_type for node in nodes})
    return [node.name or "" for node in nodes], op_types, left_float, sorted(outputs)


class QDQAutotunerBase(TuningSession):
    """Tunes regions that a subclass supplies: set `regions` before `initialize`.

    Regions with the same structure and shapes are tuned together. A scheme owns only its own
    points; what is exported is the union over all regions.

    Args:
        model: A model, the path of one, another autotuner's `graph`, or an onnx_graphsurgeon
            graph; it is not changed. If it is quantized, its Q/DQ are taken out, and its scales
            used again.
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
        model = without_graphsurgeon(model)
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
        for tuned, scheme in self._choices(best).items():
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
        self._progress.imports.append(frozenset(tensors))
        for tuned in self._book.by_signature.values():
            add_to_cache(self._cache, tuned, tuned.from_tensors(tensors))
        return len(tensors)

    def save_state(self, output_path: str | os.PathLike[str]) -> None:
        """Write what was measured so far, and the pattern cache beside it.

        Raises:
            OutputError: If it can't be written.
        """
        self._require_initialized()
        current = self._progress.profiling
        if current is not None:
            remember(self._cache, current)
        write_state(
            output_path,
            baseline_latency_ms=self.baseline_latency_ms,
            config=self.config,
            patterns=[
                *self.profiled_patterns,
                *([current.schemes, *current.parts] if current is not None else []),
            ],
            current_signature=self._progress.unfinished
            if current is None
            else current.schemes.pattern_signature,
            header=self._header(),
        )
        self._cache.save(pattern_cache_path(output_path))

    def load_state(self, input_path: str | os.PathLike[str]) -> None:
        """Go on where a state file ends; the settings stay those that were asked for.

        A pattern is done if it was committed, and all its schemes were measured. Another one goes
        on.

        Raises:
            FileNotFoundError: If there is no such file.
            AutotunerError: If it is damaged, or of another model, quant type or dialect.
        """
        self._require_initialized()
        state = read_state(input_path)
        self._check_same(state, input_path)
        patterns = self._book.by_signature
        by_structure = {tuned.plain.signature: tuned for tuned in patterns.values()}
        found, unknown = [], 0
        for each in state.patterns:
            tuned = patterns.get(each.pattern_signature) or by_structure.get(each.pattern_signature)
            if tuned is None:
                unknown += 1
            else:
                found.append(PatternSchemes(each.pattern, tuned.fitting(each.schemes)))
        if unknown:
            _log.warning("%s: %d patterns are not among the model's regions", input_path, unknown)
        self.profiled_patterns = found
        if state.baseline_latency_ms is not None:
            self.baseline_latency_ms = state.baseline_latency_ms
        self._load_cache(input_path)
        self._progress.unfinished = state.current_signature
        self._progress.profiling = None
        self.current_profile_region = None
        self._progress.measured, self._progress.whole_models = {}, iter(())

    def _load_cache(self, path: str | os.PathLike[str]) -> None:
        """The cache only says what to try first: a damaged one is no reason to stop."""
        try:
            self._cache.merge(PatternCache.load(pattern_cache_path(path)), False)
        except FileNotFoundError:
            pass
        except NewerVersionError:
            raise  # it would be written over
        except AutotunerError as error:
            _log.warning("the pattern cache is left out: %s", error.what)

    def _header(self) -> dict[str, Any]:
        """What a state file belongs to."""
        return {
            "quant_type": self.config.default_quant_type,
            "dialect": self.dialect.name,
            "model": self.fingerprint,
        }

    def _check_same(self, state: SavedState, path: str | os.PathLike[str]) -> None:
        if not state.header:
            _log.warning(
                "%s does not say which model it belongs to: it is taken for this one", path
            )
        saved = {"quant_type": state.config.default_quant_type, **state.header}
        for field, own in self._header().items():
            if saved.get(field, own) != own:
                raise AutotunerError(
                    f"{path} is of another {field}: {saved[field]!r}, not {own!r}.",
                    "Use the state file of this model and these settings, or start a new one.",
                )

    def _candidates(self) -> CandidateWriter:
        if self._writer is None:
            self._writer = CandidateWriter(self._model, self.dialect, self.config, self._ranges)
        return self._writer


class QDQAutotuner(QDQAutotunerBase):
    """Tunes the regions that `CombinedRegionSearch` finds: leaves first, then what they make up."""

    def _find_regions(self, graph_changed: bool) -> list[Region]:  # noqa: ARG002
        self.regions = []
        self._search_regions()
        return self.regions

    def _search_regions(self) -> None:
        """Set `regions`; a subclass may find others."""
        found = CombinedRegionSearch(
            self.graph,
            self.config.maximum_sequence_region_size,
            self.config.minimum_topdown_search_size,
        ).search_regions()
        self.regions = sorted(walk(found), key=lambda region: region.type is not RegionType.LEAF)
