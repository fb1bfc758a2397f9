"""Input shapes among the arguments for an engine's program."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_SHAPES = re.compile(r"--(min|opt|max|)[sS]hapes=(.+)")


@dataclass
class ShapeArguments:
    """Shape arguments, separated from the others.

    Attributes:
        least: Shapes from `--minShapes`, in the form of our own flags.
        best: Shapes from `--optShapes`.
        most: Shapes from `--maxShapes`.
        run: Shapes from `--shapes`.
        others: All other arguments.
    """

    least: list[str] = field(default_factory=list)
    best: list[str] = field(default_factory=list)
    most: list[str] = field(default_factory=list)
    run: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @classmethod
    def found_in(cls, arguments: Iterable[str]) -> ShapeArguments:
        """Parse a split command line."""
        shapes = cls()
        places = {"min": shapes.least, "opt": shapes.best, "max": shapes.most, "": shapes.run}
        for argument in arguments:
            match = _SHAPES.fullmatch(argument)
            if match is None:
                shapes.others.append(argument)
            else:
                places[match[1]].append(match[2])
        return shapes

    @property
    def usual(self) -> list[str]:
        """The shapes that models are run at."""
        return self.run or self.best

    @property
    def built_for(self) -> list[str]:
        """The shapes that kernels are chosen for."""
        return self.best or self.run

    def as_options(self) -> dict[str, str]:
        """Return engine options for the ranges; empty if only one shape is given."""
        if not self.least and not self.most:
            return {}
        said = {"min_shapes": self.least, "opt_shapes": self.built_for, "max_shapes": self.most}
        return {name: ",".join(texts) for name, texts in said.items() if texts}
