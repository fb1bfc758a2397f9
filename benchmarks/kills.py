"""Runs that are killed at random moments: does every one end like the one that was not?

Real processes, `kill -9`, the same command again. For each folder: whether the placement is that of
the undisturbed run, and from the journal whether anything was measured twice.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
import psutil

from qdqtune import zoo

_SIZES = {"resnet18": {"width": 16, "image": 64}}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks kills")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--engine", default="simulated")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--per_folder", type=int, default=10, help="kills of one run, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="qdqtune-kills-") as name:
        folder = Path(name)
        model = folder / "model.onnx"
        onnx.save(zoo.build(options.model, **_SIZES.get(options.model, {})), model)
        kills = number = wrong = 0
        while kills < options.kills:
            wanted = min(options.per_folder, options.kills - kills)
            told = _one_folder(folder / str(number), model, options, rng, wanted)
            kills += told["kills"]
            wrong += not told["same"]
            number += 1
            print(json.dumps({"folder": number, **told}), flush=True)
        print(f"{kills} kills over {number} runs: {number - wrong} ended in the same placement")


def _one_folder(
    folder: Path, model: Path, options: argparse.Namespace, rng: random.Random, wanted: int
) -> dict[str, Any]:
    seed = rng.randrange(1000)
    start = time.monotonic()
    _tune(model, folder / "whole", options, seed).wait()
    seconds = time.monotonic() - start
    if options.engine != "simulated":
        # Times differ from run to run: what is measured in the killed run is what counts, so the
        # undisturbed run gets its journal at the end.
        (folder / "whole").rename(folder / "first")
    kills = finished = left = 0
    while kills < wanted:
        process = _tune(model, folder / "killed", options, seed)
        try:
            process.wait(rng.uniform(0.1, seconds))
            finished += 1
            if finished > 2:
                break
        except subprocess.TimeoutExpired:
            workers = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            left += len(psutil.wait_procs(workers, timeout=5)[1])
    done = _tune(model, folder / "killed", options, seed)
    code = done.wait()
    if options.engine != "simulated":
        (folder / "whole").mkdir()
        journal = (folder / "killed/measurements.jsonl").read_bytes()
        (folder / "whole/measurements.jsonl").write_bytes(journal)
        _tune(model, folder / "whole", options, seed).wait()
    same = all(
        (folder / "whole" / name).read_bytes() == (folder / "killed" / name).read_bytes()
        for name in ("placement.json",)
    )
    return {"kills": kills, "same": same, "code": code, "orphans": left, **_journal(folder)}


def _journal(folder: Path) -> dict[str, Any]:
    """How much was measured, in the run that was killed and in the other one."""
    told: dict[str, Any] = {}
    for name in ("whole", "killed"):
        text = (folder / name / "measurements.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        measured = collections.Counter(
            (line["reference"], line["candidate"], line["effort"])
            for line in lines
            if line["kind"] == "measurement"
        )
        rounds = collections.Counter(
            (line["reference"], tuple(line["candidates"]), line["effort"])
            for line in lines
            if line["kind"] == "round"
        )
        told[name] = {
            "measurements": len(measured),
            "twice": sum(count - 1 for count in measured.values()),
            "rounds": sum(rounds.values()),
        }
    return told


def _tune(
    model: Path, output: Path, options: argparse.Namespace, seed: int
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "qdqtune", "tune", str(model), "-q", "--engine", options.engine,
        "--preset", options.preset, "--threads", "1", "-o", str(output),
    ]  # fmt: skip
    if options.engine == "simulated":
        command += ["--engine_option", f"seed={seed}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


if __name__ == "__main__":
    main(sys.argv[1:])
