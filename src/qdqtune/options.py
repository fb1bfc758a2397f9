"""Options: what a field of a config says of itself, and what follows from that.

A field carries its meaning, its values and its flags. The flags of commands, the keywords of
functions with their documentation, the checks of both, and a run's identity are made from it.
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

from qdqtune.records.errors import UsageError

_OPTION = "option"
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Kind:
    """Which values an option takes.

    Attributes:
        must_be: What they are, as in "threads must be ...".
        accepts: Whether a value is one of them; None is one if the default is.
        read: Makes a value from a text; raises `ValueError` if it can't.
        collect: Makes one value of all that were read, for flags that may be repeated.
        metavar: What stands for a value in help.
        choices: All values, if they can be listed.
        takes_none: Whether None is a value beside the default, typed `none`.
        bare: The value of the flag alone, if it need not have one.
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
        """The value that a user typed.

        Raises:
            ValueError: If it is none; the message says what it must be.
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
    """Whole numbers from `least` up."""

    def accepts(value: Any) -> bool:
        return _is_number(value) and isinstance(value, numbers.Integral) and int(value) >= least

    return Kind(f"a whole number from {least} up", accepts, int, metavar=metavar)


def number(
    must_be: str, least: float = -math.inf, *, metavar: str = "X", none: bool = False
) -> Kind:
    """Numbers from `least` up, in words of their own; with `none`, None is one of them."""
    return Kind(
        must_be, lambda value: _is_number(value) and value >= least, float, metavar=metavar,
        takes_none=none,
    )  # fmt: skip


def one_of(choices: Sequence[str], read: Callable[[str], str] = str) -> Kind:
    """Some words, or members of an enum that have them as values."""
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


def _words(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(isinstance(each, str) for each in value)


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
WILDCARDS = Kind("a list of wildcards", _words, str, tuple, metavar="WILDCARD")
REGEXES = Kind(
    "a list of regular expressions", lambda value: isinstance(value, str) or _words(value), str,
    tuple, metavar="REGEX",
)  # fmt: skip
KEY_VALUES = Kind(
    "KEY=VALUE, or from Python a mapping", lambda value: isinstance(value, Mapping), _key_value,
    dict, metavar="KEY=VALUE",
)  # fmt: skip
FUNCTION = Kind("a function", callable)
ANYTHING = Kind("anything", lambda _: True, metavar="SOURCE")


class Identity(Enum):
    """Whether results of runs that differ in an option can be compared with each other."""

    NO = 0
    YES = 1
    IF_SET = 2  # results of versions without the option have no entry for it


@dataclass(frozen=True)
class Option:
    """What a field of a config says of itself.

    Attributes:
        help: What it means, as one phrase.
        kind: Which values it takes.
        flags: How it is spelled on a command line; empty for an option of the Python API alone.
        default_text: What the default means, where its value doesn't say.
        mode: The only workflow that has it; empty for all.
        identity: Whether it is part of a run's identity.
        needs: Another option without which it means nothing.
        exclusive: Options with the same word here can't be given together.
        title: What help lists it under, if not under the title of its part.
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

    @property
    def dest(self) -> str:
        """Where a command line keeps it."""
        long = [flag for flag in self.flags if flag.startswith("--")]
        return long[0].removeprefix("--") if long else ""


def option(default: Any, kind: Kind, help: str, *flags: str, **more: Any) -> Any:  # noqa: A002
    """A field of a config; see `Option` for `more`."""
    known = Option(help, kind, flags, **more)
    # Arrays are not compared with each other.
    return field(default=default, compare=kind is not ANYTHING, metadata={_OPTION: known})


def parts_of(config: Any) -> Iterator[tuple[str, list[tuple[Field[Any], Option]]]]:
    """The parts of a config or of its class: title and fields, its own fields last."""
    config_class = config if isinstance(config, type) else type(config)
    known = {each.name: each for each in fields(config_class)}
    for part in (*config_class.__bases__, config_class):
        names = [name for name in getattr(part, "__dataclass_fields__", ()) if name in known]
        if names:
            of_part = (known.pop(name) for name in names)
            title = cast("type[Config]", part).TITLE
            yield title, [(each, each.metadata[_OPTION]) for each in of_part]


