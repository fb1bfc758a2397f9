"""Numbers in JSON, which knows no infinities."""

from __future__ import annotations

import math
from collections.abc import Mapping


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """The values, with None for those that are infinite or undefined."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
