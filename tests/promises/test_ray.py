"""Workers on a real Ray cluster of this machine: the same result, whatever ends in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest
from benchmarks.ray_clusters import RunningCluster, ours_below, running_cluster, still_alive

from qdqtune import zoo
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import matmul_file

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
# Subgraphs whose builds take real time, so that there is a middle.
WAITING = {"build_s": "0.2", "build_kernel_s": "0", "wait": "1"}
_GONE_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster(nodes=3, cores=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(zoo.build("resnet18", width=16, image=64), path)
    return path


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with one worker, here."""
    return tune(
        model, engine="simulated", workflow="subgraph", preset="quick",
        output_dir=tmp_path_factory.mktemp("alone") / "run",
    ).output_dir  # fmt: skip


def start(
    model: Path, output: Path, address: str, workers: int, options: dict[str, str]
) -> subprocess.Popen[str]:
    """Tunes on a cluster, in a process group of its own."""
    command = [
        sys.executable, "-m", "qdqtune", "tune", str(model), "--engine", "simulated",
        "--workflow", "subgraph", "--preset", "quick", "--cluster", address,
        "--workers", str(workers), "-o", str(output),
        *(part for each in options.items() for part in ("--engine_option", "=".join(each))),
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Reads what a run says until it says something."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError(f"it never said {text!r}: {''.join(said)}")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=240)
    return process.returncode, said


def summary(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return found


def placement(output: Path) -> bytes:
    return (output / "placement.json").read_bytes()


def test_a_run_on_a_cluster_finds_what_it_finds_here(tmp_path: Path) -> None:
    model = matmul_file(tmp_path)
    here = tune(model, engine="simulated", workflow="subgraph", preset="quick",
                output_dir=tmp_path / "here")  # fmt: skip
    with running_cluster(nodes=2, cores=1) as cluster:
        code, said = finish(start(model, tmp_path / "run", cluster.address, 2, {}))
        assert code == 0, said
        assert still_alive(cluster.ours(), 10.0) == []
    assert placement(tmp_path / "run") == placement(here.output_dir)
    workers = summary(tmp_path / "run")["workers"]
    assert len({each["name"] for each in workers}) == 2
    assert all(each["jobs"] and not each["left_out"] for each in workers)


@SLOW
@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_finds_the_same(
    workers: int, cluster: RunningCluster, model: Path, alone: Path, tmp_path: Path
) -> None:
    code, said = finish(start(model, tmp_path / "run", cluster.address, workers, {}))
    assert code == 0, said
    assert placement(tmp_path / "run") == placement(alone)
    assert len(summary(tmp_path / "run")["workers"]) == (workers if workers > 1 else 0)


@SLOW
def test_a_node_that_is_killed_costs_one_trial(model: Path, alone: Path, tmp_path: Path) -> None:
    with running_cluster(nodes=3, cores=2) as cluster:
        process = start(model, tmp_path / "run", cluster.address, 3, WAITING)
        wait_for(process, "subgraph 3 of")
        node = cluster.nodes[1]
        there = ours_below(node)
        assert there
        node.kill()
        code, said = finish(process)
        assert code == 0, said
        assert "is left out" in said
        assert still_alive(there, 10.0) == []
        assert still_alive(cluster.ours(), 10.0) == []
    assert placement(tmp_path / "run") == placement(alone)
    figures = summary(tmp_path / "run")
    (lost,) = [each for each in figures["workers"] if each["left_out"]]
    assert "is gone" in lost["left_out"]
    # Each subgraph has ended once, also the one that was begun twice.
    assert figures["subgraph_benchmarks"] == summary(alone)["subgraph_benchmarks"]


@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_of_it(
    number: signal.Signals, cluster: RunningCluster, model: Path, tmp_path: Path
) -> None:
    process = start(model, tmp_path / "run", cluster.address, 3, WAITING)
    wait_for(process, "subgraph 2 of")
    running = cluster.ours()
    assert running
    process.send_signal(number)
    code, said = finish(process)
    assert code == 130, said
    assert still_alive(running, 10.0) == []
    assert cluster.ours() == []
    assert summary(tmp_path / "run")["stopped"] == "interrupted"


@SLOW
def test_nothing_of_a_driver_that_is_killed_is_left_on_the_nodes(
    cluster: RunningCluster, model: Path, tmp_path: Path
) -> None:
    process = start(model, tmp_path / "run", cluster.address, 3, {**WAITING, "build_s": "100"})
    wait_for(process, "building the model as given")
    children = psutil.Process(process.pid).children(recursive=True)
    assert cluster.ours()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert still_alive([*cluster.ours(), *children], _GONE_WITHIN_S) == []
    assert cluster.ours() == []
