"""What `report.html` shows beyond summary and measurements, gathered at the end of a run."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.calibration._layer_errors import own_errors
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._files import load_model, write_text
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.graph._shapes import at_shapes, infer_shapes
from qdqtune.records._accuracy import SQNR, OpError
from qdqtune.records._errors import QdqtuneError
from qdqtune.records._layers import MappedLayer
from qdqtune.records._placement import Placement
from qdqtune.records._precision import QUANT_TYPES
from qdqtune.records._report import (
    FLOAT,
    QUANTIZED,
    ReportDetails,
    TensorRow,
)
from qdqtune.search.regions._region import leaves
from qdqtune.search.regions._scope_search import find_regions
from qdqtune.workflows._graph_view import NodeFacts, forms_of, graph_view
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import ChoiceAccuracy
from qdqtune.workflows.tuning._baseline import Baseline, Calibration
from qdqtune.workflows.tuning._effects import GroupEffects
from qdqtune.workflows.tuning._finalists import Finalized
from qdqtune.workflows.tuning._layer_changes import layer_changes, layer_numbers
from qdqtune.workflows.tuning._modes import AssemblyProblem
from qdqtune.workflows.tuning._pattern_rows import pattern_rows
from qdqtune.workflows.tuning._preflight import layers_told
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._search import CandidateEvaluator, SearchOutcome

_logger = logging.getLogger(__name__)

_PROFILE_RUNS = 20
_ERROR_SAMPLES = 4
_MOST_EVALUATED = 4
# Measuring for the report takes at most this part of the run's time, or these seconds.
_PART, _LEAST_S = 0.1, 10.0
_BY_ENGINE = "float in the file, but the engine runs it in integers: all around it is quantized"
RESULT = "tuned"
"""The name of the result among the candidates."""


@dataclass(frozen=True)
class DetailsGatherer:
    """Gathers the details of a run's report, as far as there is time.

    Attributes:
        run: The run.
        baseline: The float model.
        calibration: What can be quantized.
        evaluator: Has the search problem and the measurements.
        outcome: The outcome of the search.
    """

    run: TuningRun
    baseline: Baseline
    calibration: Calibration
    evaluator: CandidateEvaluator
    outcome: SearchOutcome

    def gather(self, final: Finalized, accuracy: ChoiceAccuracy) -> ReportDetails:
        """Measure and describe what the report shows.

        Args:
            final: The result.
            accuracy: Measures candidates as they can be exported.
        """
        run, missing = self.run, list[str]()
        run.reporter.tell("report", "profiling the models")
        spend = _Allowance(run, run.reporter.elapsed_s)
        keeps, earlier = final.keeps_earlier and final.earlier is not None, final.earlier
        placement = earlier.placement if keeps and earlier is not None else final.placement
        file = run.folder / names.FINAL if keeps else run.folder.staged / names.FINAL
        before, after = self._profiles(file if placement else None, spend, missing)
        layers = layer_changes(self.baseline.base.index, before, after or None)
        in_integers = self._in_integers(placement, after)
        errors = self._errors(file, spend, missing) if placement else {}
        sqnr_db = self._sqnr_db(accuracy, spend, missing)
        with at_shapes(self.baseline.base.index.model, run.provider.shapes):
            details = details_of(run, None)
            reasons = self._reasons(placement, final, sqnr_db)
            facts = NodeFacts(
                reasons | dict.fromkeys(in_integers, _BY_ENGINE),
                self._areas(),
                layer_numbers(layers),
                {name: e.sqnr_db for name, e in errors.items() if math.isfinite(e.sqnr_db)},
                in_integers,
            )
            graph = graph_view(self.calibration.planner, placement, facts)
            tensors = self._tensors(errors, placement, in_integers)
        return replace(
            details,
            graph=graph,
            layers=layers,
            patterns=pattern_rows(
                self.evaluator.schemes_tried,
                self.calibration.planner,
                placement,
                layers,
                self._inaccurate(sqnr_db),
            ),
            tensors=tensors,
            tensors_on=f"{_ERROR_SAMPLES} samples of the calibration data" if errors else "",
            candidates=self._candidates(placement),
            sqnr_db=sqnr_db,
            missing=tuple(missing),
        )

    def _profiles(
        self, file: Path | None, spend: _Allowance, missing: list[str]
    ) -> tuple[list[MappedLayer], list[MappedLayer]]:
        """Return the layers of the float model and of the result."""
        if not spend.allows(2.0 * self.run.budget.open_s):
            missing.append("Layers: there was no time to profile the models.")
            return [], []
        before = self._profile(self.baseline.file)
        after = self._profile(file) if file is not None and before else []
        if not before:
            missing.append("Layers: the engine does not report them.")
        return before, after

    def _in_integers(self, placement: Placement, layers: Sequence[MappedLayer]) -> frozenset[str]:
        """Return ops that are float in the file, and that the engine quantizes itself."""
        planner = self.calibration.planner
        forms = forms_of(planner, placement)
        return frozenset(
            name
            for layer in layers
            if layer.executes and layer.precision in QUANT_TYPES
            for name, op_type in zip(layer.nodes, layer.node_types, strict=True)
            if op_type in WEIGHTED_OPS and forms.get(name) == FLOAT
        )

    def _profile(self, file: Path) -> list[MappedLayer]:
        found = layers_told(self.run.engine, file, self.run.feeds, _PROFILE_RUNS)
        model = load_model(file)
        infer_shapes(model)
        return nodes_of_layers(GraphIndex(model), found) if found else []

    def _errors(self, file: Path, spend: _Allowance, missing: list[str]) -> dict[str, OpError]:
        """Measure the error that each op's own quantization adds, on the user's data."""
        run = self.run
        if not run.provider.is_data:
            return {}
        if not spend.allows(3.0 * run.budget.evaluation_s):
            missing.append("Errors of layers: there was no time to measure them.")
            return {}
        run.reporter.tell("report", "measuring the error of each layer")
        samples = itertools.islice(run.provider.evaluation_samples(), _ERROR_SAMPLES)
        try:
            return own_errors(run.runner, self.baseline.file, file, samples)
        except QdqtuneError as error:
            missing.append(f"Errors of layers: {error.what}")
            return {}

    def _tensors(
        self, errors: dict[str, OpError], placement: Placement, in_integers: frozenset[str]
    ) -> tuple[TensorRow, ...]:
        ranges = self.calibration.inserter.encoder.ranges.by_tensor
        forms = forms_of(self.calibration.planner, placement)
        forms |= dict.fromkeys(in_integers, QUANTIZED)
        index = self.baseline.base.index
        rows = []
        for error in sorted(errors.values(), key=lambda each: each.sqnr_db):
            # The result may hold tensors that the float model has no name for.
            sizes = index.shape(error.tensor) if error.tensor in index.value else None
            known = [size for size in sizes or () if size is not None]
            count = math.prod(known) * _ERROR_SAMPLES if sizes and len(known) == len(sizes) else 0
            rows.append(
                TensorRow(
                    error.tensor, error.node, error.op_type,
                    error.sqnr_db if math.isfinite(error.sqnr_db) else None,
                    error.max_error, error.max_value,
                    math.sqrt(error.signal / count) if count else None,
                    ranges.get(error.tensor), forms.get(error.node, ""),
                )
            )  # fmt: skip
        return tuple(rows)

    def _sqnr_db(
        self, accuracy: ChoiceAccuracy, spend: _Allowance, missing: list[str]
    ) -> dict[str, float]:
        """Measure the error of whole-model placements and of the fastest candidates."""
        seeds = [state for state in self.evaluator.problem.seeds.values() if state]
        # What the engine refused is not built again, and what there was no time for not at all.
        seeds = [s for s in seeds if self.evaluator.has_tried(s)]
        seeds = [s for s in seeds if not self.evaluator.candidate_of(s).failure]
        fastest = self.evaluator.fastest_first()
        states = dict.fromkeys([self.outcome.state, *seeds, *fastest[:_MOST_EVALUATED]])
        evaluation_s = self.run.budget.evaluation_s
        if accuracy.inserter is not self.calibration.inserter:  # they are other files
            evaluation_s += self.run.budget.candidate_s
        found, skipped = dict[str, float](), 0
        progress, tried = self.run.reporter.progress("report"), dict.fromkeys([*states, *fastest])
        for number, state in enumerate(tried):
            progress("candidates compared with float", number, len(tried))
            name = self.evaluator.candidate_of(state).name
            is_known = accuracy.knows(SQNR, state)
            is_wanted = state in states and spend.allows(evaluation_s)
            skipped += bool(name) and state in states and not is_known and not is_wanted
            if name and (is_known or is_wanted):
                decibels = accuracy.measured(SQNR, state)
                if decibels is not None and math.isfinite(decibels):
                    found[name] = decibels
        if skipped:
            missing.append(f"Errors of {skipped} candidates: there was no time to measure them.")
        return found

    def _candidates(self, placement: Placement) -> dict[str, str]:
        """Return the ids of whole-model choices, and of the result."""
        names_of, space = self.run.journal.names, self.evaluator.problem.space
        keys = {label: space.key(state) for label, state in self.evaluator.problem.seeds.items()}
        keys[RESULT] = placement.digest()
        return {label: names_of[key] for label, key in keys.items() if key in names_of}

    def _areas(self) -> list[tuple[str, Sequence[str]]]:
        problem, index = self.evaluator.problem, self.calibration.planner.index
        if isinstance(problem, AssemblyProblem):
            return [(f"fusion group {each.number}", each.nodes) for each in problem.units.groups]
        return [
            (f"region {region.id}", [index.nodes[n].name or "" for n in region.get_nodes()])
            for region in leaves(find_regions(index, self.calibration.grouping.divided_by))
        ]

    def _inaccurate(self, sqnr_db: Mapping[str, float]) -> set[str]:
        """Return the ids of candidates that are not accurate enough, as far as it is known."""
        limit_db = self.run.request.config.min_sqnr_db
        return {name for name, db in sqnr_db.items() if limit_db is not None and db < limit_db}

    def _reasons(
        self, placement: Placement, final: Finalized, sqnr_db: Mapping[str, float]
    ) -> dict[str, str]:
        """Say of every node why it is quantized or float."""
        planner, space = self.calibration.planner, self.evaluator.problem.space
        unused = space.closed(self.outcome.state) if not placement and final.reason else set()
        compared = space.key(self.outcome.state) if unused else placement.digest()
        called = "the fastest that was found" if unused else "the result"
        lines = self.run.journal.kept_lines
        effects = GroupEffects(space, lines, compared, called, self._inaccurate(sqnr_db))
        chosen = space.nearest(placement)
        harmful = final.left_float - chosen
        reasons = dict(planner.left_float)
        for number, group in enumerate(space.groups):
            if number in harmful:
                text = "it was faster quantized, but not accurate enough"
            elif number in unused:
                text = f"the model is kept as given: {final.reason}"
            else:
                text = effects.text(number, is_chosen=number in chosen)
            for name in group.nodes:
                if number in chosen or name not in reasons:
                    reasons[name] = text
        for name in planner.units:
            reasons.setdefault(name, "it was not among the choices of the search")
        for node in planner.index.nodes:
            reasons.setdefault(node.name or "", "it is part of the op before it")
        return reasons


def details_of(run: TuningRun, calibration: Calibration | None) -> ReportDetails:
    """Return what is known of every run; the graph only if it is known what can be quantized."""
    details = ReportDetails(str(run.request.config.output_dir), run.header["model"])
    if calibration is None:
        gone = "Graph, layers, errors: the run ended before it was known what can be quantized."
        return replace(details, missing=(gone,))
    planner = calibration.planner
    graph = graph_view(planner, Placement(), NodeFacts(planner.left_float))
    return replace(details, graph=graph)


def write_details(path: Path, details: ReportDetails) -> None:
    """Write `report.json`.

    Raises:
        OutputError: If it can't be written.
    """
    write_text(path, json.dumps(details.to_dict(), allow_nan=False) + "\n", force=True)


@dataclass(frozen=True)
class _Allowance:
    """The time for measurements that only the report needs."""

    run: TuningRun
    began_s: float

    def allows(self, seconds: float) -> bool:
        """Whether something that takes this long fits."""
        elapsed_s = self.run.reporter.elapsed_s
        most_s = max(_LEAST_S, _PART * self.began_s)
        ends_s = elapsed_s - self.began_s + seconds
        return ends_s <= most_s and seconds <= self.run.reporter.left_s - self.run.budget.write_s
