"""Places on this machine: cores, devices and memory of a worker's processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from qdqtune.engines import _hosts as hosts
from qdqtune.engines._hosts import LocalHost, usable_cores
from qdqtune.engines._worker import Worker

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins a process")


def test_the_cores_that_may_be_used_are_those_of_this_process() -> None:
    assert usable_cores() == sorted(psutil.Process().cpu_affinity())


@ONLY_LINUX
@pytest.mark.parametrize("position", [0, -1])
def test_a_worker_stays_on_its_core_and_so_do_its_new_processes(position: int) -> None:
    core = usable_cores()[position]
    with Worker("simulated", host=LocalHost([core])) as worker:
        for opening in range(3):
            worker.restart(opening)
            worker.info()
            assert psutil.Process(worker.pid).cpu_affinity() == [core]
    assert usable_cores() == sorted(os.sched_getaffinity(0))


def test_a_worker_sees_the_device_that_its_place_has(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(hosts, "ChildProcess", lambda *given: started.append(given))
    place = LocalHost((), {"CUDA_VISIBLE_DEVICES": "1"}, 3 << 30, "GPU 1")
    place.start("module:Class", {"CUDA_VISIBLE_DEVICES": "0,1", "A": "b"}, Path("log"), None)
    place.start("module:Class", {}, None, 1 << 30)
    (_, variables, log, memory), (_, _, _, least) = started
    assert variables == {"CUDA_VISIBLE_DEVICES": "1", "A": "b"}
    assert (log, memory, least) == (Path("log"), 3 << 30, 1 << 30)
