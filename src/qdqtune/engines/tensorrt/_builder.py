"""Loads TensorRT or TensorRT-RTX as a module, and builds an engine from a model file with it."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from qdqtune.engines.tensorrt._files import BuildLog, TimingCacheFile, open_log
from qdqtune.engines.tensorrt._layer_info import is_layer_list
from qdqtune.engines.tensorrt._settings import STRONG, WEAK, Settings, ShapeRange

# Without a GPU, this error accompanies others and explains nothing.
_NO_DRIVER = "catchCudaError"
_MOST_REASONS = 3

_MIB = 1 << 20

Ranges = Mapping[str, ShapeRange]


class Library:
    """One of the two libraries, with its log.

    Args:
        module: `tensorrt` or `tensorrt_rtx`.

    Attributes:
        api: The module.
        version: Its version.
        log: The logger that receives its messages.

    Raises:
        ImportError: If it can't be imported.
    """

    def __init__(self, module: str) -> None:
        try:
            self.api: Any = importlib.import_module(module)
        except OSError as error:
            raise ImportError(f"{module} can't be imported: {error}") from None
        self.version = str(self.api.__version__)
        self.log = make_log(self.api)
        init = getattr(self.api, "init_libnvinfer_plugins", None)
        if init is not None:
            init(self.log, "")

    def typing_of(self, wanted: str) -> str:
        """Return the typing of networks: the one requested, or else this version's default.

        Raises:
            ValueError: If this version has no such networks.
        """
        known = {
            STRONG: hasattr(self.api.NetworkDefinitionCreationFlag, "STRONGLY_TYPED"),
            WEAK: hasattr(self.api.BuilderFlag, "FP16"),
        }
        if wanted and not known[wanted]:
            raise ValueError(f"typing is '{wanted}', but version {self.version} has no such thing")
        return wanted or (STRONG if known[STRONG] else WEAK)

    def network_flags(self, typing: str) -> int:
        """Return the flags to create a network with."""
        wanted = ("EXPLICIT_BATCH", *(("STRONGLY_TYPED",) if typing == STRONG else ()))
        known = self.api.NetworkDefinitionCreationFlag
        found = (getattr(known, name, None) for name in wanted)
        return sum(1 << int(flag) for flag in found if flag is not None)

    def load_plugins(self, paths: Iterable[str]) -> None:
        """Loads libraries with custom ops.

        Raises:
            ValueError: If one can't be loaded.
        """
        for path in paths:
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise ValueError(f"the plugin library {path} can't be loaded: {error}") from None


def make_log(api: Any) -> Any:
    """Create a logger that keeps errors and the list of layers, and writes messages to a file.

    It has `errors`, `layer_list`, and `about(file)`: a context in which messages go to a model's
    file.
    """

    class Log(api.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            api.ILogger.__init__(self)
            self.layer_list = ""
            self.errors: list[str] = []
            self._log = BuildLog()

        @contextmanager
        def about(self, path: Path | None) -> Iterator[None]:
            """Write messages to a file inside the context; errors and layers start empty."""
            self.layer_list, self.errors = "", []
            with open_log(path) as self._log:
                try:
                    yield
                finally:
                    self._log = BuildLog()

        def log(self, severity: Any, message: str) -> None:
            if is_layer_list(message):
                self.layer_list = message
            elif severity <= api.ILogger.ERROR:
                self.errors.append(message.strip())
            if severity <= api.ILogger.INFO:
                level = str(severity).rpartition(".")[2]
                self._log.write(f"[{level}] {message}\n".encode(errors="replace"))

    return Log()


def telling(messages: Iterable[str]) -> str:
    """Return the messages that explain a failure, on a few lines."""
    listed = [" ".join(message.split()) for message in messages if message.strip()]
    kept = [message for message in listed if _NO_DRIVER not in message] or listed
    return "; ".join(list(dict.fromkeys(kept))[:_MOST_REASONS])


class BuildError(RuntimeError):
    """A model could not be built; the message says why."""


class ParseError(BuildError):
    """A model could not be parsed."""


class ShapesMissing(Exception):
    """A model can't be built before run shapes, or values that determine shapes, are known.

    Args:
        names: The inputs.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"the shapes or values of {list(names)} are not known")
        self.names = tuple(names)


