"""`qdqtune completion`: print a script that completes commands, flags and values in a shell."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qdqtune.cli._flags import NAMES
from qdqtune.cli._runner import OK

DESCRIPTION = (
    "Print a script that lets a shell complete commands, flags, values of flags and files. Write "
    "it to ~/.local/share/bash-completion/completions/qdqtune for bash, to _qdqtune in a folder "
    "of $fpath for zsh, to ~/.config/fish/completions/qdqtune.fish for fish. It is made for this "
    "version: print it again after an update."
)
EXAMPLES = ("qdqtune completion bash", "qdqtune completion zsh")

_FILES, _FOLDERS = "files", "folders"
_KINDS = {
    **dict.fromkeys(("FILE", "FLOAT", "MODEL", "OUT", "QUANT", "SOURCE"), _FILES),
    "DIR": _FOLDERS,
}


@dataclass(frozen=True)
class _Argument:
    """A flag or a positional argument.

    Attributes:
        flags: Its spellings; none for a positional argument.
        text: The beginning of its help.
        metavar: Placeholder for its value; empty if it takes none.
        values: All of its values, if they can be listed.
        kind: Whether its value is one of `_FILES` or `_FOLDERS`; empty otherwise.
        repeats: Whether further values may follow.
    """

    flags: tuple[str, ...]
    text: str
    metavar: str
    values: tuple[str, ...]
    kind: str
    repeats: bool

    @classmethod
    def of(cls, action: argparse.Action) -> _Argument:
        """Describe an argument of a parser."""
        names = NAMES.get(action.dest)
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        return cls(
            tuple(action.option_strings),
            re.split(r"[;(:\n]", (action.help or "").replace("%%", "%"))[0].strip(),
            "" if action.nargs == 0 else metavar,
            tuple(names()) if names else tuple(map(str, action.choices or ())),
            _KINDS.get(metavar, ""),
            action.nargs == "+",
        )


@dataclass(frozen=True)
class _Command:
    """A command: its name, what it does, its flags, and its positional arguments."""

    name: str
    text: str
    flags: tuple[_Argument, ...]
    positionals: tuple[_Argument, ...]

    @property
    def spellings(self) -> list[str]:
        """All spellings of its flags."""
        return [flag for each in self.flags for flag in each.flags]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell: %(choices)s")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    print(script_for(options.shell), end="")
    return OK


def script_for(shell: str) -> str:
    """Return the completion script for a shell, one of `SHELLS`."""
    from qdqtune.cli.main import get_parser

    return "".join(f"{line}\n" for line in SHELLS[shell](list(_commands(get_parser()))))


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Command]:
    (subparsers,) = (each for each in parser._actions if hasattr(each, "_choices_actions"))
    texts = {each.dest: each.help or "" for each in subparsers._choices_actions}
    for name, command in dict(subparsers.choices or {}).items():
        actions = [each for each in command._actions if each.help != argparse.SUPPRESS]
        arguments = [_Argument.of(each) for each in actions]
        yield _Command(
            name,
            texts[name],
            tuple(each for each in arguments if each.flags),
            tuple(each for each in arguments if not each.flags),
        )


def _bash(commands: Sequence[_Command]) -> Iterator[str]:
    yield "_qdqtune() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '    if [[ $cur == "=" ]]; then cur=""'  # bash splits --flag=value into three words
    yield '    elif [[ $prev == "=" ]]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield "    COMPREPLY=()"
    yield "    if [[ $COMP_CWORD -eq 1 ]]; then"
    yield f"        words={shlex.quote(' '.join(each.name for each in commands))}"
    yield "    else"
    yield '        case "${COMP_WORDS[1]} $prev" in'
    for command in commands:
        for flag in filter(lambda each: each.metavar, command.flags):
            cases = "|".join(f"'{command.name} {spelling}'" for spelling in flag.flags)
            yield f"            {cases}) {_bash_values(flag)} ;;"
    yield '            *) if [[ $cur == -* ]]; then case "${COMP_WORDS[1]}" in'
    for command in commands:
        yield f"                {command.name}) words={shlex.quote(' '.join(command.spellings))} ;;"
    yield '            esac; else case "${COMP_WORDS[1]}" in'
    for command in commands:
        if command.positionals:
            yield f"                {command.name}) {_bash_values(command.positionals[0])} ;;"
    yield "            esac; fi ;;"
    yield "        esac"
    yield "    fi"
    yield "    [[ -n $words ]] || return 0"
    yield '    compopt +o default; COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _qdqtune qdqtune"


def _bash_values(argument: _Argument) -> str:
    if argument.values:
        return f"words={shlex.quote(' '.join(argument.values))}"
    if argument.kind == _FOLDERS:
        return 'compopt -o filenames; COMPREPLY=($(compgen -d -- "$cur"))'
    return ":" if argument.kind == _FILES else "compopt +o default"


def _zsh(commands: Sequence[_Command]) -> Iterator[str]:
    yield "#compdef qdqtune"
    yield "_qdqtune() {"
    yield '    local curcontext="$curcontext" state line'
    yield "    local -a commands"
    yield "    _arguments -C '1:command:->command' '*::argument:->argument'"
    yield "    case $state in"
    yield "    command)"
    described = (shlex.quote(f"{each.name}:{each.text}") for each in commands)
    yield f"        commands=({' '.join(described)})"
    yield "        _describe command commands ;;"
    yield "    argument)"
    yield "        case $words[1] in"
    for command in commands:
        specs = [spec for each in command.flags for spec in _zsh_flag(each)]
        specs += [
            f"{'*' if each.repeats else position}:{each.metavar}:{_zsh_values(each)}"
            for position, each in enumerate(command.positionals, 1)
        ]
        yield f"        {command.name}) _arguments {' '.join(map(shlex.quote, specs))} ;;"
    yield "        esac ;;"
    yield "    esac"
    yield "}"
    # As a file of $fpath it is the body of the function; it can be sourced, too.
    yield 'if [[ "$funcstack[1]" == _qdqtune ]]; then _qdqtune "$@"'
    yield "else compdef _qdqtune qdqtune; fi"


def _zsh_flag(flag: _Argument) -> Iterator[str]:
    text = re.sub(r"([\[\]:\\])", r"\\\1", flag.text)
    for spelling in flag.flags:
        if not flag.metavar:
            yield f"{spelling}[{text}]"
        else:
            joined = "=" if spelling.startswith("--") else "+"
            metavar = flag.metavar.replace(":", "\\:")
            yield f"*{spelling}{joined}[{text}]:{metavar}:{_zsh_values(flag)}"


def _zsh_values(argument: _Argument) -> str:
    if argument.values:
        return f"({' '.join(argument.values)})"
    return {_FILES: "_files", _FOLDERS: "_files -/"}.get(argument.kind, "")


def _fish(commands: Sequence[_Command]) -> Iterator[str]:
    first, complete = "__fish_use_subcommand", "complete -c qdqtune"
    for command in commands:
        text = _fish_quoted(command.text)
        yield f"{complete} -n {first} -f -a {command.name} -d {text}"
        condition = f"-n '__fish_seen_subcommand_from {command.name}'"
        for each in (*command.flags, *command.positionals):
            spellings = [
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in each.flags
            ]
            text = _fish_quoted(each.text)
            yield " ".join([complete, condition, *spellings, *_fish_values(each), "-d", text])


def _fish_values(argument: _Argument) -> Iterator[str]:
    if argument.values:
        yield f"{'-x' if argument.flags else '-f'} -a {_fish_quoted(' '.join(argument.values))}"
    elif argument.kind == _FOLDERS:
        yield "-x -a '(__fish_complete_directories)'"
    elif argument.kind == _FILES:
        yield "-r -F" if argument.flags else "-F"
    elif argument.metavar:
        yield "-x"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[Sequence[_Command]], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
"""Generators of completion scripts, by the name of the shell."""
