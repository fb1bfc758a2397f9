"""The flags of subgraph mode, which tuning has under either name."""

from __future__ import annotations

import argparse
from typing import Any

#: Where the flags are kept that mean nothing in region mode; None if they were not given.
ONLY_SUBGRAPH = ("graph_json", "incremental_validation")


class SaidOnce(argparse.Action):
    """Keeps a value that may be repeated, under any name of the flag, but not contradicted."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Store the value."""
        self.keep(namespace, self.dest, values)

    def keep(self, namespace: argparse.Namespace, name: str, value: Any) -> None:
        """Store a value under a name, unless it contradicts the one that is there."""
        before = getattr(namespace, name, None)
        if before not in (None, value):
            raise argparse.ArgumentError(self, f"{before} and {value} contradict each other")
        setattr(namespace, name, value)


def add_subgraph(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only subgraph mode has; see `ONLY_SUBGRAPH`."""
    group = parser.add_argument_group("subgraph mode (see docs/subgraphs.md)")
    group.add_argument(
        "--graph_json",
        metavar="FILE",
        help="TensorRT's layers of the model, which tell the fusion groups instead of the engine",
    )
    group.add_argument(
        "--incremental_validation",
        action="store_const",
        const=True,
        help="compare assemblies on the whole model, and improve the best by batches of groups "
        "(the default)",
    )
    group.add_argument(
        "--no_incremental_validation",
        dest="incremental_validation",
        action="store_const",
        const=False,
        help="only check that what the pieces advise is faster than the float model",
    )
