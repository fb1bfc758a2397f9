"""How much of a difference can be seen on this machine, now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from qdqtune.autotune.search.trial import Effort
from qdqtune.engines.comparison import compare_files
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.engines.timing import typical_gain
from qdqtune.records.errors import EngineError
from qdqtune.records.tuning import QUIETER, Noise
from qdqtune.workflows.tuning.settings import Preset

Tell = Callable[[str, str], None]
"""Told a stage and what happens in it."""
Found = tuple[Noise, float, float]
"""The noise, the model's latency in milliseconds, the seconds that it took to build."""

# How many standard errors a difference must have to be seen.
_SEEN = 2.0
# How long to wait for a machine to become quiet, and how long between two looks at it.
_PART_OF_BUDGET = 0.1
_WITHOUT_BUDGET_S = 30.0
_PAUSE_S = 1.0


def check_noise(worker: Worker, path: Path, feeds: StoredFeeds, preset: Preset) -> Found:
    """Time the model against itself.

    Args:
        worker: The engine.
        path: The model.
        feeds: What it is run on.
        preset: How thorough comparisons will be.

    Returns:
        What can be seen on this machine, the model's latency in milliseconds, and the seconds that
        the engine took to build it.

    Raises:
        EngineError: If the engine doesn't run the model.
    """
    rounds, seconds = preset.rounds[Effort.SCREEN], preset.seconds[Effort.SCREEN]
    (one, other), _ = compare_files(worker, [path, path], feeds, rounds=rounds, budget_s=seconds)
    for measurement in (one, other):
        if not measurement.ok:
            raise EngineError(
                f"The engine does not run the model as it is: {measurement.error}",
                "Nothing can be gained on an engine that refuses the model. Try `qdqtune bench` "
                "on it.",
            )
    gain, error = typical_gain(one.blocks_ms, other.blocks_ms)
    noise = Noise(math.exp(gain), math.expm1(_SEEN * error))
    return noise, one.latency_ms, one.build_s


def noise_when_quiet(check: Callable[[], Found], budget_s: float | None, tell: Tell) -> Found:
    """Check the noise, and again after a while if nothing can be seen through it.

    Args:
        check: Checks it once.
        budget_s: Seconds that the whole run may take: a tenth of them may be spent waiting. None
            has no end.
        tell: Told what was found, and that the run waits.
    """
    start = time.monotonic()
    limit_s = _WITHOUT_BUDGET_S if budget_s is None else _PART_OF_BUDGET * budget_s
    found = check()
    check_s = time.monotonic() - start
    end = start + limit_s + check_s  # the first check is no waiting
    while found[0].hides_everything:
        left_s = end - time.monotonic()
        if left_s < _PAUSE_S + check_s:
            break
        seen = f"{100 * found[0].detectable:.0f} %"
        tell("noise", f"only differences from {seen} on can be seen: waiting up to {left_s:.0f} s "
             "for the machine to be quiet")  # fmt: skip
        time.sleep(_PAUSE_S)
        found = check()
    tell("noise", found[0].text)
    return found


def why_nothing_is_decided(noise: Noise) -> str:
    """The reason to hand a model back as it is; empty if something can be seen."""
    if not noise.hides_everything:
        return ""
    return (
        f"the machine is too busy to decide anything: differences below "
        f"{100 * noise.detectable:.0f} % can't be seen. {QUIETER.removesuffix('.')}"
    )
