"""Reports where layers that must not know one engine from another name one.

Names, titles, modules and programs come from the registry. Identifiers, imports, strings,
docstrings and comments count alike, and so do the names of files: what such a layer needs to know
of an engine is data in the registry, by role.

    python tools/lint_engine_names.py [FOLDER]   # the package; by default the one in src
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from qdqtune.engines import _registry as registry

LAYERS = ("autotune", "search", "workflows")
COMMAND = "autotune/__main__.py"  # a command line, with the flags of the autotuning guides

# Names that are no engine's, by why; most are public ones that people of other autotuners know.
ALLOWED = {
    "is_simulated": "whether times are those of a cost model, whichever engine has it",
    "TensorRTPyBenchmark": "a class of the autotuning guides",
    "TrtExecBenchmark": "a class of the autotuning guides",
    "extra_trtexec_args": "a parameter of generate_graph_json",
    "tensorrt_utils": "a module of the autotuning guides",
    "use_trtexec": "a parameter of init_benchmark_instance",
    "trtexec_args": "a parameter of init_benchmark_instance and TrtExecBenchmark",
    "trtexec_path": "a parameter of TrtExecBenchmark",
}

Finding = tuple[Path, int, str]
"""File, line, and what was found there."""


def find_names(package: Path) -> list[Finding]:
    """Everything in the layers of a package that names an engine."""
    found: list[Finding] = []
    used: set[str] = set()
    for layer in LAYERS:
        for path in sorted((package / layer).rglob("*.py")):
            if path.relative_to(package).as_posix() == COMMAND:
                continue
            for line, word in sorted(set(_words(path))):
                used.add(word)
                if word not in ALLOWED:
                    found.append((path, line, word))
    idle = [
        (Path(__file__), 0, f"{name} (allowed, but not used)") for name in ALLOWED.keys() - used
    ]
    return found + sorted(idle)


def _words(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and words of a file that contain the name of an engine."""
    text = path.read_text(encoding="utf-8")
    if any(_found_in(path.stem)):
        yield 0, path.name
    for start, word in _found_in(text):
        yield text.count("\n", 0, start) + 1, word
    for node in ast.walk(ast.parse(text)):  # strings that are written in parts are whole here
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for _, word in _found_in(node.value):
                if word not in " ".join((ast.get_source_segment(text, node) or "").split()):
                    yield node.lineno, word


def _found_in(text: str) -> Iterator[tuple[int, str]]:
    """Where a text names an engine, with the whole word in which it does."""
    for match in _pattern().finditer(text):
        start, end = match.span()
        while start > 0 and _is_of_a_word(text[start - 1]):
            start -= 1
        while end < len(text) and _is_of_a_word(text[end]):
            end += 1
        yield match.start(), " ".join(text[start:end].split())


def _is_of_a_word(character: str) -> bool:
    return character.isalnum() or character == "_"


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Any name of an engine, in any case and spacing."""
    names = {
        name
        for entry in registry.ENGINES.values()
        for name in (entry.name, entry.title, entry.module, entry.program)
    } - {"", "qdqtune"}
    spaced = (r"[\s#_-]*".join(map(re.escape, re.split(r"[\s_-]+", name))) for name in names)
    return re.compile("|".join(sorted(spaced, key=len, reverse=True)), re.IGNORECASE)


def main(arguments: list[str]) -> int:
    """Print what was found; 1 if there is anything."""
    package = Path(arguments[0] if arguments else "src/qdqtune")
    found = find_names(package)
    for path, line, word in found:
        sys.stdout.write(f"{path}:{line}: names an engine: {word}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
