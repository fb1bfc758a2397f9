"""`python -m qdqtune.autotune.region_inspect`: show how a model is divided into regions."""

from __future__ import annotations

import sys

from qdqtune.cli.region_inspect import inspect_region_search, main

__all__ = ["inspect_region_search", "main"]

if __name__ == "__main__":
    sys.exit(main())
