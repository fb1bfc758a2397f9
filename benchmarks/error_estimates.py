"""How well the error of a placement is estimated from others: rank correlations, and no times.

For each model the error of every group of ops quantized alone is measured, as an accuracy repair
does, then that of random placements, with ONNX Runtime's own kernels. `alone` is the rank
correlation of these errors with the estimates; `half` that with estimates from the other half of
the placements alone, as at the end of a search; `sizes` that with the number of groups, which an
estimate should surpass.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.candidates import make_inserter
from qdqtune import zoo
from qdqtune.calibration._output_error import Reference
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import Worker
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.search._error_model import ErrorModel
from qdqtune.search._space import Space, State, group_ops

MODELS: Mapping[str, Mapping[str, int]] = {
    "resnet18": {"image": 96, "width": 32},
    "mobilenet_v2": {"image": 96},
    "convnext": {"image": 96},
    "vit": {"layers": 4, "width": 192},
}
_SAMPLES = 4


def random_states(
    space: Space, count: int, seed: int, densities: tuple[float, float]
) -> list[State]:
    """Distinct placements with some share of the groups."""
    rng, found = random.Random(seed), dict[str, State]()
    numbers = sorted(space.everything)
    while len(found) < count:
        density = rng.uniform(*densities)
        state = frozenset(number for number in numbers if rng.random() < density)
        if space.placement(state):
            found.setdefault(space.key(state), state)
    return list(found.values())


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's coefficient."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, place, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]


def _space(inserter: Inserter) -> Space:
    planner = QuantizationPlanner(inserter.index, inserter.dialect, "int8")
    return Space(planner, group_ops(inserter.index, planner).groups, {})


def correlations(
    name: str,
    settings: Mapping[str, int],
    count: int,
    seed: int,
    densities: tuple[float, float] = (0.1, 0.9),
) -> dict[str, float]:
    """The rank correlations on a model."""
    alone = SessionOptions(threads=1)
    with Worker("onnxruntime", alone) as worker, tempfile.TemporaryDirectory() as folder:
        inserter = make_inserter(zoo.build(name, **settings), Path(folder), worker)
        space = _space(inserter)
        samples = list(random_inputs(inserter.index, _SAMPLES))
        base = inserter.base.write(inserter.base.whole(), "float")
        reference = Reference(worker, base, iter(samples), options=alone)

        def measured(options: SessionOptions) -> Callable[[State], float]:
            def sqnr_db(state: State) -> float:
                file = inserter.write(space.placement(state), "candidate")
                return min(reference.compare(file, options).decibels().values())

            return sqnr_db

        singles = [frozenset({n}) for n in space.everything if space.placement(frozenset({n}))]
        states = random_states(space, count, seed, densities)
        parts = {state: measured(AS_WRITTEN)(state) for state in singles}
        whole = {state: measured(alone)(state) for state in states}
        reference.close()
    model = ErrorModel(space)
    model.observe(parts)
    estimates = [model.estimated_db(state) for state in states]
    halves = [states[0::2], states[1::2]]
    found = []
    for known, asked in (halves, halves[::-1]):
        other = ErrorModel(space)
        other.observe({state: whole[state] for state in known})
        found.append(
            rank_correlation([other.estimated_db(s) for s in asked], [whole[s] for s in asked])
        )
    truth = [whole[state] for state in states]
    sizes = [-float(len(state)) for state in states]
    return {
        "groups": float(len(space.groups)),
        "alone": rank_correlation(estimates, truth),
        "half": sum(found) / len(found),
        "sizes": rank_correlation(sizes, truth),
        "bias dB": float(np.median(np.array(estimates) - np.array(truth))),
    }


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--placements", type=int, default=50, help="random placements of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--density", type=float, help="share of groups in every placement, instead of 0.1 to 0.9"
    )
    options = parser.parse_args()
    share = options.density
    densities = (0.1, 0.9) if share is None else (share, share)
    for name in options.models.split(","):
        found = correlations(
            name, MODELS.get(name, {}), options.placements, options.seed, densities
        )
        print(f"{name}: " + ", ".join(f"{key} {value:.2f}" for key, value in found.items()))


if __name__ == "__main__":
    main()
