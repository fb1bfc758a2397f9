"""Options: metadata on config fields, and the flags, keywords and checks derived from it.

A field declares its help text, its valid values and its flags. Command-line flags, function
keywords with their documentation, validation, and a run's identity are all derived from it.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import numbers
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from enum import Enum
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar, cast

from qdqtune.records._errors import UsageError

ENGINE_SPECIFIC = "flags of some engines only (see docs/guides/tensorrt.md)"
"""The title of the options that help shows last."""

_OPTION = "option"
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Kind:
    """The values that an option takes.

    Attributes:
        must_be: Describes valid values, as in "threads must be ...".
        accepts: Whether a value is valid; None is valid if the default is None.
        read: Parses a value from text; raises `ValueError` if it can't.
        collect: Combines all parsed values into one, for flags that may be repeated.
        metavar: Placeholder for the value in help.
        choices: All values, if they can be listed.
        takes_none: Whether None is a valid value besides the default, typed `none`.
        bare: The value of the flag when it is given without one, if that is allowed.
    """

    must_be: str
    accepts: Callable[[Any], bool]
    read: Callable[[str], Any] = str
    collect: Callable[[list[Any]], Any] | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    takes_none: bool = False
    bare: Any = None

    def from_text(self, text: str) -> Any:
        """Parse a value that the user typed.

        Raises:
            ValueError: If it is not valid; the message says what it must be.
        """
        if self.takes_none and text.lower() == "none":
            return None
        with contextlib.suppress(ValueError):
            value = self.read(text)
            if self.collect is not None or self.accepts(value):
                return value
        raise ValueError(f"must be {self.must_be}, not {text}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def whole(least: int, metavar: str = "N") -> Kind:
    """Integers of at least `least`."""

    def accepts(value: Any) -> bool:
        return _is_number(value) and isinstance(value, numbers.Integral) and int(value) >= least

    return Kind(f"a whole number from {least} up", accepts, int, metavar=metavar)


def number(
    must_be: str, least: float = -math.inf, *, metavar: str = "X", none: bool = False
) -> Kind:
    """Numbers of at least `least`, with a custom description; `none` also allows None."""
    return Kind(
        must_be, lambda value: _is_number(value) and value >= least, float, metavar=metavar,
        takes_none=none,
    )  # fmt: skip


def one_of(choices: Sequence[str], read: Callable[[str], str] = str) -> Kind:
    """One of several words, or enum members that have them as values."""
    return Kind(
        f"one of {', '.join(choices)}",
        lambda value: isinstance(value, str) and read(value) in choices,
        read,
        choices=tuple(choices),
    )


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise ValueError(text)
    return float(found[1]) * _UNITS_S[found[2]]


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(map(accepts, value))


def _words(value: Any) -> bool:
    return _is_list(value, lambda each: isinstance(each, str))


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(text)
    return key, value


SECONDS = Kind(
    "a time above 0: a number of seconds, or on a command line 300, 90s, 30m or 2h",
    lambda value: _is_number(value) and value > 0, _seconds, metavar="TIME",
)  # fmt: skip
PATH = Kind("a path", lambda value: isinstance(value, str | os.PathLike), metavar="FILE")
NAME = Kind("a name", lambda value: isinstance(value, str), metavar="NAME")
SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
NAMES = Kind("a list of names", _words, str, tuple, metavar="NAME")
WILDCARDS = Kind("a list of wildcards", _words, str, tuple, metavar="WILDCARD")
REGEXES = Kind(
    "a list of regular expressions", lambda value: isinstance(value, str) or _words(value), str,
    tuple, metavar="REGEX",
)  # fmt: skip
KEY_VALUES = Kind(
    "KEY=VALUE, or from Python a mapping", lambda value: isinstance(value, Mapping), _key_value,
    dict, metavar="KEY=VALUE",
)  # fmt: skip
CALLBACKS = Kind("a list of functions", lambda value: _is_list(value, callable))
ANYTHING = Kind("anything", lambda _: True, metavar="SOURCE")
MODEL = replace(ANYTHING, metavar="FLOAT")


class Identity(Enum):
    """Whether results of runs that differ in an option can be compared with each other."""

    NO = 0
    YES = 1
    IF_SET = 2  # results from versions without the option have no entry for it


@dataclass(frozen=True)
class Option:
    """Metadata of a config field.

    Attributes:
        help: Its meaning, as one phrase.
        kind: The values it takes.
        flags: Its command-line flags; if none is given, the field's name, and for a switch that is
            on by default its negation.
        default_text: Describes the default, where its value is not self-explanatory.
        mode: The only workflow that has it; empty for all.
        identity: Whether it is part of a run's identity.
        needs: Another option that must be set for this one to have an effect.
        exclusive: Options with the same value here are mutually exclusive.
        title: The help section that lists it, if not that of its part.
        required: Whether a command line must give it.
        has_flags: Whether it has flags; otherwise only the Python API has it.
    """

    help: str
    kind: Kind
    flags: tuple[str, ...] = ()
    default_text: str = ""
    mode: str = ""
    identity: Identity = Identity.NO
    needs: str = ""
    exclusive: str = ""
    title: str = ""
    required: bool = False
    has_flags: bool = True

    @property
    def dest(self) -> str:
        """Name of its attribute in the parsed command line."""
        long = [flag for flag in self.flags if flag.startswith("--")]
        return long[0].removeprefix("--") if long else ""


def option(default: Any, kind: Kind, help: str, *flags: str, **more: Any) -> Any:  # noqa: A002
    """Declare a config field with a flag; see `Option` for `flags` and `more`."""
    known = Option(help, kind, flags, **more)
    # Arrays and models are not compared with each other.
    is_compared = kind.accepts is not ANYTHING.accepts
    return field(default=default, compare=is_compared, metadata={_OPTION: known})


def keyword(default: Any, kind: Kind, help: str, **more: Any) -> Any:  # noqa: A002
    """Declare a config field that only the Python API has; see `Option` for `more`."""
    return option(default, kind, help, has_flags=False, **more)


Described = tuple[Field[Any], Option]


def parts_of(config: Any) -> list[tuple[str, list[Described]]]:
    """Return the parts of a config or config class as title and fields, its own fields last."""
    return _parts(config if isinstance(config, type) else type(config))


@functools.cache
def _parts(config_class: type) -> list[tuple[str, list[Described]]]:
    known = {each.name: each for each in fields(config_class)}
    parts = []
    for part in (*config_class.__bases__, config_class):
        names = [name for name in getattr(part, "__dataclass_fields__", ()) if name in known]
        if names:
            described = [_described(known.pop(name)) for name in names]
            parts.append((cast("type[Config]", part).TITLE, described))
    return parts


def _described(each: Field[Any]) -> Described:
    known: Option = each.metadata[_OPTION]
    if known.flags or not known.has_flags:
        return each, known
    negation = (f"--no_{each.name}",) if known.kind is SWITCH and each.default else ()
    return each, replace(known, flags=(f"--{each.name}", *negation))


def options_of(config: Any) -> Iterator[Described]:
    """Yield the fields of a config or config class, each with its `Option`."""
    for _, options in parts_of(config):
        yield from options


def help_text(each: Field[Any], known: Option) -> str:
    """Return an option's help text with its default."""
    default = known.default_text
    if not default and isinstance(each.default, str | int | float) and known.kind is not SWITCH:
        default = f"{each.default:g}" if isinstance(each.default, float) else str(each.default)
    needed = f" (requires --workflow {known.mode})" if known.mode else ""
    return f"{known.help}{needed}{f' (default: {default})' if default else ''}"


