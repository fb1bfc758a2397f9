"""Lazy package exports: names are imported on first access, so the package import is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that re-exports names of its modules.

    Args:
        package: The package's name.
        homes: The module that defines each name.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - what it will be
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - what it will be
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__
