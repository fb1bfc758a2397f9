"""Context manager for a model opened in a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import OpenModel, Worker, WorkerFailure


@contextlib.contextmanager
def opened(
    worker: Worker,
    path: Path | str,
    options: SessionOptions | None = None,
    *,
    timeout_s: float | None = None,
) -> Iterator[OpenModel]:
    """Open a model and release it on exit.

    Raises:
        WorkerFailure: If it can't be opened.
    """
    model = worker.open(path, options, timeout_s=timeout_s)
    try:
        yield model
    finally:
        with contextlib.suppress(WorkerFailure):
            worker.release(model)
