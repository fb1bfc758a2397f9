"""How every command reads its flags, what it answers to typos, and how its help is laid out."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from qdqtune._parser import (
    AssignmentsAction,
    DashedValueAction,
    InputItemsAction,
    ListAction,
    Parser,
    group_titled,
    split_commas,
)
from qdqtune.autotune.__main__ import get_parser as autotune_parser
from qdqtune.autotune.region_inspect import get_parser as region_inspect_parser
from qdqtune.cli.main import get_parser
from qdqtune.options import ENGINE_SPECIFIC
from qdqtune.records._precision import QUANT_TYPES
from qdqtune.zoo.__main__ import get_parser as zoo_parser


def all_parsers() -> dict[str, argparse.ArgumentParser]:
    """Every parser that takes flags, by how its command is called."""
    (commands,) = (a.choices for a in get_parser()._actions if isinstance(a.choices, dict))
    others = (autotune_parser(), region_inspect_parser(), zoo_parser())
    return {parser.prog: parser for parser in (*commands.values(), *others)}


PARSERS = all_parsers()


def small_parser() -> Parser:
    parser = Parser(prog="program")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--node_names", action=ListAction, default=[])
    parser.add_argument("--plugin_files", action=ListAction, nargs="+")
    parser.add_argument("--sizes", action=ListAction, type=int, default=[])
    parser.add_argument("--engine_option", action=AssignmentsAction, default=[])
    parser.add_argument("--shapes", action=InputItemsAction, item="shape", default=[])
    parser.add_argument("--extra_args", action=DashedValueAction)
    parser.add_argument("--mode", choices=("quick", "thorough"))
    parser.add_argument("--old_mode", dest="mode", help=argparse.SUPPRESS)
    return parser


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--node-names a", "node_names", ["a"]),
        ("--node_names=a-b", "node_names", ["a-b"]),
        ("--node-names=a --node_names b,c", "node_names", ["a", "b", "c"]),
        ("--node-na a", "node_names", ["a"]),
        ("--node_n a", "node_names", ["a"]),
        ("--plugin-files a b --plugin_files c,d", "plugin_files", ["a", "b", "c", "d"]),
        ("", "plugin_files", None),
        ("--sizes 1,2 --sizes 3", "sizes", [1, 2, 3]),
        ("--engine-option a=1,b=2 --engine-option c=3", "engine_option", ["a=1", "b=2", "c=3"]),
        ("--engine_option a=1,2,b=x:1,y:2", "engine_option", ["a=1,2", "b=x:1,y:2"]),
        ("--shapes a:1x2 b:3 file", "shapes", ["a:1x2,b:3"]),
        ("--shapes a:1x2,b:3 --shapes=c:4 d:5", "shapes", ["a:1x2,b:3", "c:4,d:5"]),
        ("--extra-args --load-engine", "extra_args", "--load-engine"),
        ("--extra_args=--load-engine=x", "extra_args", "--load-engine=x"),
        ("-- --node-names", "files", ["--node-names"]),
    ],
)
def test_flags_and_lists(line: str, name: str, value: object) -> None:
    assert getattr(small_parser().parse_args(line.split()), name) == value


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a, b,,c ", ["a", "b", "c"]),
        ("", []),
        ("conv[0,1],x{1,2},(a,b)*", ["conv[0,1]", "x{1,2}", "(a,b)*"]),
        ("((a,b),c),[(,]x,y", ["((a,b),c)", "[(,]x", "y"]),
        (r"a\,b,c", ["a,b", "c"]),
        (r"\(a,b\)", [r"\(a", r"b\)"]),
        ("a[0,b", ["a[0", "b"]),
        ("a]0,b", ["a]0", "b"]),
        ("a\nb,c", ["a\nb", "c"]),
    ],
)
def test_commas_in_brackets_separate_nothing(text: str, values: list[str]) -> None:
    assert split_commas(text) == values


@pytest.mark.parametrize("prog", PARSERS)
def test_every_flag_that_takes_several_values_takes_commas_and_repeats(prog: str) -> None:
    for action in PARSERS[prog]._actions:
        if not action.option_strings or isinstance(action, ListAction):
            continue
        assert action.nargs not in ("+", "*"), action.option_strings
        assert not isinstance(action, argparse._AppendAction), action.option_strings


@pytest.mark.parametrize("prog", PARSERS)
def test_flags_are_declared_with_underscores(prog: str) -> None:
    """As they are shown; any of them may be typed with dashes."""
    parser = PARSERS[prog]
    assert isinstance(parser, Parser)
    for flag in parser._option_string_actions:
        if flag.startswith("--"):
            assert "-" not in flag[2:], flag
            dashed = "--" + flag[2:].replace("_", "-")
            assert parser._normalized([dashed]) == [flag]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--node-nmes a", "unknown flag --node-nmes; did you mean --node_names?"),
        ("--Mode=quick", "unknown flag --Mode; did you mean --mode?"),
        ("--old_mod=quick --old-mde=quick", "unknown flag --old-mde; did you mean --mode?"),
        ("--xyz", "unknown flag --xyz"),
        ("-x", "unknown flag -x"),
        ("--siezs 1 --xyz", "unknown flags --siezs (did you mean --sizes?), --xyz"),
        ("--sizes 1,two", "argument --sizes: 'two' can't be read"),
        ("--mode=quik",
         "argument --mode: unknown value quik; did you mean quick? (one of: quick, thorough)"),
        ("--mode=x", "argument --mode: unknown value x (one of: quick, thorough)"),
    ],
)  # fmt: skip
def test_typos(line: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        small_parser().parse_args(line.split())
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"error: {complaint}\n       See program --help.\n"


@pytest.mark.parametrize(
    ("get", "line", "complaint"),
    [
        (get_parser, "--verson", "unknown flag --verson; did you mean --version?"),
        (get_parser, "--theads=1 tune m.onnx", "unknown flag --theads; flags follow the command"),
        (get_parser, "benhc m.onnx", "unknown command benhc; did you mean bench?"),
        (get_parser, "tune --calibraton-data d.npz",
         "unknown flag --calibraton-data; did you mean --calibration_data?"),
        (get_parser, "strip a.onnx b.onnx -o c.onnx", "unexpected argument: b.onnx"),
        (autotune_parser, "--onnx-pth m.onnx",
         "unknown flag --onnx-pth; did you mean --onnx_path?"),
        (region_inspect_parser, "-m m.onnx --max-sequence-sice 3",
         "unknown flag --max-sequence-sice; did you mean --max_sequence_size?"),
        (zoo_parser, "chain --sed 1", "unknown flag --sed; did you mean --seed?"),
    ],
)  # fmt: skip
def test_typos_of_each_program(
    get: Callable[[], argparse.ArgumentParser],
    line: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        get().parse_args(line.split())
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"error: {complaint}"
    assert len(said) == 2
    assert said[1].endswith(" --help.")


@pytest.mark.parametrize("prog", PARSERS)
def test_help_names_engines_and_dialects_and_ends_in_what_few_need(prog: str) -> None:
    from qdqtune.engines import _registry as registry
    from qdqtune.qdq.dialects import DIALECTS

    parser = PARSERS[prog]
    shown = " ".join(parser.format_help().split())
    assert shown.startswith(f"usage: {prog} ")
    assert shown.index("[flags]") < 120
    dests = {action.dest for action in parser._actions}
    if "engine" in dests:
        assert f"one of auto, {', '.join(registry.engines())}" in shown
    if "dialect" in dests:
        assert f"one of {', '.join(sorted(DIALECTS))}" in shown
    titles = [group.title for group in parser._action_groups]
    assert ENGINE_SPECIFIC not in titles[:-1]


def test_quant_types_are_those_of_the_dialects() -> None:
    from qdqtune.qdq.dialects import DIALECTS

    assert set(QUANT_TYPES) == {name for each in DIALECTS.values() for name in each.formats}


def test_a_group_is_added_once() -> None:
    parser = small_parser()
    assert group_titled(parser, "one") is group_titled(parser, "one")
    assert group_titled(parser, "one") is not group_titled(parser, "two")
