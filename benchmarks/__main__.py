"""`make bench` tunes; `make bench ARGS="files --models vit"` compares files of given placements."""

from __future__ import annotations

import sys

from benchmarks import against_quantize_static, tuning

_KINDS = {"tuning": tuning.main, "files": against_quantize_static.main}


def main() -> None:
    """Run the benchmark that is named first, or that of tuning."""
    arguments = sys.argv[1:]
    kind = arguments.pop(0) if arguments and arguments[0] in _KINDS else "tuning"
    _KINDS[kind](arguments)


main()
