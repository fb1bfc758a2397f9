"""The simulated engine and its options: runs in the worker like any other, but measures nothing."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._signature import signature_of
from qdqtune.engines._worker_environment import OPENING
from qdqtune.records._measurement import EngineInfo, LayerTime
from qdqtune.testing.simulated._kernels import Kernel, plan_kernels, total_ms
from qdqtune.testing.simulated._machine import (
    DEFAULT_PROFILE,
    Machine,
    Noise,
    Profile,
    check_amount,
    check_known,
    profile_named,
)
from qdqtune.testing.simulated._wiring import Wiring, digest, read_proto

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs

_SWITCHES = {"fusion": "fuses", "layout": "has_layouts"}
# Fields of a profile by the option that sets them.
_OVERRIDES = {**_SWITCHES, "build_s": "build_s", "build_kernel_s": "build_kernel_s"}
_NOISE = tuple(entry.name for entry in fields(Noise))
KEYS = ("profile", *_OVERRIDES, "wait", "seed", "plan_cache", *_NOISE)
"""All options."""

QUIET: dict[str, str] = {"noise": "0", "drift": "0", "spikes": "0", "offset": "0"}
"""Options with which every sample is the true latency."""

COST_MODEL_VERSION = "1"
"""Must be incremented whenever the cost of any model changes."""
_ShapeKey = tuple[tuple[str, tuple[int, ...]], ...]
_MOST_REMEMBERED = 256
# Time to load a model that was built before.
_LOADING_S = 0.5
# Other engines' names for the types that have short names in ONNX.
_PRECISIONS = {"double": "float64", "float": "float32"}


@dataclass(frozen=True)
class Settings:
    """Settings of a simulation.

    Attributes:
        profile: The machine, with overrides from options.
        seed: Seed of the noise.
        noise: How noisy the machine is.
        plan_cache: Folder that caches builds; empty for none.
        waits: Whether building takes real time, too.
    """

    profile: Profile = DEFAULT_PROFILE
    seed: int = 0
    noise: Noise = field(default_factory=Noise)
    plan_cache: str = ""
    waits: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Settings:
        """Reads an engine's options.

        Raises:
            ValueError: If an option is unknown or has an invalid value.
        """
        for key in options:
            check_known("option", key, KEYS)
        profile = profile_named(options.get("profile", DEFAULT_PROFILE.name))
        texts = {"wait": "0", **cls(profile).to_options(), **options}
        for key in (*_SWITCHES, "wait"):
            if texts[key] not in ("0", "1"):
                raise ValueError(f"{key} is '{texts[key]}'; it is 0 or 1")
        if not texts["seed"].isdecimal():
            raise ValueError(f"seed is '{texts['seed']}'; it must be a whole number of at least 0")
        numbers = {key: _number(key, texts[key]) for key in (*_OVERRIDES, *_NOISE)}
        noise = Noise(**{key: numbers[key] for key in _NOISE})
        overrides: dict[str, Any] = {
            name: bool(numbers[key]) if key in _SWITCHES else numbers[key]
            for key, name in _OVERRIDES.items()
        }
        own, waits = replace(profile, **overrides), texts["wait"] == "1"
        return cls(own, int(texts["seed"]), noise, texts["plan_cache"], waits)

    def to_options(self) -> dict[str, str]:
        """Return all options as text, including defaults."""
        machine = self.profile
        return {
            "profile": machine.name,
            **{key: f"{getattr(machine, name):g}" for key, name in _OVERRIDES.items()},
            "seed": str(self.seed),
            "plan_cache": self.plan_cache,
            **({"wait": "1"} if self.waits else {}),
            **{key: f"{value:g}" for key, value in asdict(self.noise).items()},
        }


def _number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{key} is '{text}'; it is a number") from None
    return check_amount(key, number)


class SimulatedEngine:
    """Opens models on simulated machines. Time is virtual: nothing waits unless it is told to."""

    def __init__(self) -> None:
        self._machines: dict[Settings, Machine] = {}
        self._plans: dict[tuple[bytes, Profile, _ShapeKey], tuple[Kernel, ...]] = {}

    def info(self, options: SessionOptions) -> EngineInfo:
        """Returns the simulated machine, with all options."""
        settings = Settings.from_options(options.engine_options)
        return EngineInfo(
            name="simulated",
            version=COST_MODEL_VERSION,
            device="simulated machine, not a measurement",
            isa=settings.profile.name,
            threads=options.threads,
            options=settings.to_options(),
        )

    def open(self, path: str, options: SessionOptions) -> SimulatedSession:
        """Opens the model file; building takes virtual time."""
        settings = Settings.from_options(options.engine_options)
        machine = self._machines.setdefault(
            settings, Machine(settings.noise, settings.seed, int(os.environ.get(OPENING, "0")))
        )
        return SimulatedSession(path, settings, machine, self)

    def clock_s(self) -> float:
        """Virtual seconds that have passed."""
        return sum(machine.clock_s for machine in self._machines.values())

    def plan(
        self, proto: onnx.ModelProto, content: bytes, profile: Profile, shapes: _ShapeKey
    ) -> tuple[Kernel, ...]:
        """Return the kernels of a model; recent ones are cached, as a baseline is opened often."""
        key = (content, profile, shapes)
        if key not in self._plans:
            if len(self._plans) >= _MOST_REMEMBERED:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan_kernels(Wiring(proto, dict(shapes)), profile)
        return self._plans[key]


class SimulatedSession:
    """A model on a simulated machine.

    Args:
        path: The model file. Only `run` reads its weights.
        settings: The machine's data, and whether builds are cached.
        machine: The machine's state.
        engine: The engine of this session.
    """

    def __init__(
        self, path: str, settings: Settings, machine: Machine, engine: SimulatedEngine
    ) -> None:
        self._path = path
        self._profile = settings.profile
        self._engine = engine
        self._proto = read_proto(path)
        self._digest = digest(self._proto)
        self._noise = machine.run_noise(self._digest)
        self._kernels: tuple[Kernel, ...] | None = None
        self._signature = signature_of(self._proto)
        building_s = self._building_s(settings)
        machine.clock_s += building_s
        if settings.waits:
            time.sleep(building_s)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs."""
        return self._signature.inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Records the shapes of the inputs; their values don't matter.

        Raises:
            ValueError: If they don't match the model's inputs.
        """
        self._signature.check_feeds(feeds)
        self._kernels = self._plan({n: feeds[n].shape for n in self._signature.open_inputs})

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once with ONNX's reference implementation: correct, but slow for large models.

        Raises:
            ValueError: If the feeds don't match the model's inputs.
        """
        from onnx.reference import ReferenceEvaluator  # slow to import, and rarely needed

        self._signature.check_feeds(feeds)
        evaluator = ReferenceEvaluator(onnx.load(self._path))
        results = evaluator.run(None, dict(feeds))
        return dict(zip(evaluator.output_names, map(np.asarray, results), strict=True))

    def time_runs(self, runs: int) -> list[float]:
        """Returns one sample per run; virtual time passes."""
        return self._noise.samples_ms(total_ms(self._fed()), runs)

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Returns the kernels without noise: their sum is the true latency, for any `runs`."""
        del runs
        return [
            LayerTime(
                kernel.name,
                kernel.op_type,
                kernel.ms,
                provider=kernel.precision,
                precision=_PRECISIONS.get(kernel.precision, kernel.precision),
                origins=kernel.nodes,
            )
            for kernel in self._fed()
        ]

    def close(self) -> None:
        """Does nothing: the session holds no resources."""

    def _building_s(self, settings: Settings) -> float:
        """Seconds until the model is open: a model that was built before is only loaded."""
        profile, kernels = settings.profile, self._plan({})
        building_s = profile.build_s + profile.build_kernel_s * len(kernels)
        if not settings.plan_cache:
            return building_s
        content = hashlib.blake2b(repr((profile.name, kernels)).encode(), digest_size=16)
        plan = Path(settings.plan_cache, f"{content.hexdigest()}.plan")
        if plan.exists():
            return min(_LOADING_S, building_s)
        plan.parent.mkdir(parents=True, exist_ok=True)
        plan.touch()
        return building_s

    def _plan(self, shapes: dict[str, tuple[int, ...]]) -> tuple[Kernel, ...]:
        key = tuple(sorted(shapes.items()))
        return self._engine.plan(self._proto, self._digest, self._profile, key)

    def _fed(self) -> tuple[Kernel, ...]:
        if self._kernels is None:
            raise ValueError("the model was given no feeds to run on")
        return self._kernels
