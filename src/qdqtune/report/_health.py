"""The output of `doctor`."""

from __future__ import annotations

from qdqtune.records._health import EngineHealth, GpuHealth, Health
from qdqtune.records._printable import printable
from qdqtune.records._untrusted_files import size_text
from qdqtune.report._formatting import text_table


def health_text(health: Health) -> str:
    """Format as text."""
    rows = [
        [
            engine.name,
            _usable(engine),
            engine.version or "-",
            engine.dialect or "-",
            engine.isa or "-",
            engine.float_type or "-",
            _where(engine),
        ]
        for engine in health.engines
    ]
    columns = ["engine", "usable", "version", "dialect", "isa", "float32 in", "device, or why not"]
    arithmetic = _arithmetic(health.saturates_u8s8)
    machine = f"Python {health.python}; CPU {health.cpu}, {health.isa}: {arithmetic}."
    notes = [_limited(engine, health) for engine in health.engines if engine.limited is not None]
    notes += [
        f"{engine.name} computes float32 in {engine.float_type} here, which is faster and less "
        f"exact; --engine_option {engine.float32_option} makes it float32."
        for engine in health.engines
        if engine.float32_option
    ]
    notes += [
        f"warning: the engine {broken.name} of {broken.package or 'some package'} can't be used: "
        f"{broken.reason}"
        for broken in health.broken
    ]
    parts = [
        f"{machine}\n{printable(_gpus(health.gpu))}{_memory(health.max_memory)}",
        text_table(columns, rows),
        *map(printable, notes),
    ]
    return "\n\n".join(parts)


def _memory(limit: int | None) -> str:
    if limit is None:
        return ""
    return f"\nEach process that reads or runs a model may take {size_text(limit)} (--max_memory)."


def _usable(engine: EngineHealth) -> str:
    if engine.usable:
        return "yes"
    return "for layers" if engine.lists_layers else "no"


def _where(engine: EngineHealth) -> str:
    """Return what the engine runs on, or why it doesn't run."""
    told = engine.device if engine.usable else engine.reason
    return f"{told}; {engine.program}" if engine.program else told


def _gpus(gpu: GpuHealth) -> str:
    driver = f"driver {gpu.driver}" if gpu.driver else "driver"
    if not gpu.gpus:
        told = f" ({driver})" if gpu.driver else ""
        return f"No NVIDIA GPU answers: {gpu.reason}{told}."
    names = ", ".join(
        f"{each.name} (compute capability {each.compute_capability})" for each in gpu.gpus
    )
    return f"NVIDIA {driver}, CUDA {gpu.cuda}: {names}."


def _arithmetic(saturates: bool) -> str:
    if saturates:
        return "u8*s8 kernels saturate at int16 here, so weights get 7 bits"
    return "u8*s8 kernels are exact here, so weights get 8 bits"


def _limited(engine: EngineHealth, health: Health) -> str:
    assert engine.limited is not None
    setting = f"{engine.limited.variable}={engine.limited.limit}"
    why = (
        f"because {setting} is set"
        if engine.limited.is_inherited
        else f"because its newer kernels crash on this machine: qdqtune sets {setting} for it"
    )
    return (
        f"{engine.name} uses {engine.isa} instead of {health.isa}, {why}; "
        f"{_arithmetic(engine.saturates_u8s8)}. "
        f"Whatever runs tuned models here with {engine.name} needs {setting} in its environment, "
        "too."
    )
