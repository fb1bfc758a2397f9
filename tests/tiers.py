"""Which cases of a long list run in which tier; CONTRIBUTING.md tells what the tiers are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest


def tiered(names: Iterable[str], *, fast: int = 0, slow: int = 0) -> list[Any]:
    """Parameters for ``pytest.mark.parametrize``: a sample in each tier, the rest in the last one.

    The sample is that of a hash: it looks arbitrary, it is the same everywhere, and a case that is
    added later moves no more than one other.

    Args:
        names: All cases.
        fast: How many of them run in `make test`.
        slow: How many more run in `make test_slow`; the rest is left to `make test_exhaustive`.
    """
    drawn = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    marks = [()] * fast + [pytest.mark.slow] * slow
    rest = [pytest.mark.exhaustive] * (len(drawn) - len(marks))
    return [
        pytest.param(name, marks=mark)
        for name, mark in zip(drawn, [*marks, *rest], strict=False)
    ]  # fmt: skip
