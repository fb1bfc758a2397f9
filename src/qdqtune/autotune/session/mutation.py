"""New schemes from those that were measured, by small steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from qdqtune.autotune.config import Config
from qdqtune.autotune.patterns.insertion_points import InsertionPoint
from qdqtune.autotune.patterns.scheme import InsertionScheme

# How often, once every point was tested, the next step is a single point of the fastest scheme.
_SINGLE_STEPS = 0.5


def variations(
    measured: Sequence[InsertionScheme],
    points: Sequence[InsertionPoint],
    config: Config,
    chance: random.Random,
) -> Iterator[InsertionScheme]:
    """Schemes that differ from a fast one in a few points; they need not be new.

    First every point is changed once in the fastest scheme: where points don't depend on each
    other, that is enough to find the best scheme of all. Then chance mixes such steps with larger
    ones that start from any fast scheme. In the end, every single point of each of those is tried,
    so that nothing that lies next to a fast scheme is missed.

    Args:
        measured: Schemes that were measured without an error.
        points: Every point that there is.
        config: How many schemes to start from, how many points to change, how often to try.
        chance: What decides.
    """
    if not points or not measured or not config.maximum_mutations:
        return
    bases = _fastest(measured, config)
    tested = _times_tested(measured, points)
    order = sorted(chance.sample(points, len(points)), key=tested.__getitem__)
    for point in order:
        if not tested[point]:
            yield flipped(bases[0], [point], points)
    for attempt in range(config.maximum_generation_attempts):
        if chance.random() < _SINGLE_STEPS:
            yield flipped(bases[0], [order[attempt % len(order)]], points)
        else:
            count = chance.randint(1, min(config.maximum_mutations, len(points)))
            yield flipped(chance.choice(bases), chance.sample(points, count), points)
    for base in bases:
        for point in order:
            yield flipped(base, [point], points)


def flipped(
    base: InsertionScheme, changed: Sequence[InsertionPoint], points: Sequence[InsertionPoint]
) -> InsertionScheme:
    """A scheme with some points added, or taken out where it has them.

    Args:
        base: The scheme.
        changed: The points.
        points: Every point that there is, in the order that the result shall have.
    """
    wanted = set(base.points()) ^ set(changed)
    return InsertionScheme.of(point for point in points if point in wanted)


def _fastest(measured: Sequence[InsertionScheme], config: Config) -> list[InsertionScheme]:
    count = max(
        1,
        int(config.top_percent_to_mutate * len(measured)),
        min(config.minimum_schemes_to_mutate, len(measured)),
    )
    return sorted(measured, key=lambda scheme: scheme.latency_ms)[:count]


def _times_tested(
    measured: Sequence[InsertionScheme], points: Sequence[InsertionPoint]
) -> dict[InsertionPoint, int]:
    """How often each point was the only difference between two schemes."""
    known = {frozenset(scheme.points()) for scheme in measured}
    return {point: sum(each ^ {point} in known for each in known) for point in points}
