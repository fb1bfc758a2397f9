"""What the measurements of a search say about single choices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

from qdqtune.search._space import Space, State
from qdqtune.search.patterns._pattern_outcomes import ChoiceOutcome, Conditions, PatternOutcome
from qdqtune.search.patterns._region_pattern import PatternView
from qdqtune.workflows.tuning._journal_format import decode

# Standard errors in the interval that is shown.
_WIDTH = 2.0
# A ratio that would be shown as 0.0 %.
_NOTHING = 1.0005
_TWICE = 2.0
# With more changes at once, a comparison says little about one of them.
_MOST_OTHERS = 3


class Effect(NamedTuple):
    """A comparison of two candidates that differ in a group, and perhaps in others.

    Attributes:
        others: Number of other groups in which they differ.
        error: Standard error of the gain.
        gain: Log speedup of the candidate in which the group is quantized.
    """

    others: int
    error: float
    gain: float


class GroupEffects:
    """The best evidence on whether each group of a search space pays.

    Args:
        space: The search space.
        lines: Lines of the journal; what was measured in another space is ignored.
        result: Key of the placement that others are compared with.
        called: What that is called.
        inaccurate: Ids of candidates that are not accurate enough.
    """

    def __init__(
        self,
        space: Space,
        lines: Iterable[str],
        result: str,
        called: str = "the result",
        inaccurate: Set[str] = frozenset(),
    ) -> None:
        self._inaccurate = inaccurate
        self._called = called
        bodies = [body for body in map(decode, lines) if body and body["kind"] == "measurement"]
        float_key = space.key(frozenset())
        states: dict[str, State] = {float_key: frozenset()}
        for body in bodies:
            state = frozenset(body.get("groups", ()))
            is_known = all(number < len(space.groups) for number in state)
            if is_known and space.key(state) == body["candidate"]:
                states[body["candidate"]] = space.closed(state)
        self._states = states
        self._result = result
        self._names = {body["candidate"]: body.get("id", "") for body in bodies}
        self._gains: dict[str, float] = {float_key: 0.0}
        self._best: dict[int, Effect] = {}
        self._failed: dict[int, str] = {}
        for body in bodies:
            candidate, reference = body["candidate"], body["reference"]
            if candidate in states and reference in states:
                self._take(body, states[candidate], states[reference])
            if body["gain"] is not None and reference in self._gains:
                self._gains[candidate] = self._gains[reference] + body["gain"]

    def _take(self, body: Mapping[str, Any], one: State, other: State) -> None:
        changed = one ^ other
        for number in changed:
            if body["gain"] is None:
                self._failed.setdefault(number, body["failure"] or "")
                continue
            gain = body["gain"] if number in one else -body["gain"]
            effect = Effect(len(changed) - 1, body["error"], gain)
            self._best[number] = min(effect, self._best.get(number, effect))

    def alone(self, number: int) -> Effect | None:
        """Return the comparison of two candidates that differ in this group only, if any."""
        effect = self._best.get(number)
        return effect if effect is not None and not effect.others else None

    def text(self, number: int, *, is_chosen: bool) -> str:
        """Say why a group is quantized, or why not.

        Args:
            number: The group.
            is_chosen: Whether it is quantized in the result.
        """
        effect = self._best.get(number)
        if effect is None:
            if failure := self._failed.get(number):
                return f"the engine refused it: {failure.splitlines()[0]}"
            if is_chosen:
                return "it is quantized with what it is connected to, not tried by itself"
            return "no candidate with it was tried"
        if effect.others > _MOST_OTHERS:
            return self._without_direct_evidence(number, is_chosen=is_chosen)
        spread = 100.0 * _WIDTH * effect.error
        what = "quantizing it, all else equal, made"
        if effect.others:
            what = f"quantizing it and changing {_choices(effect.others)} made"
        change = f"{_change(effect.gain)} (±\N{NO-BREAK SPACE}{spread:.1f}\N{NO-BREAK SPACE}%)"
        text = f"{what} the model {change}"
        if is_chosen == (effect.gain >= 0.0):
            return text
        return f"{text}; with other choices it turned out otherwise"

    def _without_direct_evidence(self, number: int, *, is_chosen: bool) -> str:
        """Compare the result with the best candidate that differs from it in the group."""
        others = [
            key
            for key, state in self._states.items()
            if (number in state) != is_chosen and key in self._gains and state
        ]
        if not others:
            form = "quantized" if is_chosen else "float"
            return f"it is {form} in every candidate that was measured"
        result = self._gains.get(self._result)
        if result is None:
            return "it was tried only together with many others"
        best = max(others, key=self._gains.__getitem__)
        gain = self._gains[best] - result
        known = self._states.get(self._result)
        count = len(self._states[best] ^ known) - 1 if known is not None else 0
        name = self._names[best] + (f", which differs in {_choices(count)}" if count else "")
        which = "does not quantize" if is_chosen else "quantizes"
        text = (
            f"the fastest candidate that {which} it ({name}) is {_change(gain)} than {self._called}"
        )
        if gain <= 0.0:
            return text
        is_out = self._names[best] in self._inaccurate
        return f"{text}, but was not {'accurate enough' if is_out else 'chosen'}"


def pattern_outcomes(
    space: Space,
    views: Iterable[PatternView],
    chosen: State,
    effects: GroupEffects,
    conditions: Conditions,
    *,
    is_settled: bool,
) -> list[PatternOutcome]:
    """Return what a run found out about each pattern that has choices.

    Args:
        space: The choices that regions have.
        views: The model's patterns.
        chosen: What the result quantizes.
        effects: What was measured of single choices.
        conditions: Where it was measured.
        is_settled: Whether the search went on until it was finished.
    """
    choices: dict[str, list[ChoiceOutcome]] = {}
    for number, group in enumerate(space.groups):
        effect, share = effects.alone(number), space.potential[number]
        evidence = (effect.gain, effect.error, share) if effect is not None else ()
        outcome = ChoiceOutcome(group.role, group.form.value, number in chosen, *evidence)
        choices.setdefault(group.pattern, []).append(outcome)
    return [
        PatternOutcome(
            view.pattern.signature, view.pattern.size, conditions, is_settled,
            tuple(choices[view.pattern.signature]),
        )
        for view in views
        if view.pattern.signature in choices
    ]  # fmt: skip


def _change(gain: float) -> str:
    """Say how much faster or slower something is: how much less or more time it takes."""
    ratio = math.exp(abs(gain))
    if ratio < _NOTHING:
        return "no faster"
    percent = f"{100.0 * (ratio - 1.0):.1f}\N{NO-BREAK SPACE}%"
    amount = percent if ratio < _TWICE else f"{ratio:.1f} times"
    return f"{amount} {'faster' if gain > 0.0 else 'slower'}"


def _choices(count: int) -> str:
    return f"{count} other choice{'s' * (count != 1)}"
