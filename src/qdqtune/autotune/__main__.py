"""`python -m qdqtune.autotune`."""

from __future__ import annotations

import sys

from qdqtune.autotune._command import (
    apply_mode_presets,
    get_parser,
    log_benchmark_config,
    main,
    run_autotune,
)

__all__ = ["apply_mode_presets", "get_parser", "log_benchmark_config", "main", "run_autotune"]

if __name__ == "__main__":
    sys.exit(main())