class PlanBuilder:
    """Builds engines, one after the other, with one builder.

    That is created for the first build: it takes seconds, and a plan that was kept needs none.

    Args:
        library: TensorRT.
        settings: How to build.
        timing_cache: Known kernel timings; None to start without.
    """

    def __init__(
        self, library: Library, settings: Settings, timing_cache: TimingCacheFile | None = None
    ) -> None:
        self._library = library
        self._settings = settings
        self._cache = timing_cache
        self._typing = library.typing_of(settings.typing)
        library.load_plugins(settings.plugins)

    @cached_property
    def _builder(self) -> Any:
        library = self._library
        library.log.errors = []
        try:
            return library.api.Builder(library.log)
        except TypeError as error:  # raised for a null pointer
            reason = telling(library.log.errors) or str(error)
            raise BuildError(f"TensorRT can't build here: {reason}") from None

    def build(self, path: str, low_types: Collection[str], shapes: Ranges, values: Ranges) -> bytes:
        """Builds a model; the library's log has the list of layers, if there is one.

        Args:
            path: The model file.
            low_types: Types that its Q and DQ convert to and from.
            shapes: Shapes of inputs with open dims.
            values: Values of inputs that determine shapes.

        Returns:
            The serialized engine.

        Raises:
            BuildError: If it can't be built, or nothing can, as without a GPU.
            ShapesMissing: If an input has neither shapes nor values.
        """
        log, model = self._library.log, (path, low_types, shapes, values)
        content = self._attempt(*model)
        if content is None and self._cache is not None and self._cache.is_doubtful:
            # In 8.6, timings from an earlier process made a later build fail.
            reasons, log.errors = log.errors, []
            self._cache.is_trusted = False
            content = self._attempt(*model)
            self._cache.is_trusted = content is None
            log.errors = log.errors or reasons
        if content is None:
            raise BuildError(telling(log.errors) or "TensorRT gave no reason")
        return content

    def _attempt(
        self, path: str, low_types: Collection[str], shapes: Ranges, values: Ranges
    ) -> bytes | None:
        api, log = self._library.api, self._library.log
        network = self._builder.create_network(self._library.network_flags(self._typing))
        if network is None:
            raise BuildError(telling(log.errors) or "TensorRT created no network")
        parser = api.OnnxParser(network, log)
        if not parser.parse_from_file(path):
            raise ParseError(telling(_parser_errors(parser)) or telling(log.errors))
        config = self._config(low_types)
        self._add_profile(network, config, shapes, values)
        cache = self._cache.attach(config) if self._cache is not None else None
        built = self._builder.build_serialized_network(network, config)
        if built is None:
            return None
        if self._cache is not None:
            self._cache.save(config)
        del cache
        return bytes(built)

    def _config(self, low_types: Collection[str]) -> Any:
        api, settings = self._library.api, self._settings
        config = self._builder.create_builder_config()
        config.profiling_verbosity = api.ProfilingVerbosity.DETAILED  # else no layers are reported
        # In versions that have this flag, several contexts can share a profile only with it.
        sharing = getattr(getattr(api, "PreviewFeature", None), "PROFILE_SHARING_0806", None)
        if sharing is not None:
            config.set_preview_feature(sharing, True)
        if settings.level is not None and hasattr(config, "builder_optimization_level"):
            config.builder_optimization_level = settings.level
        if settings.workspace_mib is not None:
            config.set_memory_pool_limit(
                api.MemoryPoolType.WORKSPACE, settings.workspace_mib * _MIB
            )
        if settings.tactic_sources:
            config.set_tactic_sources(_tactics(api, settings.tactic_sources))
        if settings.compute_capability and hasattr(config, "set_compute_capability"):
            config.num_compute_capabilities = 1
            capability = check_capability(api, settings.compute_capability)
            config.set_compute_capability(capability, 0)
        if self._typing != STRONG:
            for name in _weak_flags(api, settings.precision, low_types):
                config.set_flag(getattr(api.BuilderFlag, name))
        return config

    def _add_profile(self, network: Any, config: Any, shapes: Ranges, values: Ranges) -> None:
        inputs = [network.get_input(place) for place in range(network.num_inputs)]
        opened = [tensor.name for tensor in inputs if -1 in tuple(tensor.shape)]
        deciding = [tensor.name for tensor in inputs if tensor.is_shape_tensor]
        missing = [name for name in opened if name not in shapes]
        missing += [name for name in deciding if name not in values]
        if missing:
            raise ShapesMissing(missing)
        if not (opened or deciding):
            return
        profile = self._builder.create_optimization_profile()
        for name in opened:
            profile.set_shape(name, *shapes[name])
        for name in deciding:
            profile.set_shape_input(name, *values[name])
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(
                telling(self._library.log.errors) or f"TensorRT refuses the shapes {dict(shapes)}"
            )


def _weak_flags(api: Any, precision: str, low_types: Collection[str]) -> list[str]:
    """Return the types the builder may choose from: the float type, and those of Q and DQ."""
    flags = {"fp16": ["FP16"], "bf16": ["BF16"]}.get(precision, [])
    is_float8 = {name.startswith("float8") for name in low_types}
    flags += ["INT8"] if False in is_float8 else []
    flags += ["FP8"] if True in is_float8 else []
    missing = [name for name in flags if not hasattr(api.BuilderFlag, name)]
    if missing:
        raise BuildError(f"this TensorRT has no {missing[0]}")
    return flags


def _parser_errors(parser: Any) -> list[str]:
    messages = []
    for place in range(parser.num_errors):
        error = parser.get_error(place)
        node = getattr(error, "node_name", str)()
        operator = getattr(error, "node_operator", str)()
        where = f"node '{node}' ({operator}): " if node or operator else ""
        messages.append(f"{where}{error.desc()}")
    return messages


def _tactics(api: Any, names: tuple[str, ...]) -> int:
    known = api.TacticSource.__members__
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"tactic_sources has '{unknown[0]}'; choices: {', '.join(known)}")
    return sum(1 << int(known[name]) for name in names)


def check_capability(api: Any, name: str) -> Any:
    """Return the library's constant for a compute capability.

    Raises:
        ValueError: If the library can't build for such a GPU.
    """
    known = {key.lower(): value for key, value in api.ComputeCapability.__members__.items()}
    known.pop("none", None)
    if name.lower() not in known:
        raise ValueError(f"it builds for {', '.join(known)}, not for {name!r}")
    return known[name.lower()]
