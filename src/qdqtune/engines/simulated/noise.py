"""Simulated noise: of each run, of each open, and of the machine, which is slow at times.

A sample is ``true latency x exp(open + run + machine) x spike``:

- open: one normal number per open, with deviation `offset`: the effect of memory placement.
- run: an AR(1) sequence per open, with deviation `noise`; neighbouring runs are correlated with
  `correlation`.
- machine: one process for all opens, with deviation `drift`. It runs on virtual time: values that
  are t seconds apart are correlated with ``exp(-t / drift_s)``. All models that run in a slow
  period are slow.
- spike: ``1 + spike_size`` with the probability `spikes`, otherwise 1.

All sequences are stationary from their first value on. Without spikes, the true latency is the
median of the samples.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

# More than any process has: opens are numbered consecutively across processes.
_OPENS_PER_PROCESS = 1_000_000


@dataclass(frozen=True)
class Noise:
    """How noisy a machine is; see the module for the arithmetic.

    Attributes:
        noise: Deviation of a run's log latency.
        correlation: Of neighbouring runs, from 0 to below 1.
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
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} is {value}; it is a number from 0 on")
        if self.correlation >= 1.0 or self.spikes > 1.0:
            raise ValueError("correlation is below 1, and spikes is a probability")


class Machine:
    """State that all opens with one seed share: the machine's speed, and virtual time.

    Args:
        noise: How noisy it is.
        seed: The same seed and the same requests give the same samples.
        process: Number of the process, where several make one comparison: opens of a model have
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
        """The noise of one more open of a model.

        Args:
            content: A hash of the model. Every open of it gets its own noise.
        """
        count = self._opens[content] = self._opens.get(content, 0) + 1
        return RunNoise(self, _generator(self._seed, content, self._opens_before + count))

    def draw(self, count: int) -> list[float]:
        """Draw normal numbers for as many calls of `slowness`."""
        numbers: list[float] = self._generator.standard_normal(count).tolist()
        return numbers

    def slowness(self, normal: float) -> float:
        """Return the machine's log slowness now; it changes with the time that has passed.

        Args:
            normal: A fresh number from `draw`.
        """
        passed_s, self._told_s = self.clock_s - self._told_s, self.clock_s
        kept = math.exp(-passed_s / self.noise.drift_s) if self.noise.drift_s else 0.0
        self._state = kept * self._state + math.sqrt(1.0 - kept * kept) * normal
        return self.noise.drift * self._state


class RunNoise:
    """The noise of one open model."""

    def __init__(self, machine: Machine, generator: np.random.Generator) -> None:
        self._machine = machine
        self._generator = generator
        self._offset = machine.noise.offset * float(generator.standard_normal())
        self._state = float(generator.standard_normal())

    def samples_ms(self, true_ms: float, runs: int) -> list[float]:
        """Samples of runs made one after the other."""
        noise, machine = self._machine.noise, self._machine
        fresh = math.sqrt(1.0 - noise.correlation**2)
        normals: list[float] = self._generator.standard_normal(runs).tolist()
        lots: list[float] = self._generator.random(runs).tolist()
        samples: list[float] = []
        for normal, lot, drift_normal in zip(normals, lots, machine.draw(runs), strict=True):
            self._state = noise.correlation * self._state + fresh * normal
            slow = self._offset + noise.noise * self._state + machine.slowness(drift_normal)
            spike = 1.0 + noise.spike_size if lot < noise.spikes else 1.0
            samples.append(true_ms * math.exp(slow) * spike)
            machine.clock_s += samples[-1] / 1000.0
        return samples


def _generator(seed: int, content: bytes, count: int) -> np.random.Generator:
    text = f"{seed} {content.hex()} {count}".encode()
    entropy = hashlib.blake2b(text, digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(entropy, "big"))
