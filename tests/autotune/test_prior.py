"""What a cache knows of a model's patterns, and how a search begins with it."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir
import pytest
import yaml
from benchmarks.search_quality import synthetic_table

from qdqtune import zoo
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import ONNXRUNTIME
from qdqtune.search._prior import Prior, prior_of
from qdqtune.search._space import Group, Space, State, group_ops
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._pattern_outcomes import ChoiceOutcome, Conditions, PatternOutcome
from qdqtune.search.regions._canonical import dims_in
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import DOUBTS, SEEDS, Limits, Score, SearchTask, Trial
from tests.autotune.test_search import Told, noisy, play

HERE = Conditions("simulated", "1", "machine", "onnxruntime", "int8")
Answer = Callable[[Trial, State], Score]


@pytest.fixture(scope="module")
def resnet() -> Space:
    model = ir.from_proto(zoo.build("resnet18", image=32, width=8))
    fold(model)
    planner = QuantizationPlanner(GraphIndex(model), ONNXRUNTIME)
    ops = {name: planner.index.node[name].op_type for name in planner.compute}
    return Space(planner, [Group(name, 0, op, (name,)) for name, op in ops.items()], {})


def questions(told: Told) -> str:
    """A digest of everything that a search asked."""
    asked = [
        (sorted(t.reference), [sorted(s) for s in t.candidates], t.effort.value, t.stage)
        for t in told.trials
    ]
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def worth(state: State) -> float:
    """Log speedup on a machine on which every third group costs, and all others pay."""
    return sum(0.02 if number % 3 else -0.03 for number in state)


def every_third(seed: int) -> Answer:
    """Such a machine, with noise."""
    rng = random.Random(seed)

    def answer(trial: Trial, state: State) -> Score:
        return Score(worth(state) - worth(trial.reference) + rng.gauss(0.0, 0.004), 0.004)

    return answer


def test_without_a_cache_a_search_asks_what_it_always_asked(resnet: Space) -> None:
    chain = synthetic_table(3)
    asked = [
        questions(play(chain.space, chain.seeds, noisy(chain, seed), seed=seed))
        for seed in range(3)
    ]
    assert asked == ["8ef9483248df1a68", "f91d7f736725d487", "babdb919d78b9bd7"]
    seeds = {"all": resnet.everything, "weighted": resnet.weighted()}
    told = play(resnet, seeds, every_third(0), Limits(benchmarks=150))
    assert (questions(told), told.search.asked) == ("0fe563e8f85ba63d", 149)


def outcome(
    pattern: str, *, chosen: bool, gain: float | None = None, **more: object
) -> PatternOutcome:
    choice = ChoiceOutcome(0, "whole", chosen, gain, 0.002, 0.05)
    return replace(PatternOutcome(pattern, 1, HERE, True, (choice,)), **more)


def learned(
    space: Space,
    chosen: Collection[int],
    *,
    gain: float = 0.02,
    costs: Mapping[int, float] = MappingProxyType({}),
    unmeasured: Collection[int] = (),
) -> Prior:
    """What a finished run with this result leaves, for some groups with other costs, or none."""
    cache = PatternCache()
    for number, group in enumerate(space.groups):
        is_in = number in chosen
        share = space.potential[number]
        brings = gain if is_in else -costs.get(number, gain)
        choice = ChoiceOutcome(0, "whole", is_in, brings, 0.002, share)
        if number in unmeasured:
            choice = ChoiceOutcome(0, "whole", is_in)
        cache.add_outcome(PatternOutcome(group.pattern, 1, HERE, True, (choice,)))
    found = prior_of(space.groups, cache, HERE)
    assert found is not None
    return found


LIMITS = Limits(benchmarks=150)


def play_with(
    space: Space,
    prior: Prior | None,
    answer: Answer,
    seeds: dict[str, State],
    strategy: str,
    limits: Limits = LIMITS,
) -> Told:
    known = {} if prior is None else {"pattern cache": prior.state(space)}
    task = SearchTask(space, {**known, **seeds}, limits, prior=prior)
    told = Told(make_strategy(task, strategy))  # type: ignore[arg-type]
    for trial in told.search.trials():
        told.trials.append(trial)
        told.search.tell(trial, [answer(trial, state) for state in trial.candidates])
    return told


def asked(told: Told) -> int:
    return sum(len(trial.candidates) for trial in told.trials)


BEST = "local_search", "bayesian"


@pytest.mark.parametrize("strategy", BEST)
def test_what_is_known_is_confirmed_in_few_benchmarks(resnet: Space, strategy: str) -> None:
    space = resnet if strategy == "local_search" else synthetic_table(3).space
    seeds = {"all": space.everything}
    best = frozenset(number for number in space.everything if number % 3)
    cold = play_with(space, None, every_third(1), seeds, strategy)
    warm = play_with(space, learned(space, best), every_third(1), seeds, strategy)
    assert warm.trials[0].candidates[0] == space.closed(best)
    assert worth(warm.search.best) > worth(cold.search.best) - 0.02
    assert asked(warm) < asked(cold) / (4 if strategy == "local_search" else 1.5)
    assert not warm.search.is_cut_short


def test_nothing_pays_is_knowledge_too(resnet: Space) -> None:
    def costs(trial: Trial, state: State) -> Score:
        return Score(0.01 * (len(trial.reference) - len(state)), 0.002)

    seeds = {"all": resnet.everything, "weighted": resnet.weighted()}
    told = play_with(resnet, learned(resnet, ()), costs, seeds, "local_search")
    assert not told.search.best
    assert {trial.stage for trial in told.trials} == {SEEDS}


def test_a_seed_that_is_better_by_luck_is_compared_directly(resnet: Space) -> None:
    best = frozenset(number for number in resnet.everything if number % 3)

    def lucky(trial: Trial, state: State) -> Score:
        luck = 0.5 if (trial.reference, state) == (frozenset(), resnet.everything) else 0.0
        return Score(worth(state) - worth(trial.reference) + luck, 0.004)

    prior, seeds = learned(resnet, best), {"all": resnet.everything}
    told = play_with(resnet, prior, lucky, seeds, "local_search")
    assert (told.trials[1].reference, told.trials[1].candidates) == (best, (resnet.everything,))
    assert told.search.best == best
    assert asked(told) < 10


@pytest.mark.parametrize("seed", range(3))
def test_a_cache_of_an_unrelated_model_costs_little(resnet: Space, seed: int) -> None:
    """It happens to know a few of the patterns, and to be wrong about them."""
    cache = PatternCache()
    for number in sorted(resnet.everything)[:4]:
        choice = ChoiceOutcome(0, "whole", number % 3 == 0, None)
        cache.add_outcome(PatternOutcome(resnet.groups[number].pattern, 1, HERE, True, (choice,)))
    prior = prior_of(resnet.groups, cache, HERE)
    seeds = {"all": resnet.everything}
    cold = play_with(resnet, None, every_third(seed), seeds, "local_search")
    warm = play_with(resnet, prior, every_third(seed), seeds, "local_search")
    assert asked(warm) <= 1.1 * asked(cold)
    assert worth(warm.search.best) > worth(cold.search.best) - 0.02


@pytest.mark.parametrize("seed", range(3))
def test_what_is_wrong_is_put_right(resnet: Space, seed: int) -> None:
    """The cache wants what costs, and nothing of what pays."""
    wrong = frozenset(number for number in resnet.everything if number % 3 == 0)
    seeds = {"all": resnet.everything}
    cold = play_with(resnet, None, every_third(seed), seeds, "local_search")
    warm = play_with(resnet, learned(resnet, wrong), every_third(seed), seeds, "local_search")
    assert worth(warm.search.best) > worth(cold.search.best) - 0.02


def test_a_doubtful_choice_that_turns_out_otherwise_is_changed(resnet: Space) -> None:
    best = frozenset(number for number in resnet.everything if number % 3)
    odd = min(best)
    cache = PatternCache()
    for number, group in enumerate(resnet.groups):
        gain = None if number == odd else 0.02 * (1 if number in best else -1)
        choice = ChoiceOutcome(0, "whole", number in best - {odd}, gain, 0.002, 0.03)
        cache.add_outcome(PatternOutcome(group.pattern, 1, HERE, True, (choice,)))
    prior = prior_of(resnet.groups, cache, HERE)
    told = play_with(resnet, prior, every_third(0), {"all": resnet.everything}, "local_search")
    assert told.search.best == best
    doubts = [trial for trial in told.trials if trial.stage == DOUBTS]
    assert doubts[0].candidates[0] ^ doubts[0].reference == {odd}


def test_two_neighbours_that_pay_only_together_are_tried(resnet: Space) -> None:
    """The cache has the loss of each one alone: a boundary between them is in both."""
    best = frozenset(number for number in resnet.everything if number % 3)
    pair = next(frozenset(one) for one in resnet.pairs if best.isdisjoint(one))

    def together(trial: Trial, state: State) -> Score:
        alone = {n: worth(frozenset({n})) * (0.1 if n in pair else 1.0) for n in resnet.everything}
        of = [sum(alone[n] for n in s) + 0.03 * (pair <= s) for s in (state, trial.reference)]
        return Score(of[0] - of[1], 0.001)

    prior = learned(resnet, best, costs=dict.fromkeys(pair, 0.003))
    told = play_with(resnet, prior, together, {"all": resnet.everything}, "local_search")
    assert told.search.best == best | pair
    assert not any({trial.stage for trial in told.trials} - {SEEDS, DOUBTS})


def test_two_neighbours_are_a_doubt_once_each_of_them_is_measured(resnet: Space) -> None:
    """There, or here: what costs a lot alone need not be tried with all that is around it."""
    one, other = resnet.pairs[0]
    pair = frozenset(resnet.pairs[0])
    prior = learned(resnet, resnet.everything, unmeasured={one})
    assert pair not in prior.doubts(resnet, resnet.everything, {})
    hopes = [
        prior.doubts(resnet, resnet.everything, {one: (gain, 0.001), other: (0.003, 0.001)})[pair]
        for gain in (0.003, 0.05)
    ]
    assert hopes[0] > 0.0 > hopes[1]


def test_what_is_part_of_another_kernel_is_doubted_too(resnet: Space) -> None:
    """It takes no time of its own, but conversions around it do."""
    add = next(n for n, group in enumerate(resnet.groups) if group.op_type == "Add")
    shares = {name: 0.1 for group in resnet.groups for name in group.nodes}
    space = Space(resnet.planner, resnet.groups, {**shares, resnet.groups[add].nodes[0]: 0.0})
    prior = learned(space, space.everything, unmeasured={add})
    doubts = prior.doubts(space, space.everything, {})
    assert 0.0 < doubts[frozenset({add})] < 0.01


def test_what_was_not_measured_is_tried_at_once(resnet: Space) -> None:
    """The other run had no time for it: all of a kind that may pay, then a single one."""
    adds = frozenset(n for n in resnet.everything if resnet.groups[n].op_type == "Add")
    prior = learned(resnet, resnet.everything - adds, unmeasured=adds)
    seeds = {"weighted": resnet.weighted()}
    told = play_with(resnet, prior, lambda t, s: Score(len(s) - len(t.reference), 0.1), seeds,
                     "local_search")  # fmt: skip
    first = next(trial for trial in told.trials if trial.stage == DOUBTS)
    assert first.candidates[0] ^ first.reference == adds
    assert told.search.best == resnet.everything


@pytest.mark.parametrize("better", [0.02, 0.2])
def test_a_seed_that_is_a_little_better_is_confirmed_instead(resnet: Space, better: float) -> None:
    best = frozenset(number for number in resnet.everything if number % 3)
    known, missing = best - {min(best)}, min(best)

    def answer(trial: Trial, state: State) -> Score:
        gains = [worth(s) + (better - 0.02) * (missing in s) for s in (state, trial.reference)]
        return Score(gains[0] - gains[1], 0.001)

    told = play_with(resnet, learned(resnet, known), answer, {"other tool": best}, "local_search")
    assert told.search.best == best
    assert ({trial.stage for trial in told.trials} == {SEEDS, DOUBTS}) == (better < 0.05)


@pytest.mark.parametrize("seed", range(3))
def test_small_gains_do_not_lead_to_a_search_of_full_length(resnet: Space, seed: int) -> None:
    """Nothing was measured, and noise says of many choices that they are better."""
    rng = random.Random(seed)

    def noise(trial: Trial, state: State) -> Score:
        gain = 1.0 if not trial.reference else 0.0
        return Score(gain + rng.gauss(0.004, 0.004), 0.002)

    prior = learned(resnet, resnet.everything, unmeasured=resnet.everything)
    limits = Limits(sweeps=1, benchmarks=150, confirming=20)
    told = play_with(resnet, prior, noise, {}, "local_search", limits)
    assert {trial.stage for trial in told.trials} == {SEEDS, DOUBTS}
    assert limits.confirming / 2 < asked(told) <= limits.confirming + 1
    assert not told.search.is_cut_short


def test_what_is_hopeless_is_tried_last(resnet: Space) -> None:
    """In a search that takes its usual course, as little is known of the model."""
    hopeless = sorted(resnet.everything)[:3]
    cache = PatternCache()
    for number in hopeless:
        choice = ChoiceOutcome(0, "whole", False, -0.02, 0.002, 0.03)
        cache.add_outcome(PatternOutcome(resnet.groups[number].pattern, 1, HERE, True, (choice,)))

    def none_pays(trial: Trial, state: State) -> Score:
        return Score(0.01 * (len(trial.reference) - len(state)), 0.002)

    for prior in (None, prior_of(resnet.groups, cache, HERE)):
        told = play_with(resnet, prior, none_pays, {"all": resnet.everything}, "local_search")
        flips = [
            trial.reference ^ state
            for trial in told.trials
            for state in trial.candidates
            if trial.stage == "patterns"
        ]
        first = flips[: len(hopeless)]
        assert (first == [{number} for number in hopeless]) == (prior is None)
        assert len(flips) > 2 * len(hopeless)
        if prior is not None:
            assert all(flip.isdisjoint(hopeless) for flip in flips[: -len(hopeless)])


def test_measurements_elsewhere_count_as_order_only() -> None:
    groups = (Group("Conv(e0)", 0, "Conv", ("conv",)),)
    cache = PatternCache()
    cache.add_outcome(outcome("Conv(e0)", chosen=True, gain=0.02))
    ((estimate,),) = [prior_of(groups, cache, HERE).estimates.values()]  # type: ignore[union-attr]
    assert estimate.is_near
    assert estimate.gain == pytest.approx(0.4)
    newer = replace(HERE, version="2")
    ((estimate,),) = [prior_of(groups, cache, newer).estimates.values()]  # type: ignore[union-attr]
    assert estimate.is_near
    for other in ({"device": "other"}, {"engine": "other"}, {"dialect": "tensorrt"}):
        found = prior_of(groups, cache, replace(HERE, **other))
        assert found is not None
        ((estimate,),) = [found.estimates.values()]
        assert (estimate.is_chosen, estimate.is_near, estimate.gain) == (True, False, None)
    assert prior_of((Group("Relu(e0)", 0, "Relu", ("relu",)),), cache, HERE) is None


def test_numbers_that_can_t_be_harm_nothing(resnet: Space) -> None:
    cache = PatternCache()
    for group, gain, share in zip(
        resnet.groups, [1e300, -1e300, 0.0, 1e-300] * 20, [1e-300, 1e-4, 0.0] * 30, strict=False
    ):
        choice = ChoiceOutcome(0, "whole", True, gain, 1e300, share)
        cache.add_outcome(PatternOutcome(group.pattern, 1, HERE, True, (choice,)))
    prior = prior_of(resnet.groups, cache, HERE)
    for strategy in ("local_search", "bayesian"):
        told = play_with(resnet, prior, every_third(0), {"all": resnet.everything}, strategy)
        assert told.search.best


def conv(batch: int, channels: int, image: int) -> str:
    shape = f"float[{batch}x{channels}x{image}x{image}]"
    return f"Conv(e0:{shape},c:float[{channels}x{channels}x3x3])={shape}=>%0"


def test_the_nearest_shapes_count() -> None:
    assert dims_in(conv(1, 64, 56))[:5] == (1, 64, 56, 56, 64)
    cache = PatternCache()
    cache.add_outcome(outcome(conv(1, 64, 56), chosen=True))
    cache.add_outcome(outcome(conv(1, 256, 14), chosen=False))
    for batch, channels, image, chosen, near in (
        (1, 64, 56, True, True), (8, 64, 56, True, True), (8, 256, 14, False, True),
        (1, 128, 28, True, False), (1, 64, 7, True, False),
    ):  # fmt: skip
        group = Group(conv(batch, channels, image), 0, "Conv", ("conv",))
        found = prior_of([group], cache, HERE)
        assert found is not None
        ((estimate,),) = [found.estimates.values()]
        assert (estimate.is_near, estimate.is_chosen or not near) == (near, chosen or not near)


def choices_in(width: float) -> Space:
    """The choices in a MobileNetV2: each of its depthwise Convs has as many groups as channels."""
    model = ir.from_proto(zoo.build("mobilenet_v2", image=64, width=width))
    fold(model)
    planner = QuantizationPlanner(GraphIndex(model), ONNXRUNTIME)
    return Space(planner, group_ops(planner.index, planner).groups, {})


def test_what_is_known_holds_for_a_model_of_another_width() -> None:
    space, narrower = choices_in(1.0), choices_in(0.75)
    cache = PatternCache()
    by_pattern: dict[str, list[Group]] = {}
    for group in space.groups:
        by_pattern.setdefault(group.pattern, []).append(group)
    for pattern, groups in by_pattern.items():
        choices = tuple(
            ChoiceOutcome(each.role, each.form.value, True, 0.02, 0.002, 0.05) for each in groups
        )
        cache.add_outcome(PatternOutcome(pattern, 1, HERE, True, choices))
    prior = prior_of(narrower.groups, cache, HERE)
    assert prior is not None
    assert prior.of(narrower).keys() == set(range(len(narrower.groups)))
    assert prior.is_sure(narrower)


def concat(inputs: int) -> str:
    """A pattern with so many channels in so many parts."""
    parts = ",".join(f"e{n}:float[1x{256 // inputs}x14x14]" for n in range(inputs))
    return f"Concat[axis=1]({parts})=float[1x256x14x14]=>%0"


def test_the_same_pattern_counts_more_than_one_of_the_same_dims() -> None:
    cache = PatternCache()
    cache.add_outcome(outcome(concat(2), chosen=True, gain=0.02))
    cache.add_outcome(outcome(concat(4), chosen=False, gain=-0.02))
    for inputs, chosen, same in ((2, True, True), (4, False, True), (8, False, False)):
        found = prior_of([Group(concat(inputs), 0, "Concat", ("concat",))], cache, HERE)
        assert found is not None
        ((estimate,),) = [found.estimates.values()]
        assert (estimate.is_chosen, estimate.is_near, estimate.is_same) == (chosen, True, same)


def test_outcomes_are_kept_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = PatternCache()
    finished = outcome("Conv(e0)", chosen=True, gain=0.02)
    cache.add_outcome(finished)
    cache.add_outcome(replace(finished, is_settled=False, choices=()))
    cache.add_outcome(outcome("Relu(e0)", chosen=False))
    cache.save(tmp_path / "cache.yaml")
    loaded = PatternCache.load(tmp_path / "cache.yaml")
    assert loaded.outcomes == cache.outcomes
    assert loaded.outcomes[0] == finished
    assert (loaded.num_patterns, loaded.total_schemes) == (2, 0)
    assert PatternCache.from_dict(loaded.to_dict()).outcomes == cache.outcomes

    body = yaml.safe_load((tmp_path / "cache.yaml").read_text())
    for damage in (
        {"size": "x"},
        {"choices": [{}]},
        {"conditions": 3},
        {"what": 1},
        {"choices": [{**finished.choices[0].to_dict(), "gain": 1e9}]},
        {"choices": [{**finished.choices[0].to_dict(), "share": -1.0}]},
        {"choices": [each.to_dict() for each in finished.choices * 2]},
    ):
        body["outcomes"][0] = {**finished.to_dict(), **damage}
        (tmp_path / "cache.yaml").write_text(yaml.safe_dump(body))
        with caplog.at_level(logging.WARNING):
            assert PatternCache.load(tmp_path / "cache.yaml").outcomes == cache.outcomes[1:]
        assert "a damaged outcome is left out" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("prefer_existing", [True, False])
def test_merged_outcomes(prefer_existing: bool) -> None:
    one, other = PatternCache(), PatternCache()
    one.add_outcome(outcome("Conv(e0)", chosen=True))
    other.add_outcome(outcome("Conv(e0)", chosen=False))
    other.add_outcome(outcome("Relu(e0)", chosen=True))
    one.merge(other, prefer_existing)
    found = {each.signature: each.choices[0].is_chosen for each in one.outcomes}
    assert found == {"Conv(e0)": prefer_existing, "Relu(e0)": True}
