"""An engine may answer anything: a worker returns what makes sense, or says that it doesn't."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.engines._comparison import compare_files
from qdqtune.engines._worker import FailureKind, OpenModel, StoredFeeds, Worker, WorkerFailure
from qdqtune.records._measurement import Measurement

INFO = {"name": "e", "version": "1", "device": "d", "isa": "i", "threads": 1, "options": {"a": "b"}}
LAYER = {"name": "n", "op_type": "Conv", "ms": 1.0, "origins": ["n"], "inputs": [], "outputs": []}
SOUND: dict[str, Any] = {
    "info": {**INFO, "takes_threads": True, "float_type": "float32"},
    "open": {
        "session": 1,
        "inputs": [{"name": "x", "dtype": "float32", "shape": [1, "n", None]}],
        "seconds": 0.1,
    },
    "feed": {"seconds": 0.1},
    "time": {"samples_ms": [1.0, 2.0], "seconds": 0.003, "contended_s": 0.0},
    "layers": {"layers": [LAYER, LAYER], "seconds": 0.1},
    "run": None,
    "close": None,
}

ABSURD = (
    None, True, False, 0, -1, 1, 10**400, -(10**400), 2**63, 0.0, -0.0, 5e-324, 1e14, 1e308, -1e308,
    math.nan, math.inf, -math.inf, "", "soon", "1.0", "x" * 100_000, [], [[]], [[[[[]]]]], {},
    {"a": {}}, [None] * 1000, [math.nan], [10**400], {"seconds": math.nan}, "\ud800", "\x1b[31m",
)  # fmt: skip

anything = st.recursive(
    st.sampled_from(ABSURD) | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


class _Child:
    """Answers what it is told to, as a child's JSON would read."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies = replies
        self.pid = 0

    def request(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        reply = copy.deepcopy(self.replies[op])
        if op == "time" and reply == SOUND["time"]:
            reply["samples_ms"] = [1.0] * arguments["runs"]
        return reply

    def close(self) -> None:
        """There is nothing to end."""


def asked(worker: Worker) -> dict[str, Callable[[], object]]:
    model = OpenModel("m", (), 0.0, 1, 1)
    feeds = {"x": np.zeros(1, np.float32)}
    return {
        "info": lambda: worker.info().to_dict(),
        "open": lambda: worker.open("m"),
        "feed": lambda: worker.feed(model, feeds),
        "time": lambda: Measurement((tuple(worker.time(model, 2)),)),
        "layers": lambda: worker.layers(model),
        "run": lambda: worker.run(model, feeds),
        "close": lambda: worker.release(model),
    }


def worker_that_answers(replies: dict[str, Any]) -> Worker:
    worker = Worker("nobody:Engine")
    worker.process.child = _Child({**SOUND, **replies})  # type: ignore[assignment]
    worker.process.generation = 1
    return worker


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something could be put instead, the whole included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path]
    for key, each in inner:
        nested = isinstance(each, dict | list)
        found += places(each, (*path, key)) if nested else [(*path, key)]
    return found


def replaced(value: Any, path: tuple[Any, ...], by: Any, *, missing: bool = False) -> Any:
    if not path:
        return by
    result = copy.deepcopy(value)
    holder = result
    for key in path[:-1]:
        holder = holder[key]
    if missing and isinstance(holder, dict):
        del holder[path[-1]]
    else:
        holder[path[-1]] = by
    return result


def check(op: str, reply: Any) -> None:
    """Asking ends in a value that can be counted on, or in a failure."""
    with worker_that_answers({op: reply}) as worker:
        failure = _failure_of(asked(worker)[op])
        if failure is not None:
            assert failure.kind is FailureKind.ERROR
            assert 0 < len(failure.what) < 500
        for spent_s in (
            worker.totals.building_s,
            worker.totals.timing_s,
            worker.totals.contended_s,
        ):
            assert isinstance(spent_s, float)
            assert 0.0 <= spent_s < math.inf


def _failure_of(ask: Callable[[], object]) -> WorkerFailure | None:
    try:
        ask()
    except WorkerFailure as failure:
        return failure
    return None


@pytest.mark.parametrize("op", [op for op, reply in SOUND.items() if reply is not None])
def test_sound_answers_are_understood(op: str) -> None:
    with worker_that_answers({}) as worker:
        asked(worker)[op]()


@pytest.mark.parametrize("op", list(SOUND))
def test_absurd_values_in_every_place_are_values_or_failures(op: str) -> None:
    for path in places(SOUND[op]) if SOUND[op] is not None else [()]:
        for value in ABSURD:
            check(op, replaced(SOUND[op], path, value))
        check(op, replaced(SOUND[op], path, None, missing=True))


@given(st.sampled_from(list(SOUND)), anything, st.data())
def test_anything_anywhere_is_a_value_or_a_failure(
    op: str, value: Any, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(places(SOUND[op]) if SOUND[op] is not None else [()]))
    check(op, replaced(SOUND[op], path, value))


@pytest.mark.parametrize("op", ["open", "feed", "time", "layers", "close"])
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:12])
def test_a_comparison_ends_with_failed_models_or_finite_numbers(op: str, value: object) -> None:
    replies = [replaced(SOUND[op], path, value) for path in places(SOUND[op] or {})]
    for reply in replies:
        with worker_that_answers({op: reply}) as worker:
            feeds = StoredFeeds(worker.scratch / "x.npz")
            measured, compared = compare_files(
                worker, ["a", "b"], feeds, runs=2, take_layers=lambda number, layers: None
            )
        assert all(each.ok or each.error for each in measured)
        for comparison in filter(None, compared):
            assert math.isfinite(comparison.ratio)


@pytest.mark.parametrize("latency_ms", [1e14, 5e-324, 1e-7, 10**400, 1e308])
def test_a_latency_that_no_run_can_have_is_a_failure(latency_ms: float) -> None:
    measured = Measurement(((1.0, latency_ms),))
    assert measured.error is not None
    assert "impossible latency" in measured.error


@pytest.mark.parametrize("latency_ms", [1e-6, 1e9])
def test_extreme_latencies_are_compared(latency_ms: float) -> None:
    class Slow(_Child):
        def request(self, op: str, timeout_s: float, **arguments: Any) -> Any:
            reply = super().request(op, timeout_s, **arguments)
            if op == "time":
                reply["samples_ms"] = [latency_ms] * arguments["runs"]
                assert arguments["runs"] < 100_000
            return reply

    with Worker("nobody:Engine") as worker:
        worker.process.child = Slow(SOUND)  # type: ignore[assignment]
        worker.process.generation = 1
        feeds = StoredFeeds(worker.scratch / "x.npz")
        _, (comparison,) = compare_files(worker, ["a", "b"], feeds, budget_s=0.2)
    assert comparison is not None
    assert comparison.ratio == 1.0