def options_of(config: Any) -> Iterator[tuple[Field[Any], Option]]:
    """The fields of a config or of its class, each with what it says of itself."""
    for _, options in parts_of(config):
        yield from options


def help_text(each: Field[Any], known: Option) -> str:
    """What an option means, and its default."""
    default = known.default_text
    if not default and isinstance(each.default, str | int | float) and known.kind is not SWITCH:
        default = f"{each.default:g}" if isinstance(each.default, float) else str(each.default)
    needed = f" (requires --workflow {known.mode})" if known.mode else ""
    return f"{known.help}{needed}{f' (default: {default})' if default else ''}"


class Config:
    """The base of configs: frozen dataclasses whose fields are options, checked when they are made.

    Attributes:
        TITLE: What help calls these options.

    Raises:
        UsageError: If a field has a value that it can't have.
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
        """What results must have in common to be compared, in a form for JSON."""
        found = {}
        for each, known in options_of(self):
            if known.identity is not Identity.NO:
                is_meant = not known.needs or getattr(self, known.needs) is not None
                value = _plain(getattr(self, each.name), known.kind) if is_meant else None
                if known.identity is Identity.YES or value != _plain(each.default, known.kind):
                    found[each.name] = value
        return found


def check_mode(config_class: Any, said: Mapping[str, Any]) -> None:
    """Let nothing be asked for that the workflow would not do.

    Args:
        config_class: Of the config.
        said: The options that were given, by name.

    Raises:
        UsageError: If it would not.
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
        return str(kind.read(value))  # under the name that it has now
    return sorted(value) if isinstance(value, list | tuple) else value


P = ParamSpec("P")
C = TypeVar("C")
M = TypeVar("M")
R = TypeVar("R")
_C_contra = TypeVar("_C_contra", contravariant=True)
_M_contra = TypeVar("_M_contra", contravariant=True)
_R_co = TypeVar("_R_co", covariant=True)


class Configured(Protocol[_M_contra, _C_contra, P, _R_co]):
    """A function of a model that takes a config, or its fields as keywords, or both."""

    def __call__(
        self, model: _M_contra, config: _C_contra | None = None, *_: P.args, **overrides: P.kwargs
    ) -> _R_co:
        """Do it; keywords go before what the config says."""
        ...


class ConfiguredToFile(Protocol[_M_contra, _C_contra, P, _R_co]):
    """The same for a function that may be told a file to write."""

    def __call__(
        self,
        model: _M_contra,
        output: str | os.PathLike[str] | None = None,
        config: _C_contra | None = None,
        *_: P.args,
        **overrides: P.kwargs,
    ) -> _R_co:
        """Do it; keywords go before what the config says."""
        ...


def configured(
    config_class: Callable[P, C],
) -> Callable[[Callable[[M, C], R]], Configured[M, C, P, R]]:
    """Let a function that takes a model and a config take the config's fields as keywords, too.

    Its signature and its documentation list them.
    """
    return functools.partial(_decorated, config_class)


def configured_to_file(
    config_class: Callable[P, C],
) -> Callable[[Callable[[M, str | os.PathLike[str] | None, C], R]], ConfiguredToFile[M, C, P, R]]:
    """The same for a function that takes a model, a file to write and a config."""
    return functools.partial(_decorated, config_class)


def _decorated(config_class: Any, function: Callable[..., Any]) -> Any:
    signature = inspect.signature(function)
    model, *leading, last = signature.parameters.values()
    leading = [model, *(each.replace(default=None) for each in leading)]
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
    """A config with some fields replaced.

    Args:
        config_class: Its class.
        config: The config; None is the default one.
        said: The fields by name.
        of: The function that they were given to.

    Raises:
        UsageError: If there is no such field, or it can't have that value.
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
    """A config with the fields that another one has, too.

    Args:
        config_class: Its class.
        config: The other one.
        others: Fields that are not those of the other one.
    """
    names = [each.name for each, _ in options_of(config_class) if hasattr(config, each.name)]
    return config_class(**({name: getattr(config, name) for name in names} | others))
