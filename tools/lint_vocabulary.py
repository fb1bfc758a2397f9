"""Reports words that the project has given up for those of the field, and where they are left.

Names of files, identifiers, strings, docstrings, comments and pages of the docs count alike. A word
is found in any case and as a part of an identifier (`PieceProfiler`, `_all_pieces`), a phrase also
where it is broken over lines. What may stay, and why, is in `ALLOWED`.

    python tools/lint_vocabulary.py [FOLDER]   # a checkout; by default the one it is started in
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Old words, each with its forms divided by `|`, and what to say instead.
WORDS = {
    "arena|arenas": "candidate evaluator",
    "belief|beliefs|believe|believes|believed": "Bayesian linear model; estimate, assume",
    "carried": "propagated, kept",
    "contest|contests|contestant|contestants": "comparison, entry",
    "house|houses|rooms": "architecture, layers",
    "judge|judges|judged|judging|judgement|judgements": "accuracy evaluator; evaluate, compare",
    "kin|kinship": "shared encodings",
    "made up": "simulated, generated, placeholder",
    "moving op|moving ops": "passthrough ops",
    "patient": "defer_interrupts",
    "piece|pieces": "subgraph, sublayer, chunk",
    "race|races|racing": "comparison",
    "scout|scouts|scouting": "preflight",
    "shipping": "finalize",
    "spoken": "dialect choice",
    "story|stories": "result, summary",
    "tapping": "tensor capture",
    "wish|wishes|wished": "constraints, request",
    "witness|witnesses": "measurement listener",
    "working op|working ops": "compute ops",
    "workshop": "build context",
}

#: Old names that are ordinary words in prose: only the whole identifier counts, and a module's
#: name.
NAMES = {
    "AskedAndTold": "SearchStrategy",
    "Asking": "SearchStrategy",
    "Completion": "QuantizationPlanner",
    "EngineWords": "EngineFlags",
    "ErrorGuard": "AccuracyFallback",
    "Feeding": "SampleProvider",
    "InModel": "ObservedCosts",
    "Made": "QuantizeResult, QuantizeOutcome",
    "OURS": "BUILTIN_ENGINES",
    "PlacementSearch": "SearchStrategy",
    "Reporter": "ProgressReporter",
    "Searching": "SearchStrategy",
    "Seen": "TensorStatistics",
    "Tuned": "TuningTarget",
    "Unit": "QuantizableGroup",
    "all_sizes": "static_shapes",
    "beginning": "setup",
    "by_sweeps": "local_search",
    "engine_words": "engine_flags",
    "lifts": "propagates_dq",
    "parting": "split_projections",
    "reach": "candidate_edges",
    "roughly_db": "approximate_sqnr_db",
    "shapes_inside": "static_shapes",
}

#: Sentences that no native speaker would write, and better ones.
PHRASES = {
    "gone on with": "resumed",
    "goes on with": "resumes, continues with",
    "go on with": "resume, continue with",
    "for certain": "significantly",
    "told little": "predicted poorly",
    "is of subgraph mode": "requires --workflow subgraph",
}

#: What may stay, by old word: the text around it, and the reason.
ALLOWED: dict[str, dict[str, str]] = {
    "piece|pieces": {
        '"pieces"': "a key of summary.json and autotune_cache.json",
        "'pieces'": "the same, inside an f-string",
        "`pieces`": "the same, in a page that describes it",
        "all_pieces": "a key of summary.json",
        "WordPiece": "the name of a tokenizer",
    },
    "judge|judges|judged|judging|judgement|judgements": {
        '"judge"': "a key of the seconds that quantize tells",
        "judged_with": "a key of quantize's JSON, and the attribute of the same name",
    },
    "carried": {"{name}_carried": "a tensor's name, which older placements refer to"},
    "spoken": {"spoken letters and digits": "speech, as data"},
    "arena|arenas": {"MALLOC_ARENA_MAX": "a variable of the C library"},
    "house|houses|rooms": {"house_lo": "a file of another package"},
}

#: Folders and pages that are searched, and what of them is not: this file, and recorded data.
SEARCHED = (
    "src", "docs", "benchmarks", "examples", "tools", "tests",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
)  # fmt: skip
SKIPPED = ("tools/lint_vocabulary.py", "tests/data/", "tests/test_vocabulary.py")

# What may stand between two words of a phrase: spaces, line ends, comment signs, string joints.
_GAP = r"""(?:[\s#_-]|"\s*f?")+"""

Finding = tuple[Path, int, str]
"""File, line, and what was found there."""


def find_words(root: Path) -> list[Finding]:
    """Every old word in a checkout that is not allowed, and whatever is allowed but not there."""
    found: list[Finding] = []
    used: set[tuple[str, str]] = set()
    for path in _files(root):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(root)
        lower = f"{inside.as_posix()}\n{text}".lower()
        for old, new in {**WORDS, **NAMES, **PHRASES}.items():
            if not any(form.split()[0].lower() in lower for form in old.split("|")):
                continue  # far faster than the pattern
            if _pattern(old).search(inside.as_posix().removesuffix(".py")):
                found.append((inside, 0, _advice(inside.name, new)))
            left = text
            for kept in ALLOWED.get(old, ()):
                if kept in left:
                    used.add((old, kept))
                    left = left.replace(kept, re.sub(r"\S", " ", kept))
            found += ((inside, line, _advice(word, new)) for line, word in _occurrences(left, old))
    idle = {(old, kept) for old, texts in ALLOWED.items() for kept in texts} - used
    own = Path("tools", Path(__file__).name)
    return found + [(own, 0, f"{kept!r} (allowed, but not used)") for _, kept in sorted(idle)]


def _files(root: Path) -> Iterator[Path]:
    for name in SEARCHED:
        top = root / name
        for path in sorted(top.rglob("*") if top.is_dir() else [top]):
            inside = path.relative_to(root).as_posix()
            if path.suffix in (".py", ".md") and path.is_file() and not inside.startswith(SKIPPED):
                yield path


def _occurrences(text: str, old: str) -> Iterator[tuple[int, str]]:
    """Lines on which an old word stands, and how it is written there."""
    for match in _pattern(old).finditer(text):
        yield text.count("\n", 0, match.start()) + 1, " ".join(match.group().split())


@cache
def _pattern(old: str) -> re.Pattern[str]:
    """Finds a word or phrase in prose and in identifiers, or, of `NAMES`, the whole identifier."""
    if old in NAMES:
        return re.compile(rf"(?:(?<=class )|(?<=def )|(?<=import )|(?<=\.)|(?<=`)|(?<=^)){old}\b")
    forms = []
    for form in old.split("|"):
        words = form.split()
        low = _GAP.join(words)
        # In prose and snake_case; at the start of a sentence; inside CamelCase; and in capitals.
        forms += [
            rf"(?<![A-Za-z])[{low[0]}{low[0].upper()}]{low[1:]}(?![a-z])",
            rf"(?<![A-Z]){''.join(word.capitalize() for word in words)}(?![a-z])",
            rf"(?<![A-Za-z]){_GAP.join(word.upper() for word in words)}(?![A-Za-z])",
        ]
    return re.compile("|".join(forms))


def _advice(word: str, new: str) -> str:
    return f"{word} (use: {new})"


def main(arguments: list[str]) -> int:
    """Print what was found; 1 if there is anything."""
    found = find_words(Path(arguments[0] if arguments else "."))
    for path, line, word in found:
        sys.stdout.write(f"{path}:{line}: an old word: {word}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
