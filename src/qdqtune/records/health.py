"""What works on a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineHealth:
    """One engine on this machine.

    Attributes:
        name: The engine.
        usable: Whether it can measure.
        version: Its version, if installed.
        device: What it runs on.
        dialect: The dialect it speaks here.
        reason: Why it is not usable.
        measures: Whether its times are measured, not simulated.
    """

    name: str
    usable: bool
    version: str
    device: str
    dialect: str
    reason: str
    measures: bool = True


@dataclass(frozen=True)
class Health:
    """The machine and its engines.

    Attributes:
        python: Version of Python.
        cpu: Name of the CPU.
        isa: The instruction set that integer kernels use.
        saturates_u8s8: Whether 8-bit weights would give wrong results in u8*s8 kernels.
        engines: Every engine that qdqtune knows.
    """

    python: str
    cpu: str
    isa: str
    saturates_u8s8: bool
    engines: tuple[EngineHealth, ...]
