"""What the measurements of a search say about one op: never more than was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.config import TuneConfig
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.search._space import Form, Space, State, group_ops
from qdqtune.workflows.tuning._effects import GroupEffects
from qdqtune.workflows.tuning._finalists import Finalized
from qdqtune.workflows.tuning._journal_format import encode
from qdqtune.workflows.tuning._report_details import DetailsGatherer
from qdqtune.workflows.tuning._search import SearchOutcome

Measured = tuple[str, State, State, float]
"""The name of a candidate, its choice, that of its reference, and the log speedup over that."""

FLOAT: State = frozenset()


@pytest.fixture(scope="module")
def space() -> Space:
    settings = {"layers": 4, "width": 32, "head_width": 16, "sequence": 8, "vocabulary": 50}
    proto = zoo.build("bert", **settings)
    index = GraphIndex(ir.from_proto(onnx.shape_inference.infer_shapes(proto)))
    planner = QuantizationPlanner(index, dialect_named("openvino"))
    groups = group_ops(index, planner).groups
    return Space(planner, groups, {})


def lines(space: Space, measured: Iterable[Measured]) -> Sequence[str]:
    return [
        encode(
            {
                "kind": "measurement", "id": name, "candidate": space.key(state),
                "reference": space.key(reference), "groups": sorted(state), "gain": gain,
                "error": 0.005, "failure": None, "effort": "screen", "latency_ms": 1.0,
                "reference_ms": 1.0,
            }
        )
        for name, state, reference, gain in measured
    ]  # fmt: skip


def one_of(space: Space) -> tuple[int, int]:
    """Return a group of ops that may be quantized at run time, and that of their static form."""
    number = min(space.in_form(Form.DYNAMIC))
    return number, min(space.rivals([number]))


def said(space: Space, measured: Iterable[Measured], result: State, number: int) -> str:
    effects = GroupEffects(space, lines(space, measured), space.key(result))
    return effects.text(number, is_chosen=number in result)


def test_an_op_that_others_quantize_statically_is_not_said_to_be_float_in_them(
    space: Space,
) -> None:
    number, static = one_of(space)
    dynamic, whole = frozenset({number}), frozenset({static})
    mixed = space.closed(space.switched(space.weighted(), dynamic))
    measured = [
        ("c0000", mixed, FLOAT, 0.5),
        ("c0001", space.closed(space.weighted()), mixed, -0.2),
    ]
    text = said(space, measured, mixed, number)
    assert text.startswith("quantizing it at run time instead of quantizing it, all else equal,")
    assert "22.1\N{NO-BREAK SPACE}% faster" in text
    # Better evidence is a comparison with a model in which it is float.
    measured += [("c0002", whole, FLOAT, 0.1), ("c0003", dynamic, FLOAT, 0.2)]
    text = said(space, measured, mixed, number)
    assert text.startswith("quantizing it at run time, all else equal, made the model")


def test_without_a_candidate_that_left_it_float_that_is_said(space: Space) -> None:
    everything = space.switched(space.everything, space.in_form(Form.DYNAMIC))
    number = min(space.in_form(Form.DYNAMIC))
    measured = (
        ("c0000", everything, FLOAT, 0.5),
        ("c0001", space.closed(space.everything), FLOAT, 0.38),
    )
    text = said(space, measured, space.closed(everything), number)
    assert text.startswith("no candidate left it float; the fastest candidate that quantizes it (")
    assert "12.7\N{NO-BREAK SPACE}% slower than the result" in text


def test_of_a_float_op_the_nearest_evidence_counts_in_whatever_form(space: Space) -> None:
    number, static = one_of(space)
    result = space.closed(space.weighted() - {static})
    dynamic = space.closed(space.switched(result, frozenset({number})))
    assert number in dynamic
    assert static not in result
    measured = (
        ("c0000", result, FLOAT, 0.5),
        ("c0001", dynamic, FLOAT, 0.45),
        ("c0002", space.closed(frozenset({static})), frozenset({0, 1, 2, 3, 4, 5}), 0.1),
        ("c0003", space.closed(space.everything), FLOAT, 0.3),
    )
    text = said(space, measured, result, static)
    assert "candidate that quantizes it at run time (c0001" in text
    assert "5.1\N{NO-BREAK SPACE}% slower than the result" in text


def test_a_comparison_of_many_changes_is_no_evidence_about_one(space: Space) -> None:
    many = space.closed(space.weighted())
    number = max(space.weighted() - {0})
    assert len(many) > 11
    measured = (
        ("c0000", many, FLOAT, 0.3),
        ("c0001", frozenset({0}), FLOAT, 0.4),
    )
    text = said(space, measured, frozenset({0}), number)
    assert text.startswith("it was not tried alone: the fastest candidate that quantizes it")
    assert text.endswith("other choices")


def test_a_near_candidate_counts_more_than_a_faster_one_that_is_far_away(space: Space) -> None:
    many = space.closed(space.weighted())
    number = min(many)
    near = many - {number}
    measured = (
        ("c0000", many, FLOAT, 0.5),
        ("c0001", near, FLOAT, 0.45),
        ("c0002", frozenset({max(many)}), FLOAT, 0.48),
    )
    text = said(space, measured, many, number)
    assert text.startswith("a candidate that leaves it float (c0001")
    assert "5.1\N{NO-BREAK SPACE}% slower than the result" in text


def test_only_what_the_repair_left_float_is_not_accurate_enough(space: Space) -> None:
    """What the search left float because it is slower is not said to have cost accuracy."""
    alone = [n for n in sorted(space.weighted()) if space.closed(frozenset({n})) == {n}]
    harmful, slower, *rest = alone[:6]
    fastest = space.closed(frozenset({harmful, slower, *rest}))
    result = space.closed(frozenset(rest))
    measured = [
        ("c0000", result, FLOAT, 0.5),
        ("c0001", result | {slower}, result, -0.11),
        ("c0002", fastest, FLOAT, 0.6),
    ]
    gatherer = DetailsGatherer(
        run=SimpleNamespace(
            request=SimpleNamespace(config=TuneConfig()),
            journal=SimpleNamespace(kept_lines=lines(space, measured)),
        ),
        baseline=SimpleNamespace(),
        calibration=SimpleNamespace(planner=space.planner),
        evaluator=SimpleNamespace(problem=SimpleNamespace(space=space)),
        outcome=SearchOutcome(state=result),
    )  # type: ignore[arg-type]
    final = Finalized(lost_to_accuracy="SQNR 14.9 dB", left_float=frozenset({harmful}))
    reasons = gatherer._reasons(space.placement(result), final, {})
    assert "not accurate enough" in reasons[space.groups[harmful].nodes[0]]
    told = reasons[space.groups[slower].nodes[0]]
    assert told.startswith("quantizing it, all else equal, made the model 11.6")
    assert "slower" in told
