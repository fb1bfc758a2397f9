"""The output of `doctor`."""

from __future__ import annotations

from qdqtune.records._health import EngineHealth, GpuHealth, Health
from qdqtune.records._untrusted_files import size_text
from qdqtune.report._formatting import Line, Table, page

_COLUMNS = ("engine", "usable", "version", "dialect", "isa", "float32 in", "device, or why not")


def health_text(health: Health) -> str:
    """Format as text."""
    arithmetic = _arithmetic(health.saturates_u8s8)
    lines: list[Line] = [
        f"Python {health.python}; CPU {health.cpu}, {health.isa}: {arithmetic}.",
        _gpus(health.gpu),
    ]
    if health.max_memory is not None:
        limit = size_text(health.max_memory)
        lines.append(f"Each process that reads or runs a model may take {limit} (--max_memory).")
    lines += ["", Table(_COLUMNS, [_row(engine) for engine in health.engines])]
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
    for note in notes:
        lines += ["", note]
    return page(lines)


def _row(engine: EngineHealth) -> list[str]:
    usable = "yes" if engine.usable else "for layers" if engine.lists_layers else "no"
    facts = (engine.version, engine.dialect, engine.isa, engine.float_type)
    where = engine.device if engine.usable else engine.reason
    where = f"{where}; {engine.program}" if engine.program else where
    return [engine.name, usable, *(fact or "-" for fact in facts), where]


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
