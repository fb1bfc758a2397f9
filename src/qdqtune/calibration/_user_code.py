"""User functions that produce samples or evaluate a model."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import logging
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from qdqtune.records._errors import UsageError

_logger = logging.getLogger(__name__)
_END = object()
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})


class TookTooLong(UsageError):
    """A user's function did not return in time."""


@dataclass(frozen=True)
class UserFunction:
    """A user's function, whose failures are reported as usage errors.

    Attributes:
        label: Its name in messages.
        function: The function.
        folder: A folder to import from while it runs; None for no additional one.
    """

    label: str
    function: Callable[..., Any]
    folder: Path | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of the function's source file; empty if there is none."""
        try:
            file = inspect.getsourcefile(inspect.unwrap(self.function))
            return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
        except (TypeError, ValueError, OSError):
            return ""

    def __call__(self, *arguments: Any) -> Any:
        """Call it.

        Raises:
            UsageError: If it raises anything.
        """
        with _running(self.label, self.folder):
            return self.function(*arguments)

    def items(self) -> Iterator[tuple[Any, bool]]:
        """Call it for samples; yields items, and whether an item is a stack of all samples.

        Raises:
            UsageError: If it raises anything, or yields nothing.
        """
        with _running(self.label, self.folder):
            made = self.function()
            if made is None:
                raise UsageError(
                    f"{self.label} returned nothing.", "Let it yield or return samples."
                )
            whole = isinstance(made, Mapping) or hasattr(made, "__array__")
            items = iter(()) if whole else _iterator(made)
        if whole:
            yield made, True
        while True:
            with _running(self.label, self.folder):
                item = next(items, _END)
            if item is _END:
                return
            yield item, False
            del item  # free the sample before the next one is created

    def within(self, limit_s: float, *arguments: Any) -> Any:
        """Call it with a time limit in seconds.

        Only the main thread of a process can be interrupted; elsewhere there is no limit.

        Raises:
            TookTooLong: If it takes longer.
            UsageError: If it raises anything.
        """
        if threading.current_thread() is not threading.main_thread():
            return self(*arguments)

        def interrupt(_signal: int, _frame: FrameType | None) -> None:
            raise TookTooLong(
                f"{self.label} did not return within {limit_s:g} s.",
                "Run it alone on the model to see why.",
            )

        earlier = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            return self(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, earlier)


def find_function(spec: str, example: str = "(): yield {…}") -> UserFunction:
    """Return the function that `module:function` or `path/to/file.py:function` names.

    Args:
        spec: The two names.
        example: Code to suggest after ``def name`` if there is no such function.

    Raises:
        UsageError: If there is no such function, or importing it fails.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        stem = (where or name) if (":" not in spec or where) else "module"
        raise UsageError(
            f"{spec!r} does not name a module and a function in it.",
            f"Write {stem}:function, where the function is defined as def function{example}",
        )
    is_file = where.endswith(".py")
    folder = Path(where).absolute().parent if is_file else Path.cwd()
    if is_file and not Path(where).is_file():
        raise UsageError(f"There is no file {where}.", "Name it as path/to/file.py:function.")
    with _running(where, folder):
        if not is_file and not _is_module(where):
            raise UsageError(
                f"There is no module {where!r} in {folder}, nor among the installed ones.",
                "Name the file instead: path/to/file.py:function.",
            )
        module = _load_file(Path(where)) if is_file else importlib.import_module(where)
        function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{where} has no function {name!r}.", f"Define it: def {name}{example}")
    return UserFunction(spec, function, folder)


@contextlib.contextmanager
def _running(label: str, folder: Path | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(_importing_from(folder))
            # The results of commands go to stdout; a loader's output must not mix with them.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            yield
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            _logger.debug("%s failed", label, exc_info=True)
            raise UsageError(
                f"{label} failed: {_last_words(error)}.",
                "Run it alone to see more; -vv prints the whole traceback.",
            ) from error


def _is_module(name: str) -> bool:
    """Whether a module exists; one whose own imports fail does."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:  # its package does not exist
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return False
        raise


def _load_file(path: Path) -> ModuleType:
    # Not under its own name: a loader called onnx.py must not replace the real one.
    name = f"_qdqtune_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def _iterator(made: Any) -> Iterator[Any]:
    if hasattr(made, "get_next"):  # an ONNX Runtime CalibrationDataReader
        return iter(made.get_next, None)
    if hasattr(made, "__len__") and not hasattr(made, "__iter__"):
        # A map-style dataset need not raise the IndexError that would end plain iteration.
        return (made[number] for number in range(len(made)))
    if isinstance(made, Iterable) or hasattr(made, "__getitem__"):
        return iter(made)
    raise TypeError(f"{type(made).__name__} can't be iterated over")


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)


def _last_words(error: BaseException) -> str:
    """Return the last line of a traceback, and the last location in it outside of libraries."""
    words = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    places = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<")
    ]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    own = [place for place in places if not place[0].startswith(_LIBRARIES)]
    at = "".join(f" ({file}:{line})" for file, line in (own or places)[-1:])
    return f"{words[-1] if words else type(error).__name__}{at}"
