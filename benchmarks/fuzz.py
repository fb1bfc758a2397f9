"""Broken models by the thousand: each must work or be refused in our words.

`python -m benchmarks.fuzz --count 2000 --seed 0` runs every command on every mutant, in lanes side
by side. A crash, a hang, a traceback, a file opened or written outside the model's folder, or a
control character on the terminal is a failure; failures are printed with their seed, which makes
the same mutant again: `python -m tests.fuzz.lane --first SEED`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def start_lane(first: int, count: int, step: int, keep: Path | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fuzz.lane", "--first", str(first)]
    command += ["--count", str(count), "--step", str(step)]
    if keep is not None:
        command += ["--keep", str(keep)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="a folder for the models that failed")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep = options.keep.absolute()
        options.keep.mkdir(parents=True, exist_ok=True)
    share, rest = divmod(options.count, options.lanes)
    lanes = [
        start_lane(options.seed + lane, share + (lane < rest), options.lanes, options.keep)
        for lane in range(options.lanes)
    ]
    answers: collections.Counter[str] = collections.Counter()
    tried = failed = 0
    for lane in lanes:
        assert lane.stdout is not None
        for line in lane.stdout:
            record = json.loads(line)
            tried += 1
            answers.update(f"{name} {code}" for name, code in record["answers"].items())
            if record["problems"]:
                failed += 1
                print(
                    record["seed"], record["history"], *record["problems"], sep="\n  ", flush=True
                )
    died = sum(lane.wait() != 0 for lane in lanes)
    print(", ".join(f"{name}: {count}" for name, count in sorted(answers.items())))
    print(f"{tried} mutants, {failed} failures" + (f", {died} lanes died" if died else ""))
    return 1 if failed or died or tried < options.count else 0


if __name__ == "__main__":
    sys.exit(main())
