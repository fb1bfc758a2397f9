"""The search as a loop of your own: `QDQAutotuner` proposes, you measure.

    python examples/step_by_step.py [MODEL] [--schemes 8]

`qdqtune.tune` does all of this and more: it calibrates, checks the accuracy, and compares
candidates side by side. Write the loop yourself if measuring is something only you can do, such as
on a board or with a metric of your own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from qdqtune import zoo
from qdqtune.autotune import Config, QDQAutotuner
from qdqtune.autotune.workflows import EngineBenchmark

STATE = "autotuner_state.yaml"


def tune(model: onnx.ModelProto, output: Path, schemes: int) -> float:
    """Tune a model region by region; returns the speedup."""
    output.mkdir(exist_ok=True)
    autotuner = QDQAutotuner(model, dialect="onnxruntime")
    autotuner.initialize(Config(default_quant_type="int8"))

    with EngineBenchmark("onnxruntime", threads=1, timing_runs=20) as benchmark:
        # The float model comes first: everything else is compared with it.
        baseline_ms = benchmark.run(autotuner.export_onnx(insert_qdq=False))
        autotuner.submit(baseline_ms)

        for number, region in enumerate(autotuner.regions):
            # This keeps the best scheme of the region before.
            autotuner.set_profile_region(region, commit=number > 0)
            patterns = autotuner.current_profile_pattern_schemes
            if patterns is None:
                continue  # a region with the same structure and shapes was tuned before

            for _ in range(schemes):
                if autotuner.generate() == -1:
                    break  # every scheme was tried
                latency_ms = benchmark.run(autotuner.export_onnx())
                autotuner.submit(latency_ms)

            best = patterns.best_scheme
            if best is not None:
                print(f"region {region.id}: {baseline_ms / best.latency_ms:.2f}x")
            autotuner.save_state(output / STATE)  # load_state() resumes here

        autotuner.set_profile_region(None, commit=True)
        tuned = autotuner.export_onnx(output / "tuned.onnx", best=True)
        return baseline_ms / benchmark.run(tuned)


def main() -> None:
    """Tune a file, or a small ResNet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?", help="default: a small ResNet-18")
    parser.add_argument("--schemes", type=int, default=8, help="candidates for each region")
    parser.add_argument("--output", type=Path, default=Path("step_by_step"))
    options = parser.parse_args()
    model = onnx.load(options.model) if options.model else zoo.build("resnet18", image=64, width=32)
    speedup = tune(model, options.output, options.schemes)
    print(f"{options.output / 'tuned.onnx'}: {speedup:.2f}x")
    print("Its scales are placeholders: `qdqtune insert` and `tune` calibrate.")


if __name__ == "__main__":
    main()
