"""What the measurements of a search say about single choices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from qdqtune.search._space import Space, State
from qdqtune.workflows.tuning._journal_format import decode

# Standard errors in the interval that is shown.
_WIDTH = 2.0


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
    """

    def __init__(self, space: Space, lines: Iterable[str]) -> None:
        bodies = [body for body in map(decode, lines) if body and body["kind"] == "measurement"]
        states: dict[str, State] = {space.key(frozenset()): frozenset()}
        for body in bodies:
            state = frozenset(body.get("groups", ()))
            is_known = all(number < len(space.groups) for number in state)
            if is_known and space.key(state) == body["candidate"]:
                states[body["candidate"]] = state
        self._best: dict[int, Effect] = {}
        self._failed: dict[int, str] = {}
        for body in bodies:
            one, other = states.get(body["candidate"]), states.get(body["reference"])
            if one is None or other is None:
                continue
            changed = one ^ other
            for number in changed:
                if body["gain"] is None:
                    self._failed.setdefault(number, body["failure"] or "")
                    continue
                gain = body["gain"] if number in one else -body["gain"]
                effect = Effect(len(changed) - 1, body["error"], gain)
                self._best[number] = min(effect, self._best.get(number, effect))

    def text(self, number: int, *, is_chosen: bool) -> str:
        """Say why a group is quantized, or why not.

        Args:
            number: The group.
            is_chosen: Whether it is quantized in the result.
        """
        effect = self._best.get(number)
        if effect is None:
            if failure := self._failed.get(number):
                return f"The engine refused it: {failure.splitlines()[0]}"
            if is_chosen:
                return "It is quantized with what it is connected to; it was not tried by itself."
            return "No candidate with it was tried."
        percent, spread = 100.0 * math.expm1(effect.gain), 100.0 * _WIDTH * effect.error
        what = "Quantizing it, all else equal, made"
        if effect.others:
            what = f"Quantizing it and changing {effect.others} other choices made"
        change = f"{abs(percent):.1f} % {'faster' if percent >= 0.0 else 'slower'}"
        text = f"{what} the model {change} (± {spread:.1f} %)."
        if not is_chosen and percent > 0.0:
            text += " The search found something faster without it."
        return text
