"""Write the time of each layer to a file, in the common `--exportProfile` format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qdqtune.graph.files import write_text
from qdqtune.records.measurement import LayerTime


def write_profile(layers: Sequence[LayerTime], runs: int, target: Path) -> None:
    """Write a profile: the number of runs, then one entry per layer in order of execution.

    Args:
        layers: The layers, with milliseconds per run.
        runs: The number of runs behind the times.
        target: The file; its folder is created.
    """
    total = sum(layer.ms for layer in layers) or 1.0
    entries = [
        {
            "name": layer.name,
            "timeMs": layer.ms * runs,
            "averageMs": layer.ms,
            "medianMs": layer.ms,
            "percentage": 100 * layer.ms / total,
        }
        for layer in layers
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([{"count": runs}, *entries], indent=1) + "\n"
    write_text(target, text, force=True)
