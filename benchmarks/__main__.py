"""`make bench` tunes; the first of ARGS names another benchmark, such as `files` or `workers`.

make bench ARGS="files --models vit"
make bench ARGS="subgraphs exact"
make bench ARGS="workers ray"
"""

from __future__ import annotations

import sys

from benchmarks import against_quantize_static, subgraphs, tuning, workers

_KINDS = {
    "tuning": tuning.main,
    "files": against_quantize_static.main,
    "subgraphs": subgraphs.main,
    "workers": workers.main,
}


def main() -> None:
    """Run the benchmark that is named first, or that of tuning."""
    arguments = sys.argv[1:]
    kind = arguments.pop(0) if arguments and arguments[0] in _KINDS else "tuning"
    _KINDS[kind](arguments)


if __name__ == "__main__":
    main()
