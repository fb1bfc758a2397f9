"""The strategies that `--strategy` knows: the built-in ones, and those of other packages.

Few choices and many ask for different searches. Among few, everything that was measured can be
weighed to choose the next benchmark well, and pairs of choices matter: `bayesian`. Among many, each
alone is too small to be seen; those that are alike are tried together first: `local_search`.

No step has a threshold: many gains are small, and asking for 2 % each would throw them away. What a
lucky measurement decided is put right by those that follow, and by the workflow, which compares the
outcome with the float model anew.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from qdqtune.config import AUTO_STRATEGY, SUBGRAPH
from qdqtune.records._errors import UsageError
from qdqtune.search.strategies._assembly_search import AssemblySearch
from qdqtune.search.strategies._bayesian import BayesianSearch
from qdqtune.search.strategies._local_search import LocalSearch
from qdqtune.search.strategies._strategy import SearchStrategy, SearchTask

GROUP = "qdqtune.strategies"
"""The entry points by which other packages announce theirs."""

BUILTIN_STRATEGIES: dict[str, type[SearchStrategy]] = {
    "bayesian": BayesianSearch,
    "local_search": LocalSearch,
    "assembly": AssemblySearch,
}

# The most groups among which every benchmark is weighed.
_FEW = 12


def make_strategy(task: SearchTask, name: str = AUTO_STRATEGY) -> SearchStrategy:
    """The strategy for a task.

    Args:
        task: What to search in.
        name: A strategy for the task's workflow; `auto` chooses.

    Raises:
        UsageError: If there is no such strategy, or it is for another workflow.
    """
    check_strategy(name, task.workflow)
    if name != AUTO_STRATEGY:
        return strategy_class(name)(task)
    if task.workflow == SUBGRAPH:
        return strategy_class("assembly")(task)
    few = len(task.space.groups) <= _FEW
    return strategy_class("bayesian" if few else "local_search")(task)


def check_strategy(name: str, workflow: str) -> None:
    """Refuse a strategy that a workflow can't use.

    Raises:
        UsageError: If there is no such strategy, or it is for another workflow.
    """
    found = None if name == AUTO_STRATEGY else strategy_class(name)
    if found is not None and found.workflow != workflow:
        raise UsageError(
            f"The strategy {name} requires --workflow {found.workflow}.",
            f"Add --workflow {found.workflow} (workflow={found.workflow!r}), or leave "
            f"--strategy out.",
        )


def strategy_class(name: str) -> type[SearchStrategy]:
    """The class of a strategy.

    Raises:
        UsageError: If there is none of that name, or it can't be used.
    """
    if name in BUILTIN_STRATEGIES:
        return BUILTIN_STRATEGIES[name]
    points = list(_announced(name))
    if not points:
        names = dict.fromkeys([AUTO_STRATEGY, *BUILTIN_STRATEGIES, *(p.name for p in _announced())])
        raise UsageError(f"Unknown strategy '{name}'.", f"Choices: {', '.join(names)}.")
    found, fault = _loaded(points[0])
    if len(points) > 1:
        fault = "another package has a strategy of that name"
    if found is None or fault:
        packages = " and ".join(_package(point) for point in points)
        raise UsageError(
            f"The strategy {name} can't be used: {fault}.",
            f"It is part of the package {packages}: mend or remove that.",
        )
    return found


def _announced(name: str | None = None) -> Iterator[importlib.metadata.EntryPoint]:
    for point in importlib.metadata.entry_points(group=GROUP):
        if name in (None, point.name):
            yield point


def _loaded(point: importlib.metadata.EntryPoint) -> tuple[type[SearchStrategy] | None, str]:
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # anything that a plugin's module does on import
        return None, " ".join(f"{type(error).__name__}: {error}".split())
    if not (isinstance(found, type) and issubclass(found, SearchStrategy)):
        return None, f"{point.value} is no SearchStrategy class"
    return found, ""


def _package(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
