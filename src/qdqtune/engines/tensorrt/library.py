"""TensorRT or TensorRT-RTX as a module: imported, asked what it has, never by its version."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from qdqtune.engines.tensorrt.layers import is_layer_list
from qdqtune.engines.tensorrt.settings import STRONG, WEAK
from qdqtune.graph.atomic_files import open_to_append
from qdqtune.records.errors import OutputError

# Without a GPU, other errors drag this one along.
_NO_DRIVER = "catchCudaError"
_MOST_REASONS = 3
_MOST_LOGGED = 4 * 1024 * 1024


class Library:
    """One of the two, with what it says while it works.

    Args:
        module: `tensorrt` or `tensorrt_rtx`.

    Attributes:
        api: The module.
        version: Its version.
        log: What it says.

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
        self._loaded: set[str] = set()

    @property
    def can_be_strong(self) -> bool:
        """Whether networks can have the types of the model."""
        return hasattr(self.api.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")

    @property
    def can_be_weak(self) -> bool:
        """Whether the builder can choose types."""
        return hasattr(self.api.BuilderFlag, "FP16")

    def typing_of(self, wanted: str) -> str:
        """Whether a network is strongly or weakly typed, if that is wanted of it.

        Raises:
            ValueError: If this version has no such networks.
        """
        if wanted == STRONG and not self.can_be_strong:
            raise ValueError(f"typing is '{STRONG}', but version {self.version} has no such thing")
        if wanted == WEAK and not self.can_be_weak:
            raise ValueError(f"typing is '{WEAK}', but version {self.version} has no such thing")
        return wanted or (STRONG if self.can_be_strong else WEAK)

    def network_flags(self, typing: str) -> int:
        """What a network is created with."""
        wanted = ("EXPLICIT_BATCH", *(("STRONGLY_TYPED",) if typing == STRONG else ()))
        known = self.api.NetworkDefinitionCreationFlag
        found = (getattr(known, name, None) for name in wanted)
        return sum(1 << int(flag) for flag in found if flag is not None)

    def load_plugins(self, paths: Iterable[str]) -> None:
        """Loads libraries with custom ops, each once.

        Raises:
            ValueError: If one can't be loaded.
        """
        for path in paths:
            if path in self._loaded:
                continue
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise ValueError(f"the plugin library {path} can't be loaded: {error}") from None
            self._loaded.add(path)


def make_log(api: Any) -> Any:
    """A logger that keeps errors and the list of layers, and writes the rest down.

    It has `errors`, `layer_list`, and `about(file)`: a context in which a model's file gets all.
    """

    class Log(api.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            api.ILogger.__init__(self)
            self.layer_list = ""
            self.errors: list[str] = []
            self._file: IO[bytes] | None = None
            self._room = 0

        @contextmanager
        def about(self, path: Path | None) -> Iterator[None]:
            """While it lasts, a file gets what is said; errors and layers begin anew."""
            self.layer_list, self.errors = "", []
            with ExitStack() as stack:
                if path is not None:
                    with suppress(OSError, OutputError):  # a log spoils no build
                        self._file = stack.enter_context(open_to_append(path))
                        self._room = _MOST_LOGGED - self._file.tell()
                try:
                    yield
                finally:
                    self._file = None

        def log(self, severity: Any, message: str) -> None:
            if is_layer_list(message):
                self.layer_list = message
            elif severity <= api.ILogger.ERROR:
                self.errors.append(message.strip())
            if severity <= api.ILogger.INFO and self._file is not None and self._room > 0:
                level = str(severity).rpartition(".")[2]
                line = f"[{level}] {message}\n".encode(errors="replace")
                self._room -= self._file.write(line)

    return Log()


def telling(messages: Iterable[str]) -> str:
    """The messages that say why, in few lines."""
    listed = [" ".join(message.split()) for message in messages if message.strip()]
    kept = [message for message in listed if _NO_DRIVER not in message] or listed
    return "; ".join(list(dict.fromkeys(kept))[:_MOST_REASONS])
