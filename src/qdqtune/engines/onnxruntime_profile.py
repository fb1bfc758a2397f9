"""Reads ONNX Runtime's profile: a Chrome trace with one event per executed kernel."""

from __future__ import annotations

import json
from typing import Any

from qdqtune.records.measurement import LayerTime

_KERNEL_SUFFIX = "_kernel_time"


def layer_times_of(text: str, skip_runs: int = 0) -> list[LayerTime]:
    """Sums the kernel times of each node and divides them by the runs of the model.

    Args:
        text: Contents of the profile file.
        skip_runs: First runs of the model that do not count.

    Returns:
        One entry per node, in order of first execution.

    Raises:
        ValueError: The profile holds no run beyond the skipped ones.
    """
    events: list[dict[str, Any]] = json.loads(text)
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    if len(starts) <= skip_runs:
        raise ValueError("the engine's profile holds no run of the model")
    runs = len(starts) - skip_runs
    totals_us: dict[tuple[str, str, str], float] = {}
    for event in sorted(events, key=lambda event: float(event.get("ts", 0))):
        name = str(event.get("name", ""))
        if not name.endswith(_KERNEL_SUFFIX) or event["ts"] < starts[skip_runs]:
            continue
        details = event.get("args", {})
        key = (
            name.removesuffix(_KERNEL_SUFFIX),
            str(details.get("op_name", "")),
            str(details.get("provider", "")),
        )
        totals_us[key] = totals_us.get(key, 0.0) + float(event["dur"])
    return [
        LayerTime(name, op_type, total_us / runs / 1000.0, provider)
        for (name, op_type, provider), total_us in totals_us.items()
    ]
