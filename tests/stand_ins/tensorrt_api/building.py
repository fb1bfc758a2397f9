"""The builder, and what it is told; engines are made by the rules of the stand-in trtexec."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import onnx

from tests.stand_ins.tensorrt_api.bindings import NULL_POINTER, HostMemory
from tests.stand_ins.tensorrt_api.enums import (
    BuilderFlag,
    NetworkDefinitionCreationFlag,
    PreviewFeature,
    ProfilingVerbosity,
    Severity,
)
from tests.stand_ins.tensorrt_api.network import NetworkDefinition
from tests.stand_ins.tensorrt_api.situation import VERSION, strikes
from tests.stand_ins.tensorrt_api.timing_cache import TimingCache
from tests.stand_ins.trtexec_builder import Builders

_LOW_FLAGS = ("FP16", "BF16", "INT8", "FP8", "INT4")
Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class OptimizationProfile:
    """Ranges of shapes, and of values that decide shapes; nothing is said if they are nonsense."""

    __slots__ = ("stand_in_shapes", "stand_in_values")

    def __init__(self) -> None:
        self.stand_in_shapes: dict[str, Range] = {}
        self.stand_in_values: dict[str, Range] = {}

    def set_shape(self, name: str, *shapes: Sequence[int]) -> None:
        """The smallest, the usual and the largest shape of an input."""
        self.stand_in_shapes[name] = _range(shapes)

    def set_shape_input(self, name: str, *values: Sequence[int]) -> None:
        """The same of values."""
        self.stand_in_values[name] = _range(values)

    def __bool__(self) -> bool:
        return all(
            len(least) == len(usual) == len(most)
            and all(a <= b <= c for a, b, c in zip(least, usual, most, strict=True))
            for least, usual, most in (
                *self.stand_in_shapes.values(),
                *self.stand_in_values.values(),
            )
        )


class BuilderConfig:
    """How to build."""

    __slots__ = (
        "_cache", "_flags", "_log", "builder_optimization_level", "profiling_verbosity",
        "stand_in_previews", "stand_in_profiles", "stand_in_tactics", "stand_in_workspace",
    )  # fmt: skip

    def __init__(self, log: Any) -> None:
        self._log = log
        self._flags: set[Any] = set()
        self._cache: TimingCache | None = None
        self.builder_optimization_level = 3
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self.stand_in_previews: set[str] = set()
        self.stand_in_profiles: list[OptimizationProfile] = []
        self.stand_in_tactics: int | None = None
        self.stand_in_workspace: int | None = None

    def set_flag(self, flag: Any) -> None:
        """Allows something."""
        _check_type(flag, BuilderFlag)
        self._flags.add(flag)

    def set_preview_feature(self, feature: Any, enable: bool) -> None:
        """Turns something on or off that later versions have always, or never."""
        _check_type(feature, PreviewFeature)
        (self.stand_in_previews.add if enable else self.stand_in_previews.discard)(feature.name)

    def get_flag(self, flag: Any) -> bool:
        """Whether it is allowed."""
        _check_type(flag, BuilderFlag)
        return flag in self._flags

    def has(self, name: str) -> bool:
        """Whether a flag is set, for the stand-in alone."""
        return name in BuilderFlag.__members__ and BuilderFlag[name] in self._flags

    def set_memory_pool_limit(self, _pool: Any, size: int) -> None:
        """Limits memory."""
        self.stand_in_workspace = size

    def set_tactic_sources(self, sources: int) -> bool:
        """Limits where kernels may come from."""
        self.stand_in_tactics = sources
        return True

    def add_optimization_profile(self, profile: OptimizationProfile) -> int:
        """Adds ranges; returns their number, or -1."""
        if not profile or strikes("profile_rejected"):
            self._log.log(Severity.ERROR, _error(3, "API Usage Error", "profile is not valid"))
            return -1
        self.stand_in_profiles.append(profile)
        return len(self.stand_in_profiles) - 1

    def create_timing_cache(self, content: bytes) -> TimingCache | None:
        """A cache, not yet in use."""
        cache = TimingCache.read(content)
        if cache is None:
            text = "Serialization assertion magicTagRead == kMAGIC_TAG failed."
            self._log.log(Severity.ERROR, _error(1, "Serialization", text))
        return cache

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        """Uses a cache; False if it is of something else."""
        if not cache.fits and not ignore_mismatch:
            self._log.log(Severity.WARNING, "The timing cache is of another version or device.")
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> TimingCache | None:
        """The cache that is used."""
        return self._cache


class Builder:
    """Builds engines."""

    __slots__ = ("_log",)

    def __init__(self, logger: Any) -> None:
        self._log = logger
        if strikes("builder_none") or strikes("no_device"):
            logger.log(Severity.ERROR, "CUDA initialization failure with error: 100.")
            raise TypeError(NULL_POINTER)

    def create_network(self, flags: int = 0) -> NetworkDefinition | None:
        """An empty network; None if it can't have such flags."""
        known = sum(1 << int(flag) for flag in NetworkDefinitionCreationFlag)
        if flags & ~known or strikes("network_none"):
            text = f"createNetworkV2: unknown flags {flags:#x}"
            self._log.log(Severity.ERROR, _error(3, "API Usage Error", text))
            return None
        return NetworkDefinition(flags)

    def create_builder_config(self) -> BuilderConfig:
        """How to build, by default."""
        return BuilderConfig(self._log)

    def create_optimization_profile(self) -> OptimizationProfile:
        """Empty ranges."""
        return OptimizationProfile()

    def build_serialized_network(
        self, network: NetworkDefinition, config: BuilderConfig
    ) -> HostMemory | None:
        """An engine as bytes; None if there can't be one, and the log says why."""
        parsed = network.stand_in.network
        assert parsed is not None
        name = os.path.basename(parsed.path)
        cache = config.get_timing_cache()
        self._log.log(Severity.INFO, f"Building {name}")
        if strikes("crash", name):
            os.kill(os.getpid(), signal.SIGSEGV)
        if strikes("hang", name):
            time.sleep(600)
        if strikes("build_none", name):
            return None
        spoiled = cache is not None and bool(cache.stand_in_entries)
        if strikes("build_fails", name) or (spoiled and strikes("build_fails_with_cache", name)):
            text = "Could not find any implementation for node n0 + n1."
            return self._fail(_error(10, "Internal Error", text))
        wrong = _wrong(network, config)
        if wrong:
            return self._fail(wrong)
        builders = Builders(_Requested(network, config), VERSION, self._info, self._info)
        builders.parse(parsed.path)
        wrong = builders.set_shapes()
        if wrong:
            return self._fail(_error(4, "Internal Error", wrong))
        built = builders.build()
        if isinstance(built, tuple):
            return self._fail(_error(built[0], "Internal Error", built[1]))
        if cache is not None:
            cache.stand_in_entries |= {f"{name}: {each['name']}" for each in built["layers"]}
        profiles = config.stand_in_profiles
        values = profiles[0].stand_in_values if profiles else {}
        sharing = VERSION >= (10,) or "PROFILE_SHARING_0806" in config.stand_in_previews
        told = {**built, "values": values, "contexts": "many" if sharing or not profiles else "one"}
        header = json.dumps(told).encode()
        return HostMemory(header + b"\n" + onnx.load(parsed.path).SerializeToString())

    def _fail(self, text: str) -> None:
        self._log.log(Severity.ERROR, text)

    def _info(self, text: str) -> None:
        self._log.log(Severity.INFO, text)


