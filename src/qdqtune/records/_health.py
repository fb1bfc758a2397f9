"""Records of the engines and hardware available on a machine."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtune.records._json_form import Record


@dataclass(frozen=True)
class IsaLimit:
    """Why an engine's kernels use fewer instructions than the CPU offers.

    Attributes:
        limit: The newest instructions that they may use, in the engine's notation.
        variable: Environment variable that sets the limit for any process that runs the engine.
        is_inherited: Whether the variable was already set; otherwise newer kernels crash here.
    """

    limit: str
    variable: str
    is_inherited: bool


@dataclass(frozen=True)
class EngineHealth:
    """The state of one engine on this machine.

    Attributes:
        name: The engine.
        usable: Whether it can measure.
        version: Its version, if installed.
        device: What it runs on.
        dialect: The dialect it uses here.
        reason: Why it is not usable.
        measures: Whether its times are measured, not simulated.
        isa: The instruction set that its integer kernels use; empty if it didn't answer.
        saturates_u8s8: Whether 8-bit weights would give wrong results in them.
        limited: Why that is less than the CPU has; None if it isn't.
        program: Path of its program; empty if it is not a program.
        lists_layers: Whether it can't measure, but lists the layers of a model.
        float_type: The type in which it computes float32; empty if unknown.
        float32_option: The option that makes it compute in float32, if it doesn't by default.
    """

    name: str
    usable: bool
    version: str
    device: str
    dialect: str
    reason: str
    measures: bool = True
    isa: str = ""
    saturates_u8s8: bool = False
    limited: IsaLimit | None = None
    program: str = ""
    lists_layers: bool = False
    float_type: str = ""
    float32_option: str = ""


@dataclass(frozen=True)
class BrokenPlugin:
    """What another package announces by an entry point, but can't be used.

    Attributes:
        name: Its name.
        package: The package that announces it, with its version.
        reason: What is wrong with it.
    """

    name: str
    package: str
    reason: str


@dataclass(frozen=True)
class Gpu:
    """A GPU that answers.

    Attributes:
        name: What its maker calls it.
        compute_capability: Such as ``9.0``.
    """

    name: str
    compute_capability: str


@dataclass(frozen=True)
class GpuHealth:
    """NVIDIA GPUs and their driver.

    Attributes:
        driver: Version of the driver; empty if unknown.
        cuda: The newest version of CUDA that it runs; empty if it doesn't answer.
        gpus: Those that answer.
        reason: Why there are none; empty if there are.
    """

    driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Health(Record):
    """The machine and its engines.

    Attributes:
        python: Version of Python.
        cpu: Name of the CPU.
        isa: The best instruction set that it has for integer kernels.
        saturates_u8s8: Whether 8-bit weights would give wrong results in u8*s8 kernels.
        engines: Every engine that qdqtune knows.
        broken: Those of other packages that can't be used.
        gpu: The NVIDIA GPUs, which some engines need.
        max_memory: Bytes that each process may take; None if nothing limits it.
    """

    python: str
    cpu: str
    isa: str
    saturates_u8s8: bool
    engines: tuple[EngineHealth, ...]
    broken: tuple[BrokenPlugin, ...] = ()
    gpu: GpuHealth = GpuHealth()
    max_memory: int | None = None
