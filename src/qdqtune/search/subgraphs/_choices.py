"""Units as the groups of a search: in which parts they are chosen, and what choices mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._tuning import SubgraphTimes
from qdqtune.search._space import Form, Group, State
from qdqtune.search.subgraphs._quantizable_groups import (
    FULL,
    NONE,
    Content,
    QuantizableGroup,
    Scheme,
    Subgraph,
)


@dataclass(frozen=True)
class Choices:
    """Units as the groups of a search: parts of them, so that other choices can be said, too.

    A unit that is quantized at its borders has its own number; in its borderless form it has that
    plus the number of all units (`Costs` counts in the same way).

    Attributes:
        groups: What a `Space` is made of.
        of_unit: By number, the groups that are chosen with the scheme; empty if there is none.
        around: By unit, those and the others in its place, which other schemes have.
        of_rival: By number, the groups that are chosen with the scheme's rival; empty if it has
            none.
    """

    groups: tuple[Group, ...] = ()
    of_unit: tuple[State, ...] = ()
    around: tuple[State, ...] = ()
    of_rival: tuple[State, ...] = ()

    def unit(self, number: int) -> int:
        """The unit that a number stands for."""
        return number % len(self.around)

    def state(self, numbers: Iterable[int]) -> State:
        """The groups of some units, each with its scheme."""
        return frozenset().union(*(self.of_unit[number] for number in numbers))

    def units(self, state: State) -> State:
        """The units of which anything is quantized in a choice, by their numbers."""
        count = len(self.around)
        return frozenset(
            unit if self._has_borders(groups & state) else unit + count
            for unit, groups in enumerate(self.around)
            if groups & state
        )

    def touched(self, groups: State) -> State:
        """The units that some groups are parts of."""
        return frozenset(unit for unit, own in enumerate(self.around) if own & groups)

    def otherwise(self, state: State) -> State:
        """Those of them that are quantized in another way than by their scheme."""
        return frozenset(n for n in self.units(state) if self._way(state, n) != self.of_unit[n])

    def with_schemes(self, state: State, numbers: Iterable[int]) -> State:
        """A choice in which units are quantized by their schemes, however they were before."""
        return self._replaced(state, {number: self.of_unit[number] for number in numbers})

    def with_rivals(self, state: State, numbers: Iterable[int]) -> State:
        """A choice in which units are quantized by the rivals of their schemes."""
        return self._replaced(state, {number: self.of_rival[number] for number in numbers})

    def flipped(self, state: State, numbers: Iterable[int]) -> State:
        """A choice in which the forms with these numbers are given up, or taken with their scheme.

        All else stays what it is.
        """
        flips = frozenset(numbers)
        taken = flips - self.units(state)
        parts = {number: self.of_unit[number] if number in taken else frozenset()
                 for number in flips}  # fmt: skip
        return self._replaced(state, parts)

    def _replaced(self, state: State, parts: Mapping[int, State]) -> State:
        """A choice with other groups in the places of some units."""
        others = state.difference(*(self.around[self.unit(number)] for number in parts))
        return others.union(*parts.values())

    def _has_borders(self, state: State) -> bool:
        return any(self.groups[number].form.needs_ranges for number in state)

    def _way(self, state: State, number: int) -> State:
        """The groups of a unit that are chosen; ops that are quantized whole have their weights so.

        That is no other way to quantize them.
        """
        chosen = self.around[self.unit(number)] & state
        if number >= len(self.around):
            return chosen
        return frozenset(n for n in chosen if self.groups[n].form is not Form.WEIGHTS)


def make_choices(
    units: Sequence[QuantizableGroup],
    subgraphs: Sequence[Subgraph],
    times: Mapping[str, SubgraphTimes],
    planner: QuantizationPlanner,
    ruled: Collection[str],
) -> Choices:
    """Cut each unit's group into parts that its schemes, the rules and everything consist of.

    Args:
        units: The units.
        subgraphs: The subgraphs that they are groups of.
        times: What was found out about subgraphs. The groups of those that nothing is known of, or
            that could not be timed alone, are choices, too, that belong to no unit.
        planner: What can be quantized.
        ruled: Names of the ops that placement rules would quantize.
    """
    groups: list[Group] = []
    around: list[State] = []
    for unit in units:
        first = len(groups)
        groups += _cut(subgraphs[unit.subgraph], unit.content, unit.schemes, planner, ruled)
        around.append(frozenset(range(first, len(groups))))
    for subgraph in subgraphs:
        found = times.get(subgraph.key)
        if found is None or found.form(NONE) is None:
            for content in subgraph.contents:
                groups += _cut(subgraph, content, (), planner, ruled)

    def chosen(unit: int, scheme: Scheme | None) -> State:
        """The groups that a unit's scheme consists of."""
        if scheme is None:
            return frozenset()
        content = units[unit].content
        return frozenset(
            number
            for number in around[unit]
            if groups[number].nodes[0] in scheme.nodes(content, groups[number].form)
        )

    numbered = list(enumerate(units))
    return Choices(
        tuple(groups),
        (*(chosen(n, unit.scheme) for n, unit in numbered),
         *(chosen(n, unit.borderless) for n, unit in numbered)),
        tuple(around),
        (*(chosen(n, unit.rival) for n, unit in numbered),
         *(chosen(n, unit.borderless_rival) for n, unit in numbered)),
    )  # fmt: skip


def _cut(
    subgraph: Subgraph,
    content: Content,
    schemes: Sequence[Scheme],
    planner: QuantizationPlanner,
    ruled: Collection[str],
) -> list[Group]:
    """What can be chosen in a fusion group, in parts that each of the schemes consists of."""
    groups: list[Group] = []
    full = [each.nodes(content) for each in subgraph.schemes if each.name == FULL]
    for form in Form:
        sets = [frozenset(scheme.nodes(content, form)) for scheme in schemes]
        names = frozenset().union(*sets)
        if form is Form.WHOLE:
            names = names.union(*full)
            sets.append(frozenset(ruled))
        parts: dict[tuple[bool, ...], list[str]] = {}
        for name in sorted(names, key=planner.index.position.__getitem__):
            parts.setdefault(tuple(name in each for each in sets), []).append(name)
        for part in parts.values():
            groups.append(_group(subgraph.key, len(groups), part, planner, form))
    return groups


def _group(
    key: str, role: int, names: Sequence[str], planner: QuantizationPlanner, form: Form
) -> Group:
    types = [planner.index.node[name].op_type for name in names]
    lead = next((each for each in types if each in WEIGHTED_OPS), types[0])
    return Group(key, role, lead, tuple(names), key, form)
