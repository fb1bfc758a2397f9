"""What the measurements of a search say about single choices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

from qdqtune.search._space import Form, Space, State
from qdqtune.search.patterns._pattern_outcomes import ChoiceOutcome, Conditions, PatternOutcome
from qdqtune.search.patterns._region_pattern import PatternView
from qdqtune.workflows.tuning._journal_format import decode

# Standard errors in the interval that is shown.
_WIDTH = 2.0
# A ratio that would be shown as 0.0 %.
_NOTHING = 1.0005
_TWICE = 2.0
# With more changes at once, a comparison says little about one of them,
_MOST_OTHERS = 3
# and with more than these, nothing.
_MOST_TOLD = 10


class _Words(NamedTuple):
    """How it is said of an op that it is quantized in a form."""

    doing: str
    does: str
    done: str


_WORDS = {
    Form.WHOLE: _Words("quantizing it", "quantizes it", "quantized"),
    Form.WEIGHTS: _Words(
        "quantizing its weights", "quantizes its weights", "quantized in its weights"
    ),
    Form.ACTIVATIONS: _Words(
        "quantizing its activations", "quantizes its activations", "quantized in its activations"
    ),
    Form.DYNAMIC: _Words(
        "quantizing it at run time", "quantizes it at run time", "quantized at run time"
    ),
    Form.UNFUSED: _Words(
        "keeping it from being fused", "keeps it from being fused", "kept from being fused"
    ),
}


class Effect(NamedTuple):
    """A comparison of two candidates that differ in a group, and perhaps in others.

    Attributes:
        others: Number of other choices in which they differ.
        instead: What of these ops the other one quantizes; empty if they are float in it.
        error: Standard error of the gain.
        gain: Log speedup of the candidate in which the group is quantized.
    """

    others: int
    instead: str
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
        self._space = space
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
            without = other if number in one else one
            form = self._form_in(without, number)
            others = self._choices_in(changed) - 1
            effect = Effect(others, _WORDS[form].doing if form else "", body["error"], gain)
            self._best[number] = min(effect, self._best.get(number, effect))

    def _form_in(self, state: State, number: int) -> Form | None:
        """Return what of a group's ops a choice quantizes; None if they are float in it."""
        forms = [number] if number in state else state & self._space.rivals([number])
        return next((self._space.groups[each].form for each in sorted(forms)), None)

    def _choices_in(self, changed: State) -> int:
        """Count what was changed; another form of the same ops is one change, not two."""
        return len({self._space.groups[number].nodes[0] for number in changed})

    def alone(self, number: int) -> Effect | None:
        """Return the comparison of two candidates of which one has this group float, if any.

        They differ in nothing else.
        """
        effect = self._best.get(number)
        is_alone = effect is not None and not effect.others and not effect.instead
        return effect if is_alone else None

    def text(self, number: int, *, is_chosen: bool) -> str:
        """Say why a group is quantized, or why not.

        Args:
            number: The group.
            is_chosen: Whether it is quantized in the result.
        """
        effect, doing = self._best.get(number), self._words(number).doing
        if effect is None:
            if failure := self._failed.get(number):
                return f"the engine refused it: {failure.splitlines()[0]}"
            if is_chosen:
                return "it is quantized with what it is connected to, not tried by itself"
            return "no candidate with it was tried"
        if effect.others > _MOST_OTHERS:
            return self._without_direct_evidence(number, is_chosen=is_chosen)
        spread = 100.0 * _WIDTH * effect.error
        what = f"{doing} instead of {effect.instead}" if effect.instead else doing
        what += f" and changing {_choices(effect.others)}" if effect.others else ", all else equal,"
        change = f"{_change(effect.gain)} (±\N{NO-BREAK SPACE}{spread:.1f}\N{NO-BREAK SPACE}%)"
        text = f"{what} made the model {change}"
        if is_chosen == (effect.gain >= 0.0):
            return text
        return f"{text}; with other choices it turned out otherwise"

    def _words(self, number: int) -> _Words:
        return _WORDS[self._space.groups[number].form]

    def _without_direct_evidence(self, number: int, *, is_chosen: bool) -> str:
        """Compare the result with the best candidate that differs from it in the group."""
        formed = {
            key: form
            for key, state in self._states.items()
            for form in [self._form_in(state, number)]
            if key in self._gains and state
            if (number not in state if is_chosen else form is not None)
        }
        if not formed:
            if not is_chosen:
                return "it is float in every candidate"
            done = self._words(number).done
            return f"it is {done} in every candidate but the float model itself"
        if self._result not in self._gains or self._result not in self._states:
            return "it was tried only together with many others"
        others = {key: self._others(key) for key in formed}
        near = [key for key in formed if others[key] <= _MOST_TOLD]
        pool = near or list(formed)
        pool = [key for key in pool if formed[key] is None] or pool
        best = max(pool, key=self._gains.__getitem__)
        is_known_float = not is_chosen or None in formed.values()
        text = "" if is_known_float else "no candidate left it float; "
        form, does = formed[best], "lets the engine fuse it"
        if form is not None:
            does = _WORDS[form].does
        elif self._space.groups[number].form is not Form.UNFUSED:
            does = "leaves it float"
        gain = self._gains[best] - self._gains[self._result]
        alike = (self._gains[key] for key in formed if formed[key] is form)
        is_fastest = self._gains[best] >= max(alike)
        name = self._names[best]
        if near and others[best]:
            name += f", which differs in {_choices(others[best])}"
        which = "the fastest" if is_fastest else "a"
        text += f"{which} candidate that {does} ({name}) is {_change(gain)} than {self._called}"
        if not near:
            return f"it was not tried alone: {text}, and differs in {_choices(others[best])}"
        if gain <= 0.0:
            return text
        is_out = self._names[best] in self._inaccurate
        return f"{text}, but was not {'accurate enough' if is_out else 'chosen'}"

    def _others(self, key: str) -> int:
        """Count in how many choices a candidate differs from the result, besides one."""
        return self._choices_in(self._states[key] ^ self._states[self._result]) - 1


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
    choices: dict[str, dict[tuple[int, str], ChoiceOutcome]] = {}
    # Modules of several kinds may have one pattern: those that take most of the time speak for it.
    for number in sorted(range(len(space.groups)), key=lambda each: -space.potential[each]):
        group, effect = space.groups[number], effects.alone(number)
        evidence = (effect.gain, effect.error, space.potential[number]) if effect else ()
        outcome = ChoiceOutcome(group.role, group.form.value, number in chosen, *evidence)
        choices.setdefault(group.pattern, {}).setdefault((group.role, group.form.value), outcome)
    return [
        PatternOutcome(
            view.pattern.signature, view.pattern.size, conditions, is_settled,
            tuple(of_place for _, of_place in sorted(choices[view.pattern.signature].items())),
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
