"""The machines that can be simulated: their costs, dialects and noise."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from qdqtune.records._errors import UsageError

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_HALF, _BFLOAT = ir.DataType.FLOAT16, ir.DataType.BFLOAT16
_UINT8, _INT8 = ir.DataType.UINT8, ir.DataType.INT8
_FLOAT8 = ir.DataType.FLOAT8E4M3FN

CPU_EPILOGUES = frozenset(
    {"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu"}
)
"""Activations that a CPU's float Conv or MatMul applies before writing its result."""

# More than any process has: opens are numbered consecutively across processes.
_OPENS_PER_PROCESS = 1_000_000


@dataclass(frozen=True)
class MacUnit:
    """How fast a machine multiplies one type of activations with weights.

    Attributes:
        rate: Billions of multiply-adds per second at best.
        input_step: Input channels are padded to a multiple of this.
        output_step: Output channels are padded to a multiple of this.
        depthwise: Fraction of the rate for a Conv with one input channel per group.
    """

    rate: float
    input_step: int = 1
    output_step: int = 1
    depthwise: float = 0.25


@dataclass(frozen=True)
class Profile:
    """A machine with its engine.

    Attributes:
        name: As in the option `profile`.
        summary: A one-line description.
        dialect: The dialect whose rules determine which ops have low-precision kernels.
        units: How fast it multiplies, by type of the activations. A missing quantized type has no
            kernels: its Q and DQ cost their passes without a gain. Other missing types are as fast
            as float.
        bandwidth: Billions of bytes per second that a kernel reads and writes.
        conversion_bandwidth: The same for a Q or DQ pass; never above `bandwidth`.
        reformat_bandwidth: The same for a layout change, and for a Transpose that scatters rows.
        element_rate: Billions of simple operations on elements per second.
        requantize_steps: Simple operations per element that a low-precision kernel spends on its
            result; ops without multiply-adds spend them on each operand, too.
        launch_us: Microseconds of overhead per kernel.
        low_launch_us: Additional microseconds for a low-precision kernel, to set up scales.
        half_full: Results, in elements, at which half of the machine is busy; 0 for one core.
        fuses_pointwise: Whether any neighbouring pointwise ops become one kernel, even after a
            weighted op, and whether such a kernel can write quantized values.
        epilogues: Otherwise, the ops that a float weighted op fuses.
        build_s: Seconds to open a model.
        build_kernel_s: Additional seconds for each kernel.
        fuses: Whether ops are fused at all, except for an activation that the dialect counts as
            part of the op before it. If not, each op's cost is independent: a low-precision kernel
            reads and writes quantized values whatever its neighbours are, and where they meet
            floats, a pass converts a tensor once.
        has_layouts: Whether low-precision Convs have their own layout.
        dynamic: How fast products are whose input is quantized at run time, relative to other
            uint8 ones; 0 if it has no such kernels, and runs what is written.
        dynamic_steps: Simple operations per element for quantizing an input at run time; all
            products that read it share the result.
        fused_norm_steps: Additional simple operations per element of a layer normalization that is
            fused with the Add before it, as it is whenever there is one; a Sum is never fused.
    """

    name: str
    summary: str
    dialect: str
    units: Mapping[ir.DataType, MacUnit] = field(hash=False)
    bandwidth: float
    conversion_bandwidth: float
    reformat_bandwidth: float
    element_rate: float
    requantize_steps: float
    launch_us: float
    low_launch_us: float = 0.0
    half_full: float = 0.0
    fuses_pointwise: bool = False
    epilogues: frozenset[str] = frozenset()
    build_s: float = 0.05
    build_kernel_s: float = 0.001
    fuses: bool = True
    has_layouts: bool = True
    dynamic: float = 0.0
    dynamic_steps: float = 0.0
    fused_norm_steps: float = 0.0


