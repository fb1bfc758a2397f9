"""The measurements of an autotuner as a readable file, `autotuner_state.yaml`; YAML files.

They are read safely, however untrusted, with line numbers, and written atomically.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from qdqtune.graph._files import write_text
from qdqtune.records._errors import AutotunerError, NewerSchemaError, NewerVersionError
from qdqtune.records._untrusted_files import (
    SCHEMAS,
    check_schema,
    list_in,
    number_in,
    object_in,
    read_text,
    text_in,
)
from qdqtune.search._config import Config
from qdqtune.search.patterns._region_pattern import LARGEST_MS, PatternSchemes

try:
    from yaml import CSafeDumper as _Dumper
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML built without libyaml: the same, only slower
    from yaml import SafeDumper as _Dumper  # type: ignore[assignment]
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

_DEEPEST = 50
_MOST_EVENTS = 500_000
_LONGEST_NUMBER = 4000
_LINE_WIDTH = 1 << 20  # a signature stays on one line


@dataclass(frozen=True)
class YamlFile:
    """A mapping read from a file.

    Attributes:
        path: The file.
        body: The mapping.
        root: Its syntax tree, which has line numbers.
    """

    path: Path
    body: Mapping[str, Any]
    root: yaml.Node

    def where(self, *keys: str | int) -> str:
        """Return the file and the line of the value at these keys, as far as they exist."""
        node: Any = self.root
        for key in keys:
            below = _below(node, key)
            if below is None:
                break
            node = below
        return f"{self.path}, line {node.start_mark.line + 1}"

    def check_kind(self, kind: str, make_again: str) -> None:
        """Check the kind of the file; files without a kind come from other tools.

        Raises:
            AutotunerError: If it is of another kind, or newer than this version.
        """
        found = self.body.get("kind", kind)
        if found != kind:
            raise AutotunerError(
                f"{self.where('kind')}: the file's kind is {found!r}, not {kind!r}.", make_again
            )
        version = self.body.get("schema", 1)
        if type(version) is not int or version < 1:
            raise AutotunerError(
                f"{self.where('schema')}: {version!r} is not a schema version.", make_again
            )
        try:
            check_schema(kind, version, self.where("schema"))
        except NewerSchemaError as newer:
            raise NewerVersionError(newer.what, newer.hint) from None


def read_yaml(path: str | os.PathLike[str], what: str, hint: str) -> YamlFile:
    """Read a file that contains a mapping.

    Args:
        path: The file.
        what: What the file should be, with an article.
        hint: What to do if it isn't.

    Raises:
        FileNotFoundError: If there is no such file.
        AutotunerError: If it can't be read, or is not YAML, or not a mapping.
    """
    file = Path(path)
    try:
        text = read_text(file)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise AutotunerError(f"{file} is not {what}: {why}.", hint) from None
    try:
        _check_events(text)
        loader = _Loader(text)
        root = loader.get_single_node()
        body = None if root is None else loader.construct_document(root)
    except Exception as error:  # PyYAML raises IndexError, KeyError, AttributeError for bad tags
        raise AutotunerError(f"{_line(file, error)}: not {what}: {_why(error)}.", hint) from None
    if root is None or not isinstance(body, dict):
        raise AutotunerError(f"{file}, line 1: not {what}: it holds no mapping.", hint)
    return YamlFile(file, body, root)


class Lines(str):
    """A multi-line text, written as such to the file."""


class _LinesDumper(_Dumper):
    """Writes `Lines` as a block, line by line."""


_LinesDumper.add_representer(
    Lines,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|"),
)


def write_yaml(path: str | os.PathLike[str], body: Mapping[str, Any]) -> None:
    """Write a mapping atomically; an existing file is replaced.

    Raises:
        OutputError: If it can't be written.
    """
    text = yaml.dump(
        dict(body),
        Dumper=_LinesDumper,
        sort_keys=False,
        default_flow_style=None,
        width=_LINE_WIDTH,
    )
    write_text(path, text, force=True)


def _below(node: Any, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
        return node.value[key] if 0 <= key < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    return None


def _check_events(text: str) -> None:
    """Refuse input that would take excessive memory, stack or time to construct.

    The parser does not expose its depth, and the constructor is recursive. A few lines of aliases
    can expand to more items than fit in memory.
    """
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            problem = f"it is nested more than {_DEEPEST} levels deep" if depth > _DEEPEST else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            problem = "it has aliases"
        elif isinstance(event, yaml.ScalarEvent) and _is_long_number(event.value):
            problem = f"it has a number of more than {_LONGEST_NUMBER} digits"
        if number > _MOST_EVENTS:
            problem = f"it has more than {_MOST_EVENTS:,} values"
        if problem:
            mark = cast("yaml.Mark | None", event.start_mark)  # libyaml's marks are alike
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _is_long_number(value: str) -> bool:
    """Whether parsing a scalar may take quadratic time: `1:1:1` is base 60."""
    return len(value) > _LONGEST_NUMBER and not value.strip("+-.:_0123456789")


def _line(file: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f"{file}, line {mark.line + 1}" if mark is not None else str(file)


def _why(error: Exception) -> str:
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    return str(problem).strip().splitlines()[0]


_log = logging.getLogger(__name__)

T = TypeVar("T")

KIND = "autotuner_state"
SCHEMA = SCHEMAS[KIND]
_MAKE_AGAIN = "Remove the file to start over; the pattern cache beside it can still be used."
_CURRENT = "current_profile_pattern_schemes_signature"


@dataclass(frozen=True)
class SavedState:
    """The content of a state file.

    Attributes:
        baseline_latency_ms: Latency of the float model, if it was measured.
        config: The settings that it was written with.
        patterns: The schemes that were tried, by pattern.
        current_signature: The pattern that was being profiled, if any.
        header: What the measurements depend on: the model's fingerprint, the quant type, the
            engine. Empty in files written by other tools.
        measurements: Lines of a run's journal, from which another run can resume; empty if no run
            wrote them.
    """

    baseline_latency_ms: float | None
    config: Config
    patterns: tuple[PatternSchemes, ...]
    current_signature: str | None
    header: Mapping[str, Any]
    measurements: tuple[str, ...] = ()


def write_state(
    path: str | os.PathLike[str],
    *,
    baseline_latency_ms: float | None,
    config: Config,
    patterns: Iterable[PatternSchemes],
    current_signature: str | None = None,
    header: Mapping[str, Any] | None = None,
    measurements: Iterable[str] = (),
) -> None:
    """Write a state file atomically.

    Args:
        path: The file; an existing one is replaced.
        baseline_latency_ms: Latency of the float model, if it was measured.
        config: The settings.
        patterns: The schemes that were tried.
        current_signature: The pattern that is being profiled, if any.
        header: What the measurements depend on, as strings and numbers.
        measurements: Lines of a run's journal.

    Raises:
        OutputError: If it can't be written.
    """
    body = {
        "kind": KIND,
        "schema": SCHEMA,
        "header": dict(header or {}),
        "baseline_latency_ms": None if baseline_latency_ms is None else float(baseline_latency_ms),
        _CURRENT: current_signature,
        "config": config.to_dict(),
        "patterns": [each.to_dict() for each in patterns],
    }
    if text := "".join(f"{line}\n" for line in measurements):
        body["measurements"] = Lines(text)
    write_yaml(path, body)


def read_state(path: str | os.PathLike[str]) -> SavedState:
    """Read a state file, from qdqtune or from a tool that writes the same keys.

    Raises:
        FileNotFoundError: If there is no such file.
        AutotunerError: If it is not a state file, is damaged, or was written by a newer version.
    """
    file = read_yaml(path, "an autotuner state", _MAKE_AGAIN)
    file.check_kind(KIND, _MAKE_AGAIN)

    def read(key: str, kind: Callable[[Any, str], T], default: Any = None) -> T:
        try:
            return kind(file.body.get(key) or default, key)
        except ValueError as error:
            raise _broken(file, str(error), key) from None

    latency_ms = file.body.get("baseline_latency_ms")
    patterns = []
    for number, entry in enumerate(read("patterns", list_in, file.body.get("patterns"))):
        try:
            patterns.append(PatternSchemes.from_dict(entry))
        except AutotunerError as error:
            raise _broken(file, error.what, "patterns", number) from None
    return SavedState(
        None if latency_ms is None else read("baseline_latency_ms", _latency),
        _config(file, read("config", object_in, {})),
        tuple(patterns),
        read(_CURRENT, text_in, "") or None,
        read("header", object_in, {}),
        tuple(read("measurements", text_in, "").splitlines()),
    )


def pattern_cache_path(state_path: str | os.PathLike[str]) -> Path:
    """Return the path of a state file's pattern cache: `<base>_pattern_cache<ext>`."""
    path = Path(state_path)
    return path.with_name(f"{path.stem}_pattern_cache{path.suffix}")


def _latency(value: object, name: str) -> float:
    return number_in(value, name, math.ulp(0.0), LARGEST_MS)


def _config(file: YamlFile, found: dict[str, Any]) -> Config:
    unknown = found.keys() - Config().to_dict().keys()
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        _log.warning("%s: unknown settings are left out: %s", file.where("config"), names)
    try:
        return Config.from_dict({name: found[name] for name in found if name not in unknown})
    except AutotunerError as error:
        raise _broken(file, error.what, "config") from None


def _broken(file: YamlFile, what: str, *keys: str | int) -> AutotunerError:
    return AutotunerError(f"{file.where(*keys)}: the state is damaged: {what}", _MAKE_AGAIN)
