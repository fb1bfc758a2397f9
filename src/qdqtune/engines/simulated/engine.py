"""The simulated engine: runs in the worker like any other, but measures nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtune.engines.interface import InputSpec, SessionOptions
from qdqtune.engines.simulated.kernels import Kernel, plan_kernels
from qdqtune.engines.simulated.latency import total_ms
from qdqtune.engines.simulated.noise import Machine
from qdqtune.engines.simulated.profiles import Profile
from qdqtune.engines.simulated.settings import Settings
from qdqtune.engines.simulated.wiring import Wiring, digest, read_proto
from qdqtune.engines.worker_environment import OPENING
from qdqtune.records.measurement import EngineInfo, LayerTime

if TYPE_CHECKING:
    from qdqtune.engines.interface import Feeds, Outputs

COST_MODEL_VERSION = "1"
"""Must be raised with every change to the cost of any model."""

_ShapeKey = tuple[tuple[str, tuple[int, ...]], ...]
_MOST_REMEMBERED = 256
# Time to load a model that was built before.
_LOADING_S = 0.5
# Other engines' names of the types for which ONNX has short names.
_PRECISIONS = {"double": "float64", "float": "float32"}


class SimulatedEngine:
    """Opens models on simulated machines. Nothing waits: time is virtual."""

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
        constants = {tensor.name for tensor in self._proto.graph.initializer}
        self._inputs = tuple(
            _input_spec(value) for value in self._proto.graph.input if value.name not in constants
        )
        machine.clock_s += self._building_s(settings)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs."""
        return self._inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Records the shapes of the inputs; their values don't matter.

        Raises:
            ValueError: If they don't match the model's inputs.
        """
        self._check(feeds)
        open_inputs = [s.name for s in self._inputs if not all(isinstance(d, int) for d in s.shape)]
        self._kernels = self._plan({name: feeds[name].shape for name in open_inputs})

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once with ONNX's reference implementation: correct, but slow for large models.

        Raises:
            ValueError: If the feeds don't match the model's inputs.
        """
        from onnx.reference import ReferenceEvaluator  # slow to import, and rarely needed

        self._check(feeds)
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

    def _check(self, feeds: Feeds) -> None:
        wanted = {spec.name for spec in self._inputs}
        if wanted != feeds.keys():
            raise ValueError(f"the inputs are {sorted(wanted)}, the feeds {sorted(feeds)}")
        for spec in self._inputs:
            _check(spec, feeds[spec.name])

    def _plan(self, shapes: dict[str, tuple[int, ...]]) -> tuple[Kernel, ...]:
        key = tuple(sorted(shapes.items()))
        return self._engine.plan(self._proto, self._digest, self._profile, key)

    def _fed(self) -> tuple[Kernel, ...]:
        if self._kernels is None:
            raise ValueError("the model was given no feeds to run on")
        return self._kernels


def _input_spec(value: onnx.ValueInfoProto) -> InputSpec:
    kind = value.type.tensor_type
    dims = (dim.dim_value if dim.dim_value > 0 else dim.dim_param or None for dim in kind.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return InputSpec(value.name, "str" if dtype == np.dtype(object) else dtype.name, tuple(dims))


def _check(spec: InputSpec, array: Any) -> None:
    fits = array.dtype.name == spec.dtype and len(array.shape) == len(spec.shape)
    if not fits or any(
        isinstance(want, int) and want != have
        for want, have in zip(spec.shape, array.shape, strict=True)
    ):
        raise ValueError(
            f"the input '{spec.name}' is {spec.dtype}{list(spec.shape)}, "
            f"its feed {array.dtype.name}{list(array.shape)}"
        )
