"""A Ray cluster of several nodes on this machine, in a process of its own.

``python -m benchmarks.ray_clusters NODES CORES`` starts it, prints its address and the process
of each node as JSON, and ends it when its input ends. No port is fixed, and the nodes together take
little memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).parents[1]
_STORE_BYTES = 80 << 20  # about the least that Ray takes
_GONE_WITHIN_S = 30.0
_ACTOR, _ENGINE = "ray::EngineNode", "qdqtune.engines._supervisor"


@dataclass(frozen=True)
class RunningCluster:
    """A cluster.

    Attributes:
        address: Where drivers find it.
        nodes: The process of each node, the head first.
    """

    address: str
    nodes: tuple[psutil.Process, ...]

    def ours(self) -> list[psutil.Process]:
        """Actors of ours and their engines that run now."""
        return [process for node in self.nodes for process in ours_below(node)]


def ours_below(node: psutil.Process) -> list[psutil.Process]:
    """Actors of ours and their engines that run on a node now."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in node.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                shown = " ".join(process.cmdline())
                if _ACTOR in shown or _ENGINE in shown:
                    found.append(process)
    return found


def still_alive(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that have not ended in time."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@contextlib.contextmanager
def running_cluster(nodes: int, cores: int) -> Iterator[RunningCluster]:
    """A cluster, for as long as the context lasts; nothing of it is left afterwards."""
    command = [sys.executable, "-m", "benchmarks.ray_clusters", str(nodes), str(cores)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    everything: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        everything = psutil.Process(process.pid).children(recursive=True)
        yield RunningCluster(told["address"], tuple(map(psutil.Process, told["nodes"])))
    finally:
        with contextlib.suppress(psutil.Error):
            everything += psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_GONE_WITHIN_S)
        process.kill()
        for each in still_alive(everything, 5.0):
            with contextlib.suppress(psutil.Error):
                each.kill()


def _main(nodes: int, cores: int) -> None:
    from ray.cluster_utils import Cluster

    printed = os.dup(1)  # what Ray prints is not our answer
    os.dup2(2, 1)
    cluster: Any = Cluster()
    started = [
        cluster.add_node(num_cpus=cores, object_store_memory=_STORE_BYTES, include_dashboard=False)
        for _ in range(nodes)
    ]
    pids = [node.all_processes["raylet"][0].process.pid for node in started]
    os.write(printed, f"{json.dumps({'address': cluster.address, 'nodes': pids})}\n".encode())
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
