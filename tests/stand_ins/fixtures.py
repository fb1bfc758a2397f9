"""Puts the stand-in trtexec on PATH, as a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
# Without `site` it starts in 20 ms; what builds brings the packages itself.
_PROGRAM = """#!{python} -SE
import sys
sys.path[:0] = {folders}
from tests.stand_ins.trtexec import main
main()
"""


def write_stand_in_trtexec(folder: Path) -> Path:
    """Writes a program called `trtexec` that is the stand-in; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    program = folder / "trtexec"
    folders = [str(_REPOSITORY), *packages]
    program.write_text(_PROGRAM.format(python=sys.executable, folders=folders))
    program.chmod(0o755)
    return folder


def stand_in_environment(
    folder: Path,
    version: str,
    *,
    fault: str = "",
    without: str = "",
    calls: Path | None = None,
    seed: int = 0,
) -> Mapping[str, str]:
    """Variables with which `trtexec` is the stand-in.

    Args:
        folder: Where `write_stand_in_trtexec` has put it.
        version: The version that it stands in for.
        fault: What goes wrong, and `@` part of the name of the model with which it does.
        without: Options that it doesn't know.
        calls: File for the arguments of each call.
        seed: What the noise of its times depends on.
    """
    variables = {
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "STAND_IN_TRT_VERSION": version,
        "STAND_IN_TRT_FAULT": fault,
        "STAND_IN_TRT_WITHOUT": without,
        "STAND_IN_TRT_SEED": str(seed),
    }
    return variables if calls is None else {**variables, "STAND_IN_TRT_CALLS": str(calls)}
