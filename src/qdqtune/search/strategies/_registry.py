"""The strategies that `--strategy` knows: the built-in ones, and those of other packages.

Few choices and many ask for different searches. Among few, everything that was measured can be
weighed to choose the next benchmark well, and pairs of choices matter: `bayesian`. Among many, each
alone is too small to be seen; those that are alike are tried together first: `local_search`.

No step has a threshold: many gains are small, and asking for 2 % each would throw them away. What a
lucky measurement decided is put right by those that follow, and by the workflow, which compares the
outcome with the float model anew.
"""

from __future__ import annotations

from qdqtune.config import AUTO_STRATEGY, SUBGRAPH
from qdqtune.records._errors import UsageError
from qdqtune.records._health import find_plugins
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
    few = len(task.space.everything) <= _FEW
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
    plugins = find_plugins(GROUP, type, BUILTIN_STRATEGIES, _fault)
    for broken in plugins.broken:
        if broken.name == name:
            raise UsageError(
                f"The strategy {name} can't be used: {broken.reason}.",
                f"It is part of the package {broken.package}: mend or remove that.",
            )
    if name not in plugins.entries:
        names = (AUTO_STRATEGY, *BUILTIN_STRATEGIES, *plugins.entries)
        raise UsageError(f"Unknown strategy '{name}'.", f"Choices: {', '.join(names)}.")
    return plugins.entries[name]


def _fault(found: type, _name: str) -> str:
    is_strategy = issubclass(found, SearchStrategy)
    where = f"{found.__module__}:{found.__qualname__}"
    return "" if is_strategy else f"{where} is not a SearchStrategy class"
