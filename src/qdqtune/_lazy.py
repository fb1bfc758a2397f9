"""Lazy package exports: names are imported on first access, so the package import is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str], only: Collection[str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package that re-exports names.

    Args:
        package: The package's name.
        modules: The names that each module defines, separated by spaces.
        only: Which of these names the package has; None for all of them.
    """
    homes = {
        name: module
        for module, names in modules.items()
        for name in names.split()
        if only is None or name in only
    }

    def __getattr__(name: str) -> Any:  # noqa: N807 - what it will be
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - what it will be
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__, sorted(homes)
