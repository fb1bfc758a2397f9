"""Packages whose names are imported when they are asked for, so that importing them is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that offers names of its modules.

    Args:
        package: The package's name.
        homes: The module of each name.
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
