"""Puts the stand-in where a worker finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._worker import Worker

ENGINE = "qdqtune.engines.tensorrt._engine:TensorRtEngine"
HERE = Path(__file__).parent
_REPOSITORY = HERE.parents[2]


def api_environment(
    version: str, cache_home: Path, *, fault: str = "", slowness: float = 1.0
) -> Mapping[str, str]:
    """Variables with which `tensorrt` and `cuda` are the stand-in.

    Args:
        version: The version that it stands in for.
        cache_home: Where the user's caches are.
        fault: What goes wrong, see `situation`.
        slowness: How much longer than usual everything takes.
    """
    return {
        "PYTHONPATH": os.pathsep.join(
            (str(HERE), str(_REPOSITORY), os.environ.get("PYTHONPATH", ""))
        ),
        "XDG_CACHE_HOME": str(cache_home),
        "STAND_IN_TRT_VERSION": version,
        "STAND_IN_TRT_FAULT": fault,
        "STAND_IN_TRT_SLOWNESS": str(slowness),
    }


class StandInWorkers:
    """Workers with the engine on the stand-in, one for each version, started when needed.

    Args:
        folder: For their caches, their logs, and the file that says what goes wrong.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fault = folder / "fault"
        self._workers: dict[str, Worker] = {}

    def worker(self, version: str) -> Worker:
        """The worker of a version; nothing goes wrong in it."""
        self.set_fault("")
        if version not in self._workers:
            self._workers[version] = self.new_worker(version)
        return self._workers[version]

    def new_worker(self, version: str, **given: Any) -> Worker:
        """Another worker, which is the caller's to close."""
        return Worker(
            ENGINE,
            timeout_s=30.0,
            log_path=self.folder / version / "worker.log",
            host=LocalHost(
                variables=api_environment(
                    version, self.folder / "caches", fault=f"file:{self._fault}"
                )
            ),
            **given,
        )

    def set_fault(self, fault: str) -> None:
        """Says what goes wrong from now on."""
        self._fault.write_text(fault)

    def builds(self, version: str, model: Path) -> int:
        """How often a model was built in that version."""
        log = self.folder / version / "tensorrt" / f"{model.stem}.log"
        return log.read_text().count("] Building ") if log.exists() else 0

    def close(self) -> None:
        """Ends them."""
        for worker in self._workers.values():
            worker.close()