class Config:
    """Base class of configs: frozen dataclasses whose fields are options, validated on creation.

    Attributes:
        TITLE: Title of these options in help.

    Raises:
        UsageError: If a field has an invalid value.
    """

    TITLE: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for each, known in options_of(self):
            value = getattr(self, each.name)
            may_be_none = each.default is None or known.kind.takes_none
            if not (known.kind.accepts(value) if value is not None else may_be_none):
                raise UsageError(
                    f"{each.name} must be {known.kind.must_be}, not {value!r}.",
                    f"{each.name}: {help_text(each, known)}.",
                )
        said = {
            each.name: getattr(self, each.name)
            for each, known in options_of(self)
            if each.name == "workflow" or (known.mode and getattr(self, each.name) != each.default)
        }
        check_mode(type(self), said)

    def identity(self) -> dict[str, Any]:
        """The values that must be equal for results to be comparable, as JSON-compatible data."""
        found = {}
        for each, known in options_of(self):
            if known.identity is not Identity.NO:
                is_meant = not known.needs or getattr(self, known.needs) is not None
                value = _plain(getattr(self, each.name), known.kind) if is_meant else None
                if known.identity is Identity.YES or value != _plain(each.default, known.kind):
                    found[each.name] = value
        return found


def check_mode(config_class: Any, said: Mapping[str, Any]) -> None:
    """Reject options that the selected workflow does not have.

    Args:
        config_class: Class of the config.
        said: The options that were set, by name.

    Raises:
        UsageError: If an option belongs to another workflow.
    """
    workflow = said.get("workflow", getattr(config_class, "workflow", ""))
    for each, known in options_of(config_class):
        if each.name in said and known.mode and known.mode != workflow:
            flag = known.flags[-1 if said[each.name] is False else 0]
            raise UsageError(
                f"{flag} requires --workflow {known.mode}.",
                f"Add --workflow {known.mode}, or leave {flag} out. In Python the option is "
                f"{each.name}, and the workflow is workflow={known.mode!r}.",
            )


