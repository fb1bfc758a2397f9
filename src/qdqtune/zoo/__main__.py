"""`python -m qdqtune.zoo`: a model of the zoo as a file."""

from __future__ import annotations

import sys

from qdqtune.cli._zoo import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
