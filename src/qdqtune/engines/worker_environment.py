"""What a worker tells its engine: a folder that goes with it, one for logs, and which one it is."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from qdqtune.graph.temporary_files import TemporaryFolder

SCRATCH = "QDQTUNE_SCRATCH"
"""Variable that names the folder that goes with the worker."""
LOGS = "QDQTUNE_LOGS"
"""Variable that names the folder for logs; unset if nobody wants to keep them."""
OPENING = "QDQTUNE_OPENING"
"""Variable with the number of the process, where one comparison is made in several."""

_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


def scratch_folder() -> Path:
    """Where an engine may leave files that nobody needs after it; outside a worker, our own."""
    return Path(os.environ.get(SCRATCH) or _own_scratch().path)


@functools.cache
def _own_scratch() -> TemporaryFolder:
    return TemporaryFolder()


def log_of(model: str | os.PathLike[str], engine: str) -> Path | None:
    """The file for what an engine says about one model; None if it isn't kept.

    Args:
        model: The model file; a second one of the same name has the same log.
        engine: The engine's name.
    """
    folder = os.environ.get(LOGS)
    if not folder:
        return None
    path = Path(folder, engine)
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{_NOT_IN_NAMES.sub('_', Path(model).stem)}.log"