class _Requested:
    """What the builder is told, in the words of trtexec's options."""

    def __init__(self, network: NetworkDefinition, config: BuilderConfig) -> None:
        ranges = config.stand_in_profiles[0].stand_in_shapes if config.stand_in_profiles else {}
        self.min_shapes = {name: range_[0] for name, range_ in ranges.items()}
        self.opt_shapes = {name: range_[1] for name, range_ in ranges.items()}
        self.max_shapes = {name: range_[2] for name, range_ in ranges.items()}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.plugins: list[str] = []
        self._given = {name.lower(): "" for name in _LOW_FLAGS if config.has(name)}
        if network.stand_in.is_strong:
            self._given["stronglyTyped"] = ""
        self._given["builderOptimizationLevel"] = str(config.builder_optimization_level)
        self._given["profilingVerbosity"] = config.profiling_verbosity.name.lower()

    def has(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name, default)

    def number(self, name: str, default: float) -> float:
        return float(self._given.get(name, default))


def _wrong(network: NetworkDefinition, config: BuilderConfig) -> str:
    """What a builder refuses before it builds; empty if nothing."""
    if network.stand_in.is_strong:
        for name in _LOW_FLAGS:
            if config.has(name):
                text = f"BuilderFlag::k{name} is set, but the network is strongly typed"
                return _error(3, "API Usage Error", text)
    inputs = network.stand_in.inputs
    opened = [tensor for tensor in inputs if -1 in tuple(tensor.shape)]
    deciding = [tensor for tensor in inputs if tensor.is_shape_tensor]
    if not config.stand_in_profiles:
        if not opened and not deciding:
            return ""
        text = "Network has dynamic or shape inputs, but no optimization profile has been defined."
        return _error(4, "Internal Error", text)
    profile = config.stand_in_profiles[0]
    for tensors, ranges, what in (
        (opened, profile.stand_in_shapes, "Dynamic input tensor {} is missing dimensions"),
        (deciding, profile.stand_in_values, "Shape input tensor {} is missing values"),
    ):
        for tensor in tensors:
            if tensor.name not in ranges:
                return _error(4, "Internal Error", f"{what.format(tensor.name)} in profile 0")
    return ""


def _error(code: int, kind: str, text: str) -> str:
    where = "IBuilder::buildSerializedNetwork" if VERSION >= (10,) else f"{code}: [builder.cpp::1]"
    return f"{where}: Error Code {code}: {kind} ({text})"


def _range(shapes: Sequence[Sequence[int]]) -> Range:
    least, usual, most = (tuple(map(int, shape)) for shape in shapes)
    return least, usual, most


def _check_type(value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise TypeError("incompatible function arguments")