def _float_units(rate: float, output_step: int) -> dict[ir.DataType, MacUnit]:
    """Return a CPU's float units: half precision is computed as float, with conversions."""
    return {
        _FLOAT: MacUnit(rate, 1, output_step),
        _DOUBLE: MacUnit(rate / 2, 1, output_step),
        _HALF: MacUnit(rate * 0.7, 1, output_step),
        _BFLOAT: MacUnit(rate * 0.7, 1, output_step),
    }


_CPU_VNNI = Profile(
    name="cpu-vnni",
    summary="one core of a server CPU with AVX-512 VNNI",
    dialect="onnxruntime",
    units={
        **_float_units(95.0, 16),
        _UINT8: MacUnit(210.0, 4, 16, depthwise=0.06),
        _INT8: MacUnit(120.0, 4, 16, depthwise=0.06),
    },
    bandwidth=24.0,
    conversion_bandwidth=12.0,
    reformat_bandwidth=6.0,
    element_rate=10.0,
    requantize_steps=2.5,
    launch_us=2.5,
    low_launch_us=2.5,
    epilogues=CPU_EPILOGUES,
)

_CPU_DYNAMIC = replace(
    _CPU_VNNI,
    name="cpu-dynamic",
    summary="the same core, whose engine also quantizes inputs at run time",
    dynamic=0.9,
    dynamic_steps=4.0,
    fused_norm_steps=10.0,
)

_CPU = replace(
    _CPU_VNNI,
    name="cpu",
    summary="one core of a CPU with AVX2 and no VNNI",
    dialect="onnxruntime-novnni",
    units={
        **_float_units(50.0, 8),
        _UINT8: MacUnit(108.0, 2, 8, depthwise=0.07),
        _INT8: MacUnit(58.0, 2, 8, depthwise=0.07),
    },
    bandwidth=16.0,
    conversion_bandwidth=8.0,
    reformat_bandwidth=4.0,
    element_rate=6.0,
)

_FLOAT_ONLY = replace(
    _CPU,
    name="float-only",
    summary="the same core without any integer kernel: whatever is quantized is slower",
    units=_float_units(50.0, 8),
)

_GPU = Profile(
    name="gpu",
    summary="a small inference GPU, batch 1 leaves most of it idle",
    dialect="tensorrt",
    units={
        _FLOAT: MacUnit(4000.0, 1, 32, depthwise=0.10),
        _DOUBLE: MacUnit(130.0, 1, 32, depthwise=0.5),
        _HALF: MacUnit(16000.0, 8, 64, depthwise=0.05),
        _BFLOAT: MacUnit(16000.0, 8, 64, depthwise=0.05),
        _INT8: MacUnit(32000.0, 32, 64, depthwise=0.02),
        _FLOAT8: MacUnit(32000.0, 16, 64, depthwise=0.015),
    },
    bandwidth=280.0,
    conversion_bandwidth=240.0,
    reformat_bandwidth=180.0,
    element_rate=2000.0,
    requantize_steps=1.0,
    launch_us=3.0,
    half_full=40_000.0,
    fuses_pointwise=True,
    build_s=8.0,
    build_kernel_s=0.7,
)

PROFILES: dict[str, Profile] = {
    profile.name: profile for profile in (_CPU_VNNI, _CPU_DYNAMIC, _CPU, _FLOAT_ONLY, _GPU)
}
DEFAULT_PROFILE = _CPU_VNNI


