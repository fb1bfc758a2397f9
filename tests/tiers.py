"""Which cases of a long list run in which tier; CONTRIBUTING.md tells what the tiers are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest


def tiered(cases: Iterable[Any], *, fast: int = 0, slow: int = 0) -> list[Any]:
    """Parameters for ``pytest.mark.parametrize``: a sample in each tier, the rest in the last one.

    The sample is that of a hash: it looks arbitrary, it is the same everywhere, and a case that is
    added later moves no more than one other.

    Args:
        cases: All of them; a tuple has a value for each argument.
        fast: How many of them run in `make test`.
        slow: How many more run in `make test_slow`; the rest is left to `make test_exhaustive`.
    """
    drawn = sorted(cases, key=lambda case: hashlib.sha256(repr(case).encode()).digest())
    marks = [()] * fast + [pytest.mark.slow] * slow
    rest = [pytest.mark.exhaustive] * (len(drawn) - len(marks))
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(drawn, [*marks, *rest], strict=False)
    ]
