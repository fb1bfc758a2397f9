"""How good the search is: replayed against tables of all placements of small models.

`python -m benchmarks.search_quality` times every placement of some small models on simulated
machines (the tables are kept in work/search_quality), then lets the search find its way with noisy
block timing on virtual time, seed after seed. Nothing is measured, so it runs anywhere. Bars:

- `near`: seeds that end within 1 % of the best placement: at least 95 of 100 for every table.
- `asked`: candidates timed, the median: at most 5 % of all placements for ten choices.
- `false`: seeds whose placement, slower than the float model in truth, survives the comparison with
  which a workflow ends: at most 5 of 1,000.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import onnx_ir as ir

from benchmarks.search_models import MODELS, WITH_FORMS
from qdqtune.config import AUTO_STRATEGY
from qdqtune.engines._timing import gain_of, plan_turns, scores, take_turns
from qdqtune.engines.layers._latency import shares_of_latency
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._measurement import Comparison, LayerTime, Verdict
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.report._formatting import text_table
from qdqtune.search._space import Form, Group, Space, State
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import (
    Effort,
    Limits,
    Score,
    SearchTask,
    SteppedStrategy,
    Trial,
)
from qdqtune.testing.simulated import PROFILES, kernels_of, true_latency_ms
from qdqtune.testing.simulated._engine import COST_MODEL_VERSION
from qdqtune.testing.simulated._machine import Machine, Noise

TABLES = Path(__file__).parents[1] / "work" / "search_quality"
# Blocks of two kept runs, the shortest there are: the noise is as large as it gets.
FLOAT_MS = 5.0
MOST_GROUPS = 10
# Where ops have other forms: each of these is a choice among three, or more.
MOST_WITH_FORMS = 7
ROUNDS = {Effort.SCREEN: 10, Effort.CONFIRM: 24}
LEAST_RATIO = 1.02
FINAL_S = 7.4
SYNTHETIC, SYNTHETIC_FORMS = "synthetic", "synthetic-forms"
NOISES = {
    "usual": Noise(),
    # A screen of ten rounds then has a standard error of more than 1 %, as on shared cores.
    "rough": Noise(noise=0.03, drift=0.04, drift_s=0.5, spikes=0.03),
}


REGION_STRATEGIES = ("bayesian", "local_search")


def state_of(bits: int) -> State:
    """The groups whose bits are set."""
    return frozenset(number for number in range(bits.bit_length()) if bits >> number & 1)


def _has_forms(profile: str) -> bool:
    """Whether a machine has more to offer than float ops and Q/DQ."""
    return profile == SYNTHETIC_FORMS or bool(profile != SYNTHETIC and PROFILES[profile].dynamic)


@dataclass
class Table:
    """All placements of one model on one machine; ops may be float, quantized, dynamic or unfused.

    Attributes:
        name: Model and profile.
        space: The choices.
        latencies_ms: True latency by state, the state read as bits.
    """

    name: str
    space: Space
    latencies_ms: Sequence[float]

    def ms(self, state: State) -> float:
        """The true latency of a choice, scaled."""
        return self.latencies_ms[sum(1 << n for n in state)] * FLOAT_MS / self.latencies_ms[0]

    @cached_property
    def best_ms(self) -> float:
        """The true latency of the best choice, scaled."""
        return min(self.latencies_ms) * FLOAT_MS / self.latencies_ms[0]

    @cached_property
    def placements(self) -> int:
        """How many placements there are; some choices come to the same."""
        if not self.space.other_forms:
            return len(self.latencies_ms)
        return len({self.space.key(state_of(bits)) for bits in range(len(self.latencies_ms))})

    @property
    def is_hopeless(self) -> bool:
        """Whether the float model is the best."""
        return self.best_ms > FLOAT_MS / 1.0001

    @property
    def seeds(self) -> dict[str, State]:
        """Whole-model choices to begin with."""
        pools = {"Conv", "Gemm", "MatMul", "Add", "Concat", "GlobalAveragePool", "AveragePool"}
        space = self.space
        seeds = {
            "all": space.everything, "weighted": space.weighted(), "rules": space.of_ops(pools),
        }  # fmt: skip
        if dynamic := space.in_form(Form.DYNAMIC):
            seeds["dynamic"] = dynamic
            seeds["dynamic, unfused"] = dynamic | space.in_form(Form.UNFUSED)
            seeds["dynamic and rules"] = space.switched(seeds["rules"], dynamic)
        return seeds


def like_ops(
    index: GraphIndex, planner: QuantizationPlanner, weights: dict[str, float], most: int
) -> list[Group]:
    """Ops of one type, shape and attributes are one choice; the smallest join those before them."""
    few = len(planner.compute) + len(planner.passthrough) <= most
    found: dict[str, list[str]] = {}
    for node in index.nodes:
        if node.name in planner.compute or node.name in planner.passthrough:
            values = [v.name or "" for v in (*node.inputs, *node.outputs) if v is not None]
            shapes = [index.shape(name) for name in values]
            attributes = sorted(f"{a.name}={a.value}" for a in node.attributes.values())
            key = f"{node.op_type} {shapes} {attributes}"
            found.setdefault(node.name if few else key, []).append(node.name)
    parts = list(found.items())
    while len(parts) > most:
        sizes = [sum(weights.get(name, 0.0) for name in names) for _, names in parts]
        least = min(range(1, len(parts)), key=lambda n: sizes[n])
        parts[least - 1][1].extend(parts.pop(least)[1])
    return [
        Group(key, 0, index.node[names[0]].op_type, tuple(names)) for key, names in parts
    ]  # fmt: skip


def other_forms(groups: Sequence[Group], planner: QuantizationPlanner) -> list[Group]:
    """The same choices with their ops dynamic, or unfused."""
    forms = ((Form.DYNAMIC, planner.dynamic), (Form.UNFUSED, planner.unfused))
    return [
        Group(group.pattern, 0, planner.index.node[names[0]].op_type, names, "", form)
        for form, possible in forms
        for group in groups
        if (names := tuple(name for name in group.nodes if name in possible))
    ]


@lru_cache
def table(model: str, profile: str) -> Table:
    """A table, computed unless it was before."""
    with _opened(model, profile) as (space, inserter):
        float_ms = true_latency_ms(inserter.proto(space.placement(frozenset())), profile)
        stamp = [COST_MODEL_VERSION, float_ms, [list(group.nodes) for group in space.groups]]
        if _has_forms(profile):
            stamp.append(repr(PROFILES[profile]))
        path = TABLES / f"{model}-{profile}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get("stamp") != stamp:
            known = {"stamp": stamp, "ms": _time_all(space, inserter, profile)}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(known))
    return Table(f"{model} {profile}", space, known["ms"])


@lru_cache
def space_of(model: str, profile: str) -> Space:
    """The choices of a model on a machine."""
    with _opened(model, profile) as (space, _):
        return space


@contextmanager
def _opened(model: str, profile: str) -> Iterator[tuple[Space, Inserter]]:
    loaded = ir.from_proto((MODELS | WITH_FORMS)[model]())
    fold(loaded)
    dialect = dialect_named(PROFILES[profile].dialect)
    with tempfile.TemporaryDirectory() as folder:
        base = PreparedModel(loaded, Path(folder))
        floats = [name for name in base.index.value if base.index.is_float(name)]
        ranges = Ranges(dict.fromkeys(floats, (-1.0, 1.0)), CalibrationSource.RANDOM, 1)
        inserter = Inserter(base, dialect, "int8", ranges)
        planner = QuantizationPlanner(base.index, dialect)
        kernels = kernels_of(inserter.proto(planner.placement(())), profile)
        layers = [LayerTime(kernel.name, kernel.op_type, kernel.ms) for kernel in kernels]
        weights = shares_of_latency(base.index, layers)
        if _has_forms(profile):
            groups = like_ops(base.index, planner, weights, MOST_WITH_FORMS)
            groups += other_forms(groups, planner)
        else:
            groups = like_ops(base.index, planner, weights, MOST_GROUPS)
        yield Space(planner, groups, weights), inserter


def _time_all(space: Space, inserter: Inserter, profile: str) -> list[float]:
    found: dict[str, float] = {}
    latencies_ms: list[float] = []
    for bits in range(2 ** len(space.groups)):
        state = state_of(bits)
        key = space.key(state)
        if key not in found:
            found[key] = true_latency_ms(inserter.proto(space.placement(state)), profile)
        latencies_ms.append(found[key])
    return latencies_ms


def synthetic_table(seed: int, model: str = "convs") -> Table:
    """A table of a machine that has nothing to do with the simulated ones: another for each seed.

    Ops take between a third and four times as long when quantized, boundaries cost up to some
    percent, and every placement is a little faster or slower for reasons of its own.
    """
    chain = space_of(model, "cpu")
    generator = np.random.default_rng(seed)
    count = len(chain.groups)
    shares = generator.dirichlet(np.full(count, 0.7))
    low = shares * np.exp(generator.normal(-0.15, 0.5, count))
    costs = generator.exponential(0.03, len(chain.pairs)) * generator.integers(0, 2)
    latencies_ms: list[float] = []
    found: dict[str, float] = {}
    for bits in range(2**count):
        state = chain.closed(frozenset(n for n in range(count) if bits >> n & 1))
        chosen = np.array([n in state for n in range(count)])
        crossed = [chosen[i] != chosen[j] for i, j in chain.pairs]
        total = np.where(chosen, low, shares).sum() + costs[crossed].sum()
        key = chain.key(state)
        found.setdefault(key, float(total * np.exp(generator.normal(0.0, 0.002))))
        latencies_ms.append(found[key])
    guesses = shares * np.exp(generator.normal(0.0, 0.3, count))
    weights = {
        name: guess / guesses.sum() / len(group.nodes)
        for group, guess in zip(chain.groups, guesses, strict=True)
        for name in group.nodes
    }
    space = Space(chain.planner, chain.groups, weights)
    return Table(f"{model} synthetic", space, latencies_ms)


def synthetic_forms_table(seed: int, model: str = "readers") -> Table:
    """Such a table for a model whose ops have other forms: each of them may gain, or cost."""
    space = space_of(model, "cpu-dynamic")
    generator = np.random.default_rng(seed)
    whole = sorted(space.everything)
    drawn = generator.dirichlet(np.full(len(whole), 0.7)).tolist()
    shares: dict[int, float] = dict(zip(whole, drawn, strict=True))
    place = {space.groups[number].pattern: number for number in whole}
    # What a choice saves: of an op's two forms, each has a speed of its own.
    saved = {n: shares[n] * (1.0 - math.exp(generator.normal(-0.15, 0.5))) for n in whole}
    for number in sorted(space.other_forms):
        group = space.groups[number]
        share = shares[place[group.pattern]]
        spread = 0.5 if group.form is Form.DYNAMIC else 0.1
        saved[number] = share * (1.0 - math.exp(generator.normal(-0.1, spread)))
    costs = generator.exponential(0.02, len(space.pairs)) * generator.integers(0, 2)
    found: dict[str, float] = {}
    latencies_ms: list[float] = []
    for bits in range(2 ** len(space.groups)):
        state = space.closed(state_of(bits))
        crossed = [(i in state) != (j in state) for i, j in space.pairs]
        total = 1.0 - sum(saved[number] for number in state) + float(costs[crossed].sum())
        own = float(np.exp(generator.normal(0.0, 0.002)))
        latencies_ms.append(found.setdefault(space.key(state), max(0.1, total) * own))
    guesses = {n: share * math.exp(generator.normal(0.0, 0.3)) for n, share in shares.items()}
    weights = {
        name: guess / sum(guesses.values()) / len(space.groups[number].nodes)
        for number, guess in guesses.items()
        for name in space.groups[number].nodes
    }
    return Table(f"{model} forms", Space(space.planner, space.groups, weights), latencies_ms)


class Replay:
    """A machine that times the placements of a table, with noise, on virtual time."""

    def __init__(self, table: Table, noise: Noise, seed: int) -> None:
        self._table = table
        self._machine = Machine(noise, seed)

    def scores(self, trial: Trial) -> list[Score]:
        """What a workflow would tell the search."""
        blocks, _ = self._turns((trial.reference, *trial.candidates), ROUNDS[trial.effort])
        return [Score(*gain_of(scores(blocks[0], candidate))) for candidate in blocks[1:]]

    def final(self, state: State) -> Comparison:
        """The comparison with the float model that a workflow ends with."""
        return self._turns((frozenset(), state), None)[1][0]

    def _turns(
        self, states: Sequence[State], rounds: int | None
    ) -> tuple[list[list[tuple[float, ...]]], list[Comparison]]:
        latencies_ms = [self._table.ms(state) for state in states]
        contents = [self._table.space.key(state).encode() for state in states]
        opens = [self._machine.run_noise(content) for content in contents]
        return take_turns(
            lambda model, runs: opens[model].samples_ms(latencies_ms[model], runs),
            plan_turns(latencies_ms, FINAL_S, rounds=rounds),
        )


@dataclass(frozen=True)
class Outcome:
    """How one seed ended.

    Attributes:
        loss: Latency of what was found over that of the best, less 1.
        asked: Candidates timed.
        kept: Whether the final comparison kept what was found.
        speedup: Its true speedup over the float model.
    """

    loss: float
    asked: int
    kept: bool
    speedup: float


def replay(
    table: Table,
    seed: int,
    noise: Noise,
    limits: Limits,
    *,
    final: bool,
    strategy: str = AUTO_STRATEGY,
) -> Outcome:
    """One search, from its seeds to what a workflow would write."""
    machine = Replay(table, noise, seed)
    search = make_strategy(SearchTask(table.space, table.seeds, limits, seed), strategy)
    assert isinstance(search, SteppedStrategy)
    for trial in search.trials():
        search.tell(trial, machine.scores(trial))
    kept = False
    if final and search.best:
        compared = machine.final(search.best)
        kept = compared.verdict is Verdict.FASTER and compared.ratio >= LEAST_RATIO
    ms = table.ms(search.best)
    return Outcome(ms / table.best_ms - 1.0, search.asked, kept, FLOAT_MS / ms)


def limits_for(table: Table, preset: str) -> Limits:
    """What a preset allows a search on this many groups."""
    groups = len(table.space.groups)
    benchmarks = {"quick": 24 + 1.2 * groups, "default": 40 + 3 * groups}[preset]
    return Limits(benchmarks=math.floor(benchmarks))


def _row(job: tuple[str, str, str, str, int, int, str]) -> list[str]:
    model, profile, noise, preset, seeds, many_seeds, strategy = job
    tables: Iterable[Table]
    if profile in (SYNTHETIC, SYNTHETIC_FORMS):
        make = synthetic_table if profile == SYNTHETIC else synthetic_forms_table
        hopeless, tables = False, (make(seed, model) for seed in range(seeds))
    else:
        hopeless = table(model, profile).is_hopeless
        tables = itertools.repeat(table(model, profile))
    outcomes: list[Outcome] = []
    for seed, played in enumerate(itertools.islice(tables, many_seeds if hopeless else seeds)):
        limits = limits_for(played, preset)
        final = played.is_hopeless
        outcomes.append(replay(played, seed, NOISES[noise], limits, final=final, strategy=strategy))
    count = len(outcomes)
    losses = sorted(outcome.loss for outcome in outcomes)
    asked = statistics.median(outcome.asked for outcome in outcomes)
    states = played.placements
    near = 100 * sum(loss <= 0.01 for loss in losses) / count
    false = sum(outcome.kept for outcome in outcomes)
    return [
        model, profile, f"{FLOAT_MS / played.best_ms:.3f}", str(states), f"{near:.1f}",
        f"{asked:g} ({100 * asked / states:.1f} %)", str(max(o.asked for o in outcomes)),
        f"{100 * statistics.mean(losses):.2f} %", f"{100 * losses[-1]:.2f} %",
        f"{false} of {count}" if hopeless else "",
    ]  # fmt: skip


def main(arguments: Iterable[str] | None = None) -> None:
    """Replay all tables and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", default=",".join(MODELS | WITH_FORMS))
    profiles = (*PROFILES, SYNTHETIC, SYNTHETIC_FORMS)
    parser.add_argument("--profiles", default=",".join(profiles))
    parser.add_argument("--noise", choices=NOISES, default="usual")
    parser.add_argument("--preset", choices=("quick", "default"), default="default")
    parser.add_argument("--strategy", choices=(AUTO_STRATEGY, *REGION_STRATEGIES), default="auto")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--many_seeds", type=int, default=125, help="where no pair pays")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(None if arguments is None else list(arguments))
    jobs = [
        (model, profile, options.noise, options.preset, options.seeds, options.many_seeds,
         options.strategy)
        for model in options.models.split(",")
        for profile in options.profiles.split(",")
        if model in (WITH_FORMS if _has_forms(profile) else MODELS)
    ]  # fmt: skip
    titles = ["model", "profile", "best", "states", "near", "asked", "most", "mean loss", "worst"]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows: list[list[str]] = []
        for row in pool.map(_row, jobs):
            rows.append(row)
            print(f"{len(rows)} of {len(jobs)}:", *row, flush=True)
    print(text_table([*titles, "false"], rows))


if __name__ == "__main__":
    main()
