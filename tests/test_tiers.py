"""Long lists of cases are divided into tiers, and stay divided so when one is added."""

from __future__ import annotations

import pytest

from qdqtune.engines._worker import Worker
from tests.tiers import tiered

CASES = [f"case {number}" for number in range(50)]


def tiers(cases: list[str]) -> dict[str, str]:
    return {
        param.values[0]: param.marks[0].name if param.marks else ""
        for param in tiered(cases, fast=3, slow=10)
    }


def test_every_case_is_in_one_tier() -> None:
    found = list(tiers(CASES).values())
    assert [found.count(tier) for tier in ("", "slow", "exhaustive")] == [3, 10, 37]
    assert tiers(CASES).keys() == set(CASES)
    assert [param.values for param in tiered([("a", 1)], slow=5)] == [("a", 1)]


def test_a_new_case_moves_one_other_per_tier_at_most() -> None:
    before, after = tiers(CASES), tiers([*CASES, "another"])
    assert sum(before[case] != after[case] for case in CASES) <= 2


def test_an_engine_in_this_process_has_no_process_that_could_be_killed() -> None:
    with Worker("simulated") as worker:
        assert worker.info().name == "simulated"
        with pytest.raises(AssertionError, match="worker_processes"):
            _ = worker.pid


@pytest.mark.usefixtures("worker_processes")
def test_a_test_about_processes_has_one() -> None:
    with Worker("simulated") as worker:
        assert worker.info().name == "simulated"
        assert worker.pid