def _plain(value: Any, kind: Kind) -> Any:
    if isinstance(value, Config):
        return {each.name: list(getattr(value, each.name)) for each, _ in options_of(value)}
    if isinstance(value, str) and kind.choices:
        return str(kind.read(value))  # under its current name
    return sorted(value) if isinstance(value, list | tuple) else value


P = ParamSpec("P")
C = TypeVar("C")
M = TypeVar("M")
R = TypeVar("R")
_C_contra = TypeVar("_C_contra", contravariant=True)
_M_contra = TypeVar("_M_contra", contravariant=True)
_R_co = TypeVar("_R_co", covariant=True)


class Configured(Protocol[_M_contra, _C_contra, P, _R_co]):
    """A function of a model that takes a config, its fields as keywords, or both."""

    def __call__(
        self, model: _M_contra, config: _C_contra | None = None, *_: P.args, **overrides: P.kwargs
    ) -> _R_co:
        """Call the function; keywords override the config."""
        ...


class ConfiguredToFile(Protocol[_M_contra, _C_contra, P, _R_co]):
    """Like `Configured`, for a function that also takes an output file."""

    def __call__(
        self,
        model: _M_contra,
        output: str | os.PathLike[str] | None = None,
        config: _C_contra | None = None,
        *_: P.args,
        **overrides: P.kwargs,
    ) -> _R_co:
        """Call the function; keywords override the config."""
        ...


class ConfiguredOnPair(Protocol[_M_contra, _C_contra, P, _R_co]):
    """Like `Configured`, for a function of a float model and a quantized one."""

    def __call__(
        self,
        float_model: _M_contra,
        quantized_model: _M_contra,
        config: _C_contra | None = None,
        *_: P.args,
        **overrides: P.kwargs,
    ) -> _R_co:
        """Call the function; keywords override the config."""
        ...


def configured(
    config_class: Callable[P, C],
) -> Callable[[Callable[[M, C], R]], Configured[M, C, P, R]]:
    """Decorate a function of a model and a config to also accept the config's fields as keywords.

    The keywords appear in its signature and documentation.
    """
    return functools.partial(_decorated, config_class)


def configured_to_file(
    config_class: Callable[P, C],
) -> Callable[[Callable[[M, str | os.PathLike[str] | None, C], R]], ConfiguredToFile[M, C, P, R]]:
    """Like `configured`, for a function that takes a model, an output file and a config."""
    return functools.partial(_decorated, config_class)


def configured_on_pair(
    config_class: Callable[P, C],
) -> Callable[[Callable[[M, M, C], R]], ConfiguredOnPair[M, C, P, R]]:
    """Like `configured`, for a function that takes a float model, a quantized one and a config."""
    return functools.partial(_decorated, config_class)


def _decorated(config_class: Any, function: Callable[..., Any]) -> Any:
    signature = inspect.signature(function)
    *leading, last = signature.parameters.values()
    leading = [each.replace(default=None) if each.name == "output" else each for each in leading]
    signature = signature.replace(parameters=[*leading, last.replace(default=None)])
    known = list(options_of(config_class))

    @functools.wraps(function)
    def call(*arguments: Any, **said: Any) -> Any:
        own = {each.name: said.pop(each.name) for each in (*leading, last) if each.name in said}
        bound = signature.bind(*arguments, **own)
        bound.apply_defaults()
        config = merged(config_class, bound.arguments[last.name], said, function.__name__)
        return function(**(bound.arguments | {last.name: config}))

    keywords = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each, _ in known
    ]
    config = last.replace(annotation=f"{last.annotation} | None", default=None)
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*leading, config, *keywords]
    )
    listed = "\n".join(f"    {each.name}: {help_text(each, one)}." for each, one in known)
    call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nKeywords:\n{listed}\n"
    return call


def merged(config_class: Any, config: Any, said: Mapping[str, Any], of: str) -> Any:
    """Return a config with some fields replaced.

    Args:
        config_class: Its class.
        config: The config; None for the default one.
        said: The new field values, by name.
        of: The function that received them, for error messages.

    Raises:
        UsageError: If there is no such field, or its value is invalid.
    """
    known = list(inspect.signature(config_class).parameters)
    for name in said:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It has: {', '.join(known)}."
            raise UsageError(f"{of}() has no option {name!r}.", hint)
    if config is not None and not isinstance(config, config_class):
        raise UsageError(
            f"config is a {type(config).__name__}, not a {config_class.__name__}.",
            f"Pass {config_class.__name__}(...), or its fields as keywords of {of}().",
        )
    return config_class(**said) if config is None else replace(config, **said)


def shared(config_class: Callable[..., C], config: Any, **others: Any) -> C:
    """Return a config that takes over the fields it has in common with another one.

    Args:
        config_class: Its class.
        config: The other config.
        others: Values of fields that the other config does not have.
    """
    names = [each.name for each, _ in options_of(config_class) if hasattr(config, each.name)]
    return config_class(**({name: getattr(config, name) for name in names} | others))
