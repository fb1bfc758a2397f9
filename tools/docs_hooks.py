"""Hooks of MkDocs: references generated from the code, and figures that follow the colour scheme.

A line `<!-- generated: NAME -->` in a page is replaced when the site is built, so that the tables
of flags and options can't differ from the code.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdqtune import _command_configs as commands
from qdqtune import config as configs
from qdqtune.cli._flags import NAMES, add_common
from qdqtune.cli.main import get_parser
from qdqtune.options import ENGINE_SPECIFIC, Option, help_text, options_of
from qdqtune.records import _tuning as records
from qdqtune.records._accuracy import Rejected
from qdqtune.records._measurement import EngineInfo

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

_CONFIGS = {
    "tune": configs.TuneConfig,
    "quantize": configs.QuantizeConfig,
    "bench": configs.BenchConfig,
    "insert": commands.InsertConfig,
    "compare": commands.CompareConfig,
    "inspect": commands.InspectConfig,
    "layers_of": commands.LayersConfig,
    "groups_of": commands.GroupsConfig,
    "strip": commands.StripConfig,
    "verify": commands.VerifyConfig,
}
# Fields of summary.json that are objects or lists of them.
_INSIDE_SUMMARY = {
    "engine": EngineInfo,
    "noise": records.Noise,
    "seconds": records.Seconds,
    "blanket": records.Blanket,
    "rejected": Rejected,
    "batches": records.Batch,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of generated parts."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda mark: _GENERATED[mark[1]](), markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put figures into the page itself, where they get the colours of its scheme."""
    folder = (DOCS / page.file.src_uri).parent

    def inline(image: re.Match[str]) -> str:
        svg = (folder / image[2]).read_text(encoding="utf-8")
        label = f'role="img" aria-label="{image[1]}" '
        return f'<div class="figure">{svg.replace("<svg ", f"<svg {label}", 1)}</div>'

    return re.sub(r'<p><img alt="([^"]*)" src="([^"]+\.svg)" ?/?></p>', inline, html)


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, by its name."""
    (found,) = (each for each in get_parser()._actions if isinstance(each.choices, dict))
    return dict(found.choices or {})


def _cli() -> str:
    shared = argparse.ArgumentParser(add_help=False)
    add_common(shared)
    parts = ["## Flags of every command", *_flags_of(shared)]
    for name, parser in command_parsers().items():
        examples = "".join(f"{line}\n" for line in getattr(parser, "examples", ()))
        parts += [f"## {name}", parser.description or "", f"```\n{examples}```"]
        parts += _flags_of(parser, without={*shared._option_string_actions, "-h"})
    return "\n\n".join(parts)


def _flags_of(parser: argparse.ArgumentParser, without: Any = ()) -> Iterator[str]:
    """Yield a heading and a table for each group of flags, those of some engines last."""
    for group in sorted(parser._action_groups, key=lambda each: each.title == ENGINE_SPECIFIC):
        rows = [
            (_spelling(each), _meaning(each))
            for each in group._group_actions
            if each.help != argparse.SUPPRESS and not set(without).intersection(each.option_strings)
        ]
        if rows:
            title = re.sub(r"see docs/([\w/.]+)", r"[more](../\1)", group.title or "")
            yield f"**{title[:1].upper()}{title[1:]}**"
            yield _table("flag", "meaning", rows)


def _spelling(action: argparse.Action) -> str:
    value = str(action.metavar or "|".join(map(str, action.choices or ())))
    if not action.option_strings:
        return f"`{value}`"
    value = f" {value}" if value and action.nargs != 0 else ""
    return " ".join(f"`{flag}{value}`" for flag in action.option_strings)


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    names = [f"`{name}`" for name in NAMES[action.dest]()] if action.dest in NAMES else []
    return f"{text}; one of {', '.join(names)}" if names else text


def _config() -> str:
    parts = []
    for function, config in _CONFIGS.items():
        parts += [
            f"## {function}",
            f"`qdqtune.{function}` takes the fields of `{config.__name__}`:",
        ]
        rows = [
            (f"`{each.name}`", f"{help_text(each, known)}; {known.kind.must_be}{_flags(known)}")
            for each, known in options_of(config)
        ]
        parts.append(_table("field", "meaning", rows))
    return "\n\n".join(parts)


def _flags(known: Option) -> str:
    return f" ({', '.join(f'`{flag}`' for flag in known.flags)})" if known.flags else ""


def _summary() -> str:
    parts = [_table("field", "meaning", _attributes(records.Summary))]
    for name, record in _INSIDE_SUMMARY.items():
        parts += [f"### {name}", _table("field", "meaning", _attributes(record))]
    return "\n\n".join(parts)


def _attributes(record: type) -> list[tuple[str, str]]:
    """Return the fields that the docstring of a record describes."""
    listed = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE)
    return [(f"`{name}`", " ".join(text.split()).replace("``", "`")) for name, text in found]


def _table(first: str, second: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {first} | {second} |", "|---|---|"]
    lines += [f"| {left} | {_cell(right)} |" for left, right in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Escape what Markdown would read as HTML, emphasis or the end of a cell."""
    return re.sub(r"([<|*\[\]])", r"\\\1", text)


def _api() -> str:
    parts = []
    for module, names in public_names().items():
        parts += [f"## {module}", *(f"::: {module}.{name}" for name in names)]
    return "\n\n".join(parts)


def public_names() -> dict[str, list[str]]:
    """Return the public names by module, from the table in the page about Python."""
    text = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(qdqtune[a-z_.]*)` \| (.+) \|$", text, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def _contributing() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition("\n")[2].replace("](docs/", "](")


_GENERATED = {
    "cli": _cli,
    "config": _config,
    "api": _api,
    "summary": _summary,
    "contributing": _contributing,
}
