"""What the stand-in is told by variables: the version that it stands in for, and what goes wrong.

STAND_IN_TRT_VERSION is a version. STAND_IN_TRT_FAULT is one of `FAULTS`, and may have `@` and part
of the name of the model with which it strikes; `file:PATH` is a file that says so, read anew each
time, so that what goes wrong can change while a process lives. STAND_IN_TRT_SLOWNESS multiplies all
times: what waits for long is told from what a busy machine takes.
"""

from __future__ import annotations

import os
from pathlib import Path

VERSION_TEXT = os.environ.get("STAND_IN_TRT_VERSION", "10.16.1")
VERSION = tuple(map(int, VERSION_TEXT.split(".")))
SLOWNESS = float(os.environ.get("STAND_IN_TRT_SLOWNESS", "1"))
VERSIONS = ("8.6.1", "10.16.1", "11.1.0")

FAULTS = (
    "no_device", "cuda_malloc_fails", "builder_none", "network_none", "parse_fails",
    "profile_rejected", "build_none", "build_fails", "build_fails_with_cache", "crash", "hang",
    "deserialize_none", "context_none", "set_input_shape_false", "set_tensor_address_false",
    "set_output_allocator_false", "execute_false", "report_false", "capture_fails",
)  # fmt: skip
"""All that can go wrong, by the call that says so."""
_FILE = "file:"


def strikes(fault: str, model: str = "") -> bool:
    """Whether something goes wrong now.

    Args:
        fault: One of `FAULTS`.
        model: The name of the model's file, where it is known.
    """
    assert fault in FAULTS
    told = os.environ.get("STAND_IN_TRT_FAULT", "")
    if told.startswith(_FILE):
        path = Path(told.removeprefix(_FILE))
        told = path.read_text() if path.exists() else ""
    name, _, part = told.strip().partition("@")
    return name == fault and part in model
