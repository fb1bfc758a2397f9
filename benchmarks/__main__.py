"""`make bench ARGS="--models resnet18,vit --preset quick"`."""

from __future__ import annotations

import argparse

from benchmarks import against_quantize_static, results
from qdqtune import zoo

PRESETS = {"quick": 4.0, "default": 8.0, "extensive": 30.0}


def main() -> None:
    """Measure the models, append to the results file, print the table from it."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    names = [name for name in zoo.ARCHITECTURES if name != "chain"]
    parser.add_argument("--models", default=",".join(names), help="zoo models, by comma")
    parser.add_argument("--preset", choices=PRESETS, default="default")
    options = parser.parse_args()
    for name in options.models.split(","):
        for record in against_quantize_static.measure(name, PRESETS[options.preset]):
            results.append({**record, "preset": options.preset})
            print(
                f"{record['model']} {record['ops']}: {record['ours_over_theirs']:.3f}x", flush=True
            )
    records = results.newest(results.read(against_quantize_static.KIND), "model", "ops")
    print()
    print(results.table(records, against_quantize_static.COLUMNS))


main()
