"""Candidates that could be better than the incumbent, by the Bayesian model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from qdqtune.autotune.search.bayesian_linear_model import BayesianLinearModel, Floats
from qdqtune.autotune.search.space import Space, State

_WORLDS = 8
# The model is simpler than machines are, and therefore too sure of itself.
_OPTIMISM = 2.0
# Worlds are guesses: a choice far away from all that was measured is right about too few of them.
_MOST_STEPS = 8
_NORMAL = math.sqrt(2.0 * math.pi)


def proposals(
    space: Space,
    regression: BayesianLinearModel,
    starts: Sequence[State],
    generator: np.random.Generator,
) -> list[State]:
    """Choices worth a thought.

    These are the best ones in the expected world and in some possible ones, and the neighbours of
    the incumbent: one group flipped, two neighbours, a whole pattern.

    Args:
        space: The choices.
        regression: What is known about them.
        starts: Where to look for the best from; the incumbent first.
        generator: Draws the worlds.
    """
    incumbent = starts[0]
    found: list[State] = []
    worlds = [regression.effects(), *(regression.effects(generator) for _ in range(_WORLDS))]
    for effects in worlds:
        best = [ascend(start, effects, regression.pairs) for start in starts]
        found.append(max(best, key=lambda state: value_of(state, effects, regression.pairs)))
    found += [incumbent ^ {number} for number in range(len(space.groups))]
    found += [incumbent ^ {*pair} for pair in regression.pairs]
    for numbers in space.patterns.values():
        found += (incumbent | {*numbers}, incumbent - {*numbers})
    return [state for state in dict.fromkeys(found) if state != incumbent]


def ascend(start: State, effects: tuple[Floats, Floats], pairs: Sequence[tuple[int, int]]) -> State:
    """The choice from which neither a flip of one group nor of two neighbours leads higher."""
    of_groups, of_boundaries = effects
    first = np.array([i for i, _ in pairs], dtype=np.intp)
    second = np.array([j for _, j in pairs], dtype=np.intp)
    signs = np.ones(len(of_groups))  # 1 where a flip quantizes
    signs[list(start)] = -1.0
    for _ in range(_MOST_STEPS):
        # A flip makes a boundary where there is none, and takes away the one that there is.
        made = of_boundaries * signs[first] * signs[second]
        single = of_groups * signs
        np.add.at(single, first, made)
        np.add.at(single, second, made)
        both = single[first] + single[second] - 2.0 * made
        best_single = int(np.argmax(single))
        best_both = int(np.argmax(both)) if len(both) else -1
        if best_both >= 0 and both[best_both] > max(single[best_single], 1e-12):
            signs[[first[best_both], second[best_both]]] *= -1.0
        elif single[best_single] > 1e-12:
            signs[best_single] *= -1.0
        else:
            break
    return frozenset(np.flatnonzero(signs < 0.0).tolist())


def value_of(
    state: State, effects: tuple[Floats, Floats], pairs: Iterable[tuple[int, int]]
) -> float:
    """The sum of all effects on a choice."""
    of_groups, of_boundaries = effects
    crossed = [number for number, (i, j) in enumerate(pairs) if (i in state) != (j in state)]
    return float(of_groups[list(state)].sum() + of_boundaries[crossed].sum())


def expected_improvement(mean: Floats, deviation: Floats) -> Floats:
    """How much better than the incumbent each choice is on average, where worse counts as 0."""
    deviation = _OPTIMISM * deviation
    distance = mean / deviation
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in distance])
    result: Floats = mean * below + deviation * np.exp(-0.5 * distance**2) / _NORMAL
    return result
