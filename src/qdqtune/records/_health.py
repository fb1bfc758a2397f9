"""The engines and hardware available on a machine, and plugins of other packages."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

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
    """An entry point of another package that can't be used.

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
        name: The manufacturer's name for it.
        compute_capability: Its compute capability, such as ``9.0``.
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


_T = TypeVar("_T")


@dataclass(frozen=True)
class Plugins(Generic[_T]):
    """The plugins of one group.

    Attributes:
        entries: The usable ones, by name.
        broken: The others.
    """

    entries: Mapping[str, _T]
    broken: tuple[BrokenPlugin, ...] = ()


def find_plugins(
    group: str, kind: type[_T], taken: Collection[str], fault: Callable[[_T, str], str]
) -> Plugins[_T]:
    """Load every entry point of a group; errors are reported in the result, never raised.

    Args:
        group: The group of entry points.
        kind: What each of them must be an instance of.
        taken: Names that plugins can't use.
        fault: Returns what is wrong with one that is announced under a name; empty if nothing is.
    """
    entries: dict[str, _T] = {}
    broken = []
    for point in importlib.metadata.entry_points(group=group):
        found, reason = _load(point, kind)
        if found is not None:
            reason = fault(found, point.name)
        if point.name in taken:
            reason = "the name belongs to qdqtune"
        elif point.name in entries:
            reason = "another package has one of that name"
        if found is None or reason:
            package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
            broken.append(BrokenPlugin(point.name, package, reason))
        else:
            entries[point.name] = found
    return Plugins(entries, tuple(broken))


def _load(point: importlib.metadata.EntryPoint, kind: type[_T]) -> tuple[_T | None, str]:
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # anything that a plugin's module does on import
        return None, " ".join(f"{type(error).__name__}: {error}".split())
    if not isinstance(found, kind):
        return None, f"{point.value} is not of type {kind.__name__}, but {type(found).__name__}"
    return found, ""