def profile_named(name: str) -> Profile:
    """Return the profile with a name.

    Raises:
        ValueError: If no profile has that name.
    """
    check_known("simulated profile", name, PROFILES)
    return PROFILES[name]


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Make sure that a name is known.

    Raises:
        ValueError: If it isn't; the message lists the known ones.
    """
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        guess = f"; did you mean '{near[0]}'?" if near else "."
        raise ValueError(f"unknown {what} '{name}'{guess} There are: {', '.join(known)}")


def dialect_of(options: Mapping[str, str]) -> str:
    """Return the name of the dialect of the machine that options select.

    Raises:
        UsageError: If there is no such machine.
    """
    try:
        return profile_named(options.get("profile", DEFAULT_PROFILE.name)).dialect
    except ValueError as error:
        raise UsageError(
            f"The simulated engine: {error}.", "See docs/extend/simulated.md."
        ) from None


def check_amount(name: str, value: float) -> float:
    """Return a value, if it is finite and not negative.

    Raises:
        ValueError: If it isn't.
    """
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"{name} is {value:g}; it must be a number of at least 0")
    return value


@dataclass(frozen=True)
class Noise:
    """How noisy a machine is; see docs/extend/simulated.md for the arithmetic.

    Attributes:
        noise: Deviation of a run's log latency.
        correlation: Correlation of neighbouring runs, from 0 to below 1.
        drift: Deviation of the machine's log speed.
        drift_s: Virtual seconds after which the machine has mostly forgotten its state.
        spikes: Probability that a run is hit by a spike.
        spike_size: How much longer it then takes, relative to its latency.
        offset: Deviation of an open's log latency.
    """

    noise: float = 0.01
    correlation: float = 0.3
    drift: float = 0.02
    drift_s: float = 2.0
    spikes: float = 0.01
    spike_size: float = 0.5
    offset: float = 0.002

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_amount(name, value)
        if self.correlation >= 1.0 or self.spikes > 1.0:
            raise ValueError("correlation is below 1, and spikes is a probability")


class Machine:
    """State that all opens with one seed share: the machine's speed, and virtual time.

    Args:
        noise: How noisy it is.
        seed: The random seed; the same requests give the same samples.
        process: Number of the process, if a comparison uses several: opens of a model have
            different noise in each.

    Attributes:
        clock_s: Virtual seconds that have passed.
    """

    def __init__(self, noise: Noise, seed: int, process: int = 0) -> None:
        self.noise = noise
        self.clock_s = 0.0
        self._seed = seed
        self._opens_before = process * _OPENS_PER_PROCESS
        self._generator = _generator(seed, b"machine", process)
        self._state = float(self._generator.standard_normal())
        self._told_s = 0.0
        self._opens: dict[bytes, int] = {}

    def run_noise(self, content: bytes) -> RunNoise:
        """Return the noise of another open of a model.

        Args:
            content: A hash of the model. Every open of it gets its own noise.
        """
        count = self._opens[content] = self._opens.get(content, 0) + 1
        return RunNoise(self, _generator(self._seed, content, self._opens_before + count))

    def slowness(self, runs: int) -> Iterator[float]:
        """Yield the machine's log slowness at each run; it changes with the time that passes."""
        for normal in self._generator.standard_normal(runs).tolist():
            passed_s, self._told_s = self.clock_s - self._told_s, self.clock_s
            kept = math.exp(-passed_s / self.noise.drift_s) if self.noise.drift_s else 0.0
            self._state = kept * self._state + math.sqrt(1.0 - kept * kept) * normal
            yield self.noise.drift * self._state


class RunNoise:
    """The noise of one open model."""

    def __init__(self, machine: Machine, generator: np.random.Generator) -> None:
        self._machine = machine
        self._generator = generator
        self._offset = machine.noise.offset * float(generator.standard_normal())
        self._state = float(generator.standard_normal())

    def samples_ms(self, true_ms: float, runs: int) -> list[float]:
        """Return the samples of consecutive runs."""
        noise, machine = self._machine.noise, self._machine
        fresh = math.sqrt(1.0 - noise.correlation**2)
        normals: list[float] = self._generator.standard_normal(runs).tolist()
        lots: list[float] = self._generator.random(runs).tolist()
        samples: list[float] = []
        for normal, lot, drift in zip(normals, lots, machine.slowness(runs), strict=True):
            self._state = noise.correlation * self._state + fresh * normal
            slow = self._offset + noise.noise * self._state + drift
            spike = 1.0 + noise.spike_size if lot < noise.spikes else 1.0
            samples.append(true_ms * math.exp(slow) * spike)
            machine.clock_s += samples[-1] / 1000.0
        return samples


def _generator(seed: int, content: bytes, count: int) -> np.random.Generator:
    text = f"{seed} {content.hex()} {count}".encode()
    entropy = hashlib.blake2b(text, digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(entropy, "big"))
